"""The known ways in which something slows a run, as data: what shows at the cause, what follows, who is late.

A mechanism is no more than what an experienced engineer would look for. Weights are in bans: an observation
of weight 1 makes the cause ten times as likely, against any other, as it was without it.
"""

from typing import Literal

import msgspec

from holdfast.diagnose.incident import Verdict
from holdfast.signals.domains import Domain, Seam
from holdfast.topology.graph import Kind

Reach = Literal["beneath", "everyone", "wandering", "stall"]
"""Who is slowed: the members that depend on the cause and no others; all of them; another one each time; or
nobody's step, but the time between steps."""


class Mechanism(msgspec.Struct, frozen=True, kw_only=True):
    """One way to be slow.

    owner     the team that can mend it; empty: whoever owns the subject
    kinds     what kind of subject it begins at
    shows     signs at the cause, or at all of what it consists of
    follows   signs further down, at some of what depends on it
    uneven    of these, that only some of what depends on it shows them is the point
    against   signs anywhere near it that speak for something else
    slows     the symptoms in the run that it explains
    clears    signs that are looked for and not found, where their absence says something
    needs     without one of these it is not thought of; those in `shows` where empty
    decisions what somebody had decided just before
    decides   the observation that would settle it
    """

    name: str
    title: str
    domain: Domain
    seam: Seam
    kinds: tuple[Kind, ...]
    reach: Reach
    slows: tuple[str, ...]
    decides: str
    action: str
    owner: str = ""
    verdict: Verdict = "cause"
    shows: dict[str, float] = {}
    follows: dict[str, float] = {}
    uneven: tuple[str, ...] = ()
    against: dict[str, float] = {}
    clears: dict[str, float] = {}
    needs: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()


