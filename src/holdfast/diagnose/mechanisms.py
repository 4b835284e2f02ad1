"""The known ways in which something slows a run, as data: what shows at the cause, what follows, who is late.

A mechanism is no more than what an experienced engineer would look for. Weights are in bans: an observation
of weight 1 makes the cause ten times as likely, against any other, as it was without it.
"""

from typing import Literal

import msgspec

from holdfast.detect.signs import Sign
from holdfast.diagnose.incident import Verdict
from holdfast.signals.domains import Domain, Seam
from holdfast.topology.graph import Kind

Reach = Literal["beneath", "everyone", "wandering", "stall"]
"""Who is slowed: the members that depend on the cause and no others; all of them; another one each time; or
nobody's step, but the time between steps."""


class Origin(msgspec.Struct, frozen=True):
    """Where a mechanism begins.

    kinds  of subject that it begins at
    seam   the border between teams that it crosses
    owner  the team that can mend it; empty: the one that owns the subject
    """

    domain: Domain
    kinds: tuple[Kind, ...]
    seam: Seam = "gpu-fabric-pool"
    owner: str = ""


class Mechanism(msgspec.Struct, frozen=True, kw_only=True):
    """One way to be slow.

    reach, slows: as most have them unless it is said
    shows     signs at the cause, or at all of what it consists of
    follows   signs further down, at some of what depends on it
    uneven    of these, that only some of what depends on it shows them is the point
    against   signs anywhere near it that speak for something else
    slows     the symptoms in the run that it explains
    clears    signs that are looked for and not found, where their absence says something
    needs     without one of these it is not thought of; those in `shows` where empty
    decisions what somebody had decided just before
    decides   the observation that would settle it
    is_owned  whether anybody can be told that it is theirs
    leads_s   it may come so long before the run is slower, as a restart may lie between
    rivals    signs of causes that look the same otherwise: where they are not measured, it is less sure; of
              what may be in a part of the run, only where it is all of it
    """

    name: str
    title: str
    origin: Origin
    decides: str
    action: str
    reach: Reach = "beneath"
    slows: tuple[Sign, ...] = ("late-compute", "slow-step")
    verdict: Verdict = "cause"
    shows: dict[Sign, float] = {}
    follows: dict[Sign, float] = {}
    uneven: tuple[Sign, ...] = ()
    against: dict[Sign, float] = {}
    clears: dict[Sign, float] = {}
    needs: tuple[Sign, ...] = ()
    decisions: tuple[str, ...] = ()
    is_owned: bool = True
    leads_s: float = 0.0
    rivals: tuple[Sign, ...] = ()


MECHANISMS: tuple[Mechanism, ...] = (
    Mechanism(
        name="hang",
        title="the run makes no steps",
        origin=Origin("software", ("run",), seam="none"),
        reach="everyone",
        slows=("no-step",),
        shows={"no-step": 3.0, "stopped-first": 0.3},
        needs=("no-step",),
        decides="Stacks (py-spy dump) and NCCL's flight recorder of the members that stopped first.",
        action="Look at the members that stopped first and at findings on their nodes; replace them.",
    ),
    Mechanism(
        name="coolant-flow",
        title="coolant flow is lost, and its GPUs throttle",
        origin=Origin("cooling", ("loop",), seam="facilities-ml"),
        shows={"low-flow": 2.0, "pump-strained": 0.8, "leak": 1.5},
        follows={"thermal-throttle": 0.8, "hot-gpu": 0.4, "heating": 0.5, "low-clock": 0.3},
        against={"warm-supply": 0.7, "power-throttle": 0.5},
        needs=("low-flow", "leak", "thermal-throttle", "low-clock"),
        decides="The loop's flow against its rated flow while its pump is asked for full speed.",
        action="Have facilities check pump, filter and valves of the loop; lower the load on it until then.",
    ),
    Mechanism(
        name="coolant-supply",
        title="coolant comes in too warm, and GPUs throttle",
        origin=Origin("cooling", ("circuit", "loop"), seam="facilities-ml"),
        shows={"warm-supply": 2.0},
        follows={"thermal-throttle": 0.8, "hot-gpu": 0.4, "heating": 0.5, "low-clock": 0.3},
        against={"low-flow": 0.7, "power-throttle": 0.5},
        needs=("warm-supply", "thermal-throttle", "low-clock"),
        decides="The supply temperature of all loops side by side: those of one circuit rise, flow does not.",
        action="Have facilities check the chiller and the facility water of the circuit.",
    ),
    Mechanism(
        name="power-brake",
        title="a power shelf has lost supplies, and its GPUs are braked",
        origin=Origin("power", ("shelf",), seam="facilities-ml"),
        shows={"failed-supply": 2.0},
        follows={"power-throttle": 1.2, "low-power": 0.6, "low-clock": 0.3},
        against={"hot-gpu": 0.5, "thermal-throttle": 0.7},
        needs=("failed-supply", "power-throttle", "low-power", "low-clock"),
        decides="Power violation time and the health of the shelf's supplies, against temperature.",
        action="Replace the supplies; until then take the rack out of the run or cap its power evenly.",
    ),
    Mechanism(
        name="leaf-congestion",
        title="a leaf switch's uplinks are crowded",
        origin=Origin("fabric", ("leaf", "spine")),
        slows=("late-exchange", "slow-step"),
        shows={"uplink-waits": 1.5},
        follows={"port-waits": 0.8},
        against={"symbol-errors": 0.5, "link-recoveries": 0.5},
        needs=("uplink-waits", "port-waits"),
        decides="Which members' own exchange is slow: all of them, and only they, hang on one leaf.",
        action="Have the network team find whose traffic fills the uplinks, and move it or the job.",
    ),
    Mechanism(
        name="link-errors",
        title="a link has errors, and the run waits for what is sent again",
        origin=Origin("fabric", ("port", "node", "leaf", "spine"), owner="network"),
        slows=("late-exchange", "slow-step"),
        shows={
            "symbol-errors": 1.5,
            "link-recoveries": 0.8,
            "link-down": 0.8,
            "slow-link": 1.5,
            "resent-packets": 1.0,
            "damaged-packets": 1.2,
        },
        decides="Symbol errors and link recoveries on one port, rising exactly in the slow stretches.",
        action="Clean or replace cable and module of the port; take its node out if that has to wait.",
    ),
    Mechanism(
        name="pool-path",
        title="a path between inference pools is slow, and training waits for samples",
        origin=Origin("fabric", ("port", "spine", "leaf", "node"), owner="network"),
        reach="everyone",
        slows=("late-data", "slow-step"),
        shows={"symbol-errors": 1.0, "link-recoveries": 0.5, "link-down": 0.5, "slow-transfer": 1.8},
        against={"full-cache": 1.0, "slow-reads": 0.7},
        needs=("slow-transfer",),
        decides="Transfer times by pair of engines: a slow row or column is a port, a slow diagonal a spine.",
        action="Route the pools around the port or spine; have the network team test the path.",
    ),
    Mechanism(
        name="gpu-throttle",
        title="one GPU throttles alone",
        origin=Origin("gpu", ("gpu",)),
        shows={
            "thermal-throttle": 1.0,
            "low-clock": 0.6,
            "hot-gpu": 0.6,
            "power-throttle": 0.6,
            "low-power": 0.5,
            "low-limit": 1.0,
        },
        against={"slow-fan": 0.7, "failed-supply": 0.7, "warm-inlet": 0.5},
        needs=("thermal-throttle", "power-throttle", "low-clock", "low-limit"),
        decides="Clock, power and temperature of this GPU beside those of its node, at the same load.",
        action="Drain the node, holdfast replace RUN NODE; have heatsink and board of the GPU checked.",
    ),
    Mechanism(
        name="node-cooling",
        title="a node's own cooling fails, and its GPUs throttle",
        origin=Origin("cooling", ("node",), owner="hardware"),
        shows={"slow-fan": 1.5, "thermal-throttle": 0.9, "hot-gpu": 0.7, "low-clock": 0.4},
        against={"failed-supply": 0.7, "low-flow": 0.7, "warm-supply": 0.7, "warm-inlet": 0.3},
        needs=("hot-gpu", "thermal-throttle"),
        decides="Fans and cold plate of the node: all its GPUs are hot, and its rack is not.",
        action="Drain the node, holdfast replace RUN NODE; have fans, filters and cold plate checked.",
    ),
    Mechanism(
        name="air-cooling",
        title="air comes in too warm, and GPUs throttle",
        origin=Origin(
            "cooling", ("rack", "circuit", "loop", "run"), seam="facilities-ml", owner="facilities"
        ),
        shows={"warm-inlet": 1.5, "thermal-throttle": 0.8, "hot-gpu": 0.6, "low-clock": 0.4},
        against={"low-flow": 1.0, "warm-supply": 1.0, "failed-supply": 0.7, "low-power": 0.5},
        needs=("hot-gpu", "thermal-throttle", "warm-inlet"),
        decides="Inlet temperatures of the rack's nodes, against those of the racks beside it.",
        action="Have facilities check air conditioning, blanking panels and doors of the rack.",
    ),
    Mechanism(
        name="power-cap",
        title="the power of many GPUs is held down",
        origin=Origin("power", ("run", "rack", "other"), seam="facilities-ml", owner="facilities"),
        shows={"low-limit": 1.8, "low-power": 0.8, "low-clock": 0.4, "power-throttle": 0.2},
        against={"failed-supply": 1.0, "hot-gpu": 0.5, "thermal-throttle": 0.7},
        needs=("low-limit", "low-power"),
        decides="The power limit of the GPUs (nvidia-smi -q -d POWER), and who set it when.",
        action="Ask facilities and platform who capped power and until when; plan with the slower run.",
    ),
    Mechanism(
        name="node-power",
        title="a node has lost a power supply, and its GPUs are braked",
        origin=Origin("power", ("node",), owner="hardware"),
        shows={
            "failed-supply": 1.5,
            "low-power": 0.8,
            "power-throttle": 0.8,
            "low-clock": 0.4,
            "low-limit": 0.5,
        },
        against={"hot-gpu": 0.5, "thermal-throttle": 0.7},
        needs=("failed-supply", "low-power", "power-throttle"),
        decides="The health of the node's own power supplies, and whether its GPUs show a power brake.",
        action="Replace the supply; take the node out of the run until then: holdfast replace RUN NODE.",
    ),
    Mechanism(
        name="nvlink",
        title="an NVLink is down, has errors or is slow",
        origin=Origin("gpu", ("gpu", "node"), owner="hardware"),
        slows=("late-compute", "late-exchange", "slow-step"),
        shows={"nvlink-errors": 1.8, "nvlink-xid": 1.5, "slow-nvlink": 1.2},
        decides="nvidia-smi nvlink -s and -e of the node: which link is down, or counts errors.",
        action="Drain the node, holdfast replace RUN NODE; reset the GPU, then have its links tested.",
    ),
    Mechanism(
        name="local-disk",
        title="a local disk is slow or full",
        origin=Origin("storage", ("node",), owner="platform"),
        slows=("late-data", "late-compute", "slow-step", "slow-checkpoint"),
        shows={"slow-disk": 1.5, "busy-disk": 0.8, "full-disk": 1.8, "io-pressure": 0.8},
        against={"swapping": 1.2, "resent-rpcs": 0.5},
        needs=("slow-disk", "busy-disk", "full-disk"),
        decides="Time per request and use of the disk (iostat -x 1), and what writes to it.",
        action="Free space or stop what fills the disk; have the drive checked (nvme smart-log).",
    ),
    Mechanism(
        name="memory-pressure",
        title="a host is short of memory, and swaps or reclaims",
        origin=Origin("host", ("node", "run"), owner="platform"),
        slows=("late-compute", "late-data", "slow-step"),
        shows={
            "memory-pressure": 1.5,
            "swapping": 1.5,
            "low-memory": 0.8,
            "thrashing": 0.6,
            "killed": 0.8,
        },
        needs=("memory-pressure", "swapping", "low-memory", "killed"),
        decides="Which processes hold the memory (smem, ps), and what the kernel reclaims.",
        action="Free memory on the host: fewer loader workers, or whatever else runs there.",
    ),
    Mechanism(
        name="name-service",
        title="names or users take long to look up",
        origin=Origin("host", ("run",), seam="runtime-schedule-finance", owner="platform"),
        reach="everyone",
        slows=("late-data", "slow-step"),
        shows={"slow-names": 1.8, "full-table": 1.2},
        decides="The time of a lookup (getent hosts, getent passwd) on a late node.",
        action="Have the platform team check DNS and directory servers, and the hosts' caches.",
    ),
    Mechanism(
        name="rollout",
        title="other software runs since a change",
        origin=Origin("software", ("run",), seam="runtime-schedule-finance"),
        verdict="not-hardware",
        reach="everyone",
        slows=("late-compute", "late-exchange", "late-data", "slow-step"),
        shows={"changed": 1.4},
        against={
            "low-limit": 1.0,
            "thermal-throttle": 0.7,
            "symbol-errors": 0.7,
            "resent-packets": 0.5,
            "swapping": 0.7,
            "cpu-pressure": 0.4,
            "slow-reads": 0.7,
        },
        leads_s=900.0,
        rivals=("low-clock", "cpu-pressure"),
        decides="The same run with what was changed back as it was: image, driver, NCCL, configuration.",
        action="Roll the change back on a few nodes, and compare their steps with the others'.",
    ),
    Mechanism(
        name="fragmentation",
        title="the GPUs' memory is fragmented, and steps become longer and longer",
        origin=Origin("software", ("run",), seam="runtime-schedule-finance"),
        verdict="not-hardware",
        reach="everyone",
        slows=("late-compute", "wandering", "slow-step", "creeping"),
        shows={"alloc-retries": 1.8, "full-buffer": 0.8, "creeping": 0.5},
        needs=("alloc-retries", "full-buffer"),
        decides="num_alloc_retries and reserved memory by torch.cuda.memory_stats: they grow with the steps.",
        action="Restart from the last checkpoint; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    ),
    Mechanism(
        name="pcie-width",
        title="a GPU's PCIe link has trained down",
        origin=Origin("host", ("gpu",)),
        shows={"narrow-bus": 2.0, "bus-replays": 0.8},
        against={"thermal-throttle": 0.5, "power-throttle": 0.5},
        decides="The link's width against what the device has, and a replay counter that rises.",
        action="Drain the node at the next chance; reseat the GPU or its riser, and reset the link.",
    ),
    Mechanism(
        name="memory-errors",
        title="a GPU's memory degrades behind ECC",
        origin=Origin("gpu", ("gpu",)),
        shows={
            "memory-errors": 1.8,
            "uncorrected-errors": 1.5,
            "remapped-rows": 0.8,
            "lost-rows": 1.0,
            "memory-xid": 1.0,
            "xid": 0.4,
        },
        needs=("memory-errors", "uncorrected-errors", "remapped-rows", "lost-rows", "memory-xid"),
        decides="Corrected errors that keep rising on one GPU, and rows remapped there.",
        action="Drain the node before the GPU dies: holdfast replace RUN NODE. Then have the GPU tested.",
    ),
    Mechanism(
        name="gpu-fault",
        title="a GPU's driver reported an error",
        origin=Origin("gpu", ("gpu",)),
        shows={"xid": 1.5, "memory-xid": 0.7, "nvlink-xid": 0.7},
        against={"memory-errors": 0.5, "nvlink-errors": 0.5},
        decides="The XID in the kernel log, and whether it comes back after a reset.",
        action="Do what the XID's policy says; drain the node meanwhile: holdfast replace RUN NODE.",
    ),
    Mechanism(
        name="cpu-contention",
        title="something else takes the hosts' processors",
        origin=Origin("host", ("rack", "node", "run"), owner="platform"),
        slows=("late-compute", "wandering", "slow-step"),
        shows={"cpu-pressure": 1.6},
        rivals=("late-data",),
        against={"low-clock": 0.7, "power-throttle": 0.7, "thermal-throttle": 0.7, "swapping": 1.0},
        decides="CPU pressure on exactly the late nodes, and which processes make it.",
        action="Find and move the other processes; pin the members' processors.",
    ),
    Mechanism(
        name="storage-slow",
        title="a filer is failing, and its clients wait for their data",
        origin=Origin("storage", ("mount",), seam="runtime-schedule-finance"),
        slows=("late-data", "slow-step", "slow-checkpoint"),
        shows={"slow-reads": 1.6, "resent-calls": 0.8, "slow-writes": 0.3},
        follows={"resent-rpcs": 1.2, "slow-lustre": 1.5, "io-pressure": 0.8},
        against={
            "slow-transfer": 0.7,
            "busy-disk": 0.7,
            "slow-disk": 0.7,
            "full-disk": 1.5,
            "busy-mount": 0.7,
            "swapping": 1.0,
        },
        needs=("slow-reads", "resent-rpcs", "slow-lustre", "io-pressure"),
        decides="Retransmissions and response times on one mount: its clients, and only they, are late.",
        action="Have the storage team check the filer's controllers; read from another copy meanwhile.",
    ),
    Mechanism(
        name="storage-crowded",
        title="others write to the same filer, and checkpoints take longer",
        origin=Origin("storage", ("mount",), seam="runtime-schedule-finance"),
        reach="stall",
        slows=("slow-checkpoint", "late-data", "slow-step"),
        shows={"slow-writes": 1.8, "slow-reads": 0.8, "busy-mount": 1.2},
        needs=("slow-writes", "busy-mount"),
        against={"resent-calls": 1.6, "resent-rpcs": 1.0},
        decides="Response times of writes on one mount, without retransmissions, and its other clients.",
        action="Have the storage team find the other writers and limit them; checkpoint elsewhere meanwhile.",
    ),
    Mechanism(
        name="checkpoint-cadence",
        title="checkpoints are more frequent or larger than storage can take",
        origin=Origin("runtime", ("run",), seam="runtime-schedule-finance", owner="scheduling"),
        reach="stall",
        slows=("frequent-checkpoints", "slow-checkpoint"),
        shows={"frequent-checkpoints": 1.8},
        against={"slow-writes": 1.0},
        decisions=("set-cadence",),
        decides="Interval and size of the checkpoints before and after the change; storage is as fast.",
        action="Go back to the former interval, or to what `holdfast plan cadence` computes.",
    ),
    Mechanism(
        name="garbage-collection",
        title="members collect garbage each at its own time",
        origin=Origin("software", ("run",), seam="runtime-schedule-finance"),
        verdict="not-hardware",
        reach="wandering",
        slows=("wandering", "slow-step"),
        shows={"collecting": 1.8, "wandering": 0.7},
        against={"alloc-retries": 0.7},
        needs=("collecting", "wandering"),
        decides="Who is late changes from step to step, and collecting in step with each other ends it.",
        action="Collect at the same step everywhere (gc.disable, and gc.collect every so many steps).",
    ),
    Mechanism(
        name="sequence-length",
        title="batches differ in what they cost, and another member has the long ones each time",
        origin=Origin("software", ("run",), seam="runtime-schedule-finance"),
        verdict="not-hardware",
        reach="wandering",
        slows=("wandering", "slow-step"),
        # Less than it takes to be named: that nobody collects garbage has to be known besides.
        shows={"wandering": 1.3},
        against={"collecting": 1.5, "alloc-retries": 1.5, "cpu-pressure": 1.2},
        clears={"collecting": 0.5},
        rivals=("collecting", "alloc-retries"),
        decides="Who is slow follows the data: the same lane is slow on whatever member it is computed.",
        action="Deal sequences to members by what they cost rather than by number.",
    ),
    Mechanism(
        name="data-loader",
        title="the data loader does not keep up",
        origin=Origin("software", ("run",), seam="runtime-schedule-finance"),
        verdict="not-hardware",
        reach="everyone",
        slows=("late-data", "slow-step"),
        follows={"cpu-pressure": 0.8, "late-data": 0.6},
        against={
            "slow-reads": 1.5,
            "resent-calls": 0.8,
            "slow-transfer": 1.5,
            "full-cache": 1.5,
            "io-pressure": 0.8,
            "slow-names": 0.8,
        },
        clears={"slow-reads": 0.5},
        rivals=("slow-reads", "cpu-pressure"),
        needs=("late-data",),
        decides="Response times of reads are as before, CPU pressure is not, and every mount is alike.",
        action="Look at the last change of the loader; give it more workers or prefetch more.",
    ),
    Mechanism(
        name="pipeline-stage",
        title="one stage of the pipeline has more to do than the others",
        origin=Origin("software", ("run",), seam="runtime-schedule-finance"),
        verdict="not-hardware",
        shows={"late-stage": 1.5},
        against={
            "low-clock": 0.7,
            "thermal-throttle": 0.7,
            "power-throttle": 0.7,
            "cpu-pressure": 0.7,
            "wandering": 1.0,
        },
        needs=("late-compute",),
        rivals=("low-clock", "cpu-pressure"),
        decisions=("resplit",),
        decides="The slow members share a stage and nothing else; their clocks are as usual.",
        action="Split the layers by their measured cost instead of by number.",
    ),
    Mechanism(
        name="routing-imbalance",
        title="the router prefers some engines, and training waits for their samples",
        origin=Origin("pool", ("router",), owner="serving"),
        reach="everyone",
        slows=("late-data", "slow-step"),
        follows={"full-cache": 1.5, "slow-first-token": 0.5},
        uneven=("full-cache", "slow-first-token"),
        against={"slow-transfer": 1.2},
        needs=("full-cache",),
        decides="Cache use by engine and transfer times by pair: the load is uneven, no link is slow.",
        action="Have the serving team reset the router's weights.",
    ),
    Mechanism(
        name="slow-node",
        title="one member is late, and nothing beneath it shows why",
        origin=Origin("host", ("node", "member"), owner="hardware"),
        slows=("late-compute", "late-exchange", "slow-step"),
        follows={"late-compute": 0.4, "late-exchange": 0.4},
        rivals=("low-clock", "cpu-pressure", "memory-pressure", "narrow-bus"),
        against={"wandering": 0.7},
        needs=("late-compute", "late-exchange"),
        decides="The same lanes on another node: if they are quick there, it is the node.",
        action="Drain the node, holdfast replace RUN NODE, and test it.",
    ),
)