MECHANISMS: tuple[Mechanism, ...] = (
    Mechanism(
        name="coolant-flow",
        title="coolant flow is lost, and its GPUs throttle",
        domain="cooling",
        seam="facilities-ml",
        kinds=("loop",),
        reach="beneath",
        slows=("late-compute", "slow-step"),
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
        domain="cooling",
        seam="facilities-ml",
        kinds=("circuit", "loop"),
        reach="beneath",
        slows=("late-compute", "slow-step"),
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
        domain="power",
        seam="facilities-ml",
        kinds=("shelf",),
        reach="beneath",
        slows=("late-compute", "slow-step"),
        shows={"failed-supply": 2.0},
        follows={"power-throttle": 1.2, "low-clock": 0.3},
        against={"hot-gpu": 0.5, "thermal-throttle": 0.7},
        needs=("failed-supply", "power-throttle", "low-clock"),
        decides="Power violation time and the health of the shelf's supplies, against temperature.",
        action="Replace the supplies; until then take the rack out of the run or cap its power evenly.",
    ),
    Mechanism(
        name="leaf-congestion",
        title="a leaf switch's uplinks are crowded",
        domain="fabric",
        seam="gpu-fabric-pool",
        kinds=("leaf", "spine"),
        reach="beneath",
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
        domain="fabric",
        seam="gpu-fabric-pool",
        kinds=("port",),
        reach="beneath",
        slows=("late-exchange", "slow-step"),
        shows={"symbol-errors": 1.5, "link-recoveries": 0.8, "link-down": 0.8, "slow-link": 1.5},
        decides="Symbol errors and link recoveries on one port, rising exactly in the slow stretches.",
        action="Clean or replace cable and module of the port; take its node out if that has to wait.",
    ),
    Mechanism(
        name="pool-path",
        title="a path between inference pools is slow, and training waits for samples",
        domain="fabric",
        seam="gpu-fabric-pool",
        kinds=("port", "spine", "leaf", "node"),
        owner="network",
        reach="everyone",
        slows=("late-data", "slow-step"),
        shows={"symbol-errors": 1.0, "link-recoveries": 0.5, "link-down": 0.5, "slow-transfer": 1.8},
        against={"full-cache": 1.0, "slow-reads": 0.7},
        needs=("slow-transfer",),
        decides="Transfer times by pair of engines: a slow row or column is a port, a slow diagonal a spine.",
        action="Route the pools around the port or spine; have the network team test the path.",
    ),
    Mechanism(
        name="pcie-width",
        title="a GPU's PCIe link has trained down",
        domain="host",
        seam="gpu-fabric-pool",
        kinds=("gpu",),
        reach="beneath",
        slows=("late-compute", "slow-step"),
        shows={"narrow-bus": 2.0, "bus-replays": 0.8},
        against={"thermal-throttle": 0.5, "power-throttle": 0.5},
        decides="The link's width against what the device has, and a replay counter that rises.",
        action="Drain the node at the next chance; reseat the GPU or its riser, and reset the link.",
    ),
    Mechanism(
        name="memory-errors",
        title="a GPU's memory degrades behind ECC",
        domain="gpu",
        seam="gpu-fabric-pool",
        kinds=("gpu",),
        reach="beneath",
        slows=("late-compute", "slow-step"),
        shows={"memory-errors": 1.8, "remapped-rows": 0.6, "lost-rows": 0.8, "xid": 0.4},
        needs=("memory-errors", "remapped-rows", "lost-rows"),
        decides="Corrected errors that keep rising on one GPU, and rows remapped there.",
        action="Drain the node before the GPU dies: holdfast replace RUN NODE. Then have the GPU tested.",
    ),
    Mechanism(
        name="gpu-fault",
        title="a GPU's driver reported an error",
        domain="gpu",
        seam="gpu-fabric-pool",
        kinds=("gpu",),
        reach="beneath",
        slows=("late-compute", "slow-step"),
        shows={"xid": 1.5, "nvlink-errors": 1.2},
        against={"memory-errors": 0.5},
        decides="The XID in the kernel log, and whether it comes back after a reset.",
        action="Do what the XID's policy says; drain the node meanwhile: holdfast replace RUN NODE.",
    ),
    Mechanism(
        name="cpu-contention",
        title="something else takes the hosts' processors",
        domain="host",
        seam="gpu-fabric-pool",
        kinds=("rack", "node"),
        owner="platform",
        reach="beneath",
        slows=("late-compute", "slow-step"),
        shows={"cpu-pressure": 1.6},
        against={"low-clock": 0.7, "power-throttle": 0.7, "thermal-throttle": 0.7},
        decides="CPU pressure on exactly the late nodes, and which processes make it.",
        action="Find and move the other processes; pin the members' processors.",
    ),
    Mechanism(
        name="storage-slow",
        title="a filer is failing, and its clients wait for their data",
        domain="storage",
        seam="runtime-schedule-finance",
        kinds=("mount",),
        reach="beneath",
        slows=("late-data", "slow-step", "slow-checkpoint"),
        shows={"slow-reads": 1.6, "resent-calls": 0.8, "slow-writes": 0.3},
        against={"slow-transfer": 0.7},
        needs=("slow-reads",),
        decides="Retransmissions and response times on one mount: its clients, and only they, are late.",
        action="Have the storage team check the filer's controllers; read from another copy meanwhile.",
    ),
    Mechanism(
        name="storage-crowded",
        title="others write to the same filer, and checkpoints take longer",
        domain="storage",
        seam="runtime-schedule-finance",
        kinds=("mount",),
        reach="stall",
        slows=("slow-checkpoint",),
        shows={"slow-writes": 1.8},
        against={"slow-reads": 0.8, "resent-calls": 0.8},
        decides="Response times of writes on one mount, without retransmissions, and its other clients.",
        action="Have the storage team find the other writers and limit them; checkpoint elsewhere meanwhile.",
    ),
    Mechanism(
        name="checkpoint-cadence",
        title="checkpoints are more frequent or larger than storage can take",
        domain="runtime",
        seam="runtime-schedule-finance",
        kinds=("run",),
        owner="scheduling",
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
        domain="software",
        seam="runtime-schedule-finance",
        kinds=("run",),
        verdict="not-hardware",
        reach="wandering",
        slows=("wandering", "slow-step"),
        shows={"collecting": 1.5, "wandering": 0.7},
        needs=("collecting",),
        decides="Who is late changes from step to step, and collecting in step with each other ends it.",
        action="Collect at the same step everywhere (gc.disable, and gc.collect every so many steps).",
    ),
    Mechanism(
        name="sequence-length",
        title="batches differ in what they cost, and another member has the long ones each time",
        domain="software",
        seam="runtime-schedule-finance",
        kinds=("run",),
        verdict="not-hardware",
        reach="wandering",
        slows=("wandering", "slow-step"),
        shows={"wandering": 1.5},
        against={"collecting": 1.5},
        decides="Who is slow follows the data: the same lane is slow on whatever member it is computed.",
        action="Deal sequences to members by what they cost rather than by number.",
    ),
    Mechanism(
        name="data-loader",
        title="the data loader does not keep up",
        domain="software",
        seam="runtime-schedule-finance",
        kinds=("run",),
        verdict="not-hardware",
        reach="everyone",
        slows=("late-data", "slow-step"),
        follows={"cpu-pressure": 0.8, "late-data": 0.6},
        against={"slow-reads": 1.5, "resent-calls": 0.8, "slow-transfer": 1.5, "full-cache": 1.5},
        clears={"slow-reads": 0.5},
        needs=("late-data",),
        decides="Response times of reads are as before, CPU pressure is not, and every mount is alike.",
        action="Look at the last change of the loader; give it more workers or prefetch more.",
    ),
    Mechanism(
        name="pipeline-stage",
        title="one stage of the pipeline has more to do than the others",
        domain="software",
        seam="runtime-schedule-finance",
        kinds=("run",),
        verdict="not-hardware",
        reach="beneath",
        slows=("late-compute", "slow-step"),
        against={"low-clock": 0.7, "thermal-throttle": 0.7, "power-throttle": 0.7, "cpu-pressure": 0.7},
        needs=("late-compute",),
        decisions=("resplit",),
        decides="The slow members share a stage and nothing else; their clocks are as usual.",
        action="Split the layers by their measured cost instead of by number.",
    ),
    Mechanism(
        name="routing-imbalance",
        title="the router prefers some engines, and training waits for their samples",
        domain="pool",
        seam="gpu-fabric-pool",
        kinds=("router",),
        owner="serving",
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
        domain="host",
        seam="gpu-fabric-pool",
        kinds=("node", "member"),
        owner="hardware",
        reach="beneath",
        slows=("late-compute", "late-exchange", "slow-step"),
        follows={"late-compute": 0.4, "late-exchange": 0.4},
        needs=("late-compute", "late-exchange"),
        decides="The same lanes on another node: if they are quick there, it is the node.",
        action="Drain the node, holdfast replace RUN NODE, and test it.",
    ),
)
