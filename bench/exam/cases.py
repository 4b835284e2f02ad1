"""The cases: what goes wrong, where, how fast, and on which cluster; and hours in which nothing is wrong."""

from bench.exam import faults, hours
from bench.exam.plan import Case, Inject, Onset, Spec

SMALL = Spec(nodes=8, member_per="node", step_s=4.0)
USUAL = Spec(nodes=16, run_nodes=12, step_s=6.0, scrape_s=(30.0, 30.0, 10.0))
TOLD = Spec(nodes=16, told=True, step_s=5.0, scrape_s=(30.0, 15.0, 10.0))
AIR = Spec(nodes=12, cooling="air", fabric="roce", names="fqdn", scrape_s=(30.0, 15.0, 10.0))
CLOUD = Spec(
    nodes=8, cooling="air", fabric="roce", names="address", member_per="node", scrape_s=(30.0, 30.0, 15.0)
)
LARGE = Spec(nodes=32, run_nodes=28, rail=True, member_per="node", scrape_s=(30.0, 30.0, 15.0), step_s=9.0)
HUGE = Spec(nodes=64, run_nodes=56, member_per="node", scrape_s=(60.0, 60.0, 15.0), step_s=11.0)
AMD = Spec(nodes=8, chip="mi300x", cooling="air", fabric="roce", scrape_s=(30.0, 15.0, 10.0))
PAUSES = Spec(nodes=12, eval_every=60, eval_in_step=True, save_every=40, step_s=5.0)
BETWEEN = Spec(nodes=12, eval_every=50, save_every=60, step_s=5.0, told=True)
DECLARED = Spec(nodes=12, reference=True, history=True, step_s=5.0)
POOLS = Spec(nodes=12, run_nodes=8, pools=True, step_s=5.0)


def _trouble(name: str, spec: Spec, inject: Inject, onset: Onset = "sudden", *, quick: bool = False) -> Case:
    return Case(name=name, spec=spec, inject=inject, onset=onset, quick=quick)


def _hour(name: str, spec: Spec, inject: Inject, *tolerated: str, quick: bool = False) -> Case:
    return Case(
        name=f"healthy/{name}", spec=spec, inject=inject, healthy=True, tolerated=tolerated, quick=quick
    )


TROUBLE: tuple[Case, ...] = (
    # Heat and power.
    _trouble("gpu-throttle/paste", USUAL, faults.gpu_throttle(), quick=True),
    _trouble("gpu-throttle/board", SMALL, faults.gpu_power()),
    _trouble("gpu-throttle/slowly", AIR, faults.gpu_throttle(2.3), "hours"),
    _trouble("gpu-throttle/from-the-start", DECLARED, faults.gpu_throttle(), "start"),
    _trouble("gpu-throttle/amd", AMD, faults.gpu_throttle(2.6)),
    _trouble("node-cooling/fans", AIR, faults.node_cooling(), quick=True),
    _trouble("node-cooling/plate", USUAL, faults.node_cooling(), "ramp"),
    _trouble("node-cooling/amd", AMD, faults.node_cooling(0.36), "ramp"),
    _trouble("air-cooling/rack", AIR, faults.air_cooling(), "ramp"),
    _trouble("air-cooling/site", CLOUD, faults.air_cooling(site=True), "ramp"),
    _trouble("coolant-flow/pump", USUAL, faults.coolant_flow(), quick=True),
    _trouble("coolant-flow/filter", HUGE, faults.coolant_flow(0.2), "hours"),
    _trouble("coolant-supply/chiller", TOLD, faults.coolant_supply(), "ramp"),
    _trouble("coolant-supply/circuit", LARGE, faults.coolant_supply(circuit=True), "ramp"),
    _trouble("power-brake/shelf", TOLD, faults.power_brake(), quick=True),
    _trouble("power-brake/before", DECLARED, faults.power_brake(), "before"),
    _trouble("power-cap/site", USUAL, faults.power_cap(), quick=True),
    _trouble("power-cap/large", LARGE, faults.power_cap(400.0), "ramp"),
    _trouble("power-cap/rack", PAUSES, faults.power_cap(380.0, whole=False)),
    _trouble("node-power/supply", SMALL, faults.node_power()),
    _trouble("node-power/air", AIR, faults.node_power(0.6)),
    # Fabric.
    _trouble("link-errors/port", USUAL, faults.link_errors(), quick=True),
    _trouble("link-errors/told", TOLD, faults.link_errors(0.5, 120.0), "ramp"),
    _trouble("link-errors/roce", AIR, faults.link_errors(0.4, 60.0)),
    _trouble("link-errors/trained-down", BETWEEN, faults.port_downgrade()),
    _trouble("link-errors/leaf", TOLD, faults.switch_errors()),
    _trouble("link-errors/spine", USUAL, faults.switch_errors(spine=True)),
    _trouble("link-errors/huge", HUGE, faults.link_errors(0.35, 900.0)),
    _trouble("leaf-congestion/leaf", USUAL, faults.leaf_congestion(), quick=True),
    _trouble("leaf-congestion/roce", AIR, faults.leaf_congestion(0.45)),
    _trouble("leaf-congestion/slowly", TOLD, faults.leaf_congestion(0.4), "hours"),
    _trouble("leaf-congestion/spine", USUAL, faults.leaf_congestion(spine=True)),
    _trouble("leaf-congestion/rail", LARGE, faults.rail_congestion()),
    _trouble("nvlink/crc", TOLD, faults.nvlink()),
    _trouble("nvlink/xid-74", SMALL, faults.nvlink(0.35, errors=False)),
    _trouble("pool-path/pair", POOLS, faults.pool_path()),
    # GPUs and buses.
    _trouble("pcie-width/narrow", PAUSES, faults.pcie(width=4.0), quick=True),
    _trouble("pcie-width/generation", TOLD, faults.pcie(gen=3.0)),
    _trouble("pcie-width/amd", AMD, faults.pcie(gen=3.0)),
    _trouble("pcie-width/from-the-start", DECLARED, faults.pcie(width=2.0), "start"),
    _trouble("memory-errors/storm", USUAL, faults.memory_errors()),
    _trouble("memory-errors/slowly", TOLD, faults.memory_errors(60.0, 1.2), "hours"),
    _trouble("gpu-fault/xid-62", TOLD, faults.gpu_fault()),
    _trouble("gpu-fault/cloud", CLOUD, faults.gpu_fault(119, 1.3)),
    # Hosts.
    _trouble("cpu-contention/node", SMALL, faults.cpu_contention(), quick=True),
    _trouble("cpu-contention/rack", USUAL, faults.cpu_contention(3.0, nodes=4)),
    _trouble("cpu-contention/run", CLOUD, faults.cpu_contention(3.0, nodes=64)),
    _trouble("memory-pressure/swap", CLOUD, faults.memory_pressure(), quick=True),
    _trouble("memory-pressure/leak", USUAL, faults.memory_pressure(), "hours"),
    _trouble("local-disk/slow", USUAL, faults.local_disk(), quick=True),
    _trouble("local-disk/full", AIR, faults.local_disk(full=True), "ramp"),
    _trouble("slow-node/bios", TOLD, faults.slow_node()),
    _trouble("slow-node/numa", SMALL, faults.slow_node(1.3)),
    _trouble("name-service/dns", USUAL, faults.name_service()),
    _trouble("name-service/cloud", CLOUD, faults.name_service(14.0)),
    # Storage.
    _trouble("storage-slow/filer", TOLD, faults.storage_slow(), quick=True),
    _trouble("storage-slow/quiet", AIR, faults.storage_slow(retransmit=False), "ramp"),
    _trouble("storage-crowded/other-job", USUAL, faults.storage_crowded()),
    # The script.
    _trouble("checkpoint-cadence/often", PAUSES, faults.checkpoint_cadence()),
    _trouble("garbage-collection/growing", TOLD, faults.garbage_collection(), "ramp"),
    _trouble("garbage-collection/nccl", USUAL, faults.garbage_collection(2.0)),
    _trouble("sequence-length/uneven", TOLD, faults.sequence_length()),
    _trouble("data-loader/workers", USUAL, faults.data_loader()),
    _trouble("data-loader/told", BETWEEN, faults.data_loader(1.0)),
    _trouble("pipeline-stage/last", TOLD, faults.pipeline_stage()),
    _trouble("rollout/driver", DECLARED, faults.rollout(), quick=True),
    _trouble("rollout/kernel", AIR, faults.rollout(1.2, by="kernel")),
    _trouble("rollout/image", SMALL, faults.rollout(1.18, by="image")),
    _trouble("fragmentation/growing", TOLD, faults.fragmentation(), "hours"),
    _trouble("hang/xid-79", SMALL, faults.hang(xid=79, lost=True), quick=True),
    _trouble("hang/collective", USUAL, faults.hang()),
    _trouble("hang/cloud", CLOUD, faults.hang(data=True)),
    _trouble("hang/large", LARGE, faults.hang(xid=119)),
    # Two at once, in different parts of the step so that both are felt.
    _trouble("two/throttle-and-leaf", USUAL, faults.both(faults.gpu_throttle(), faults.leaf_congestion(0.4))),
    _trouble("two/cpu-and-port", TOLD, faults.both(faults.cpu_contention(), faults.link_errors(0.45))),
    _trouble("two/storage-and-port", TOLD, faults.both(faults.storage_slow(), faults.link_errors(0.4))),
    _trouble("two/cap-and-loader", USUAL, faults.both(faults.power_cap(), faults.data_loader())),
    _trouble("two/pcie-and-nvlink", TOLD, faults.both(faults.pcie(width=4.0), faults.nvlink(0.35))),
    _trouble("two/flow-and-crowd", USUAL, faults.both(faults.coolant_flow(), faults.storage_crowded())),
    # With things that are wrong elsewhere, or were before.
    _trouble("local-disk/decoys", USUAL, faults.both(faults.decoys(), faults.local_disk())),
    _trouble("gpu-throttle/decoys", LARGE, faults.both(faults.decoys(), faults.gpu_throttle())),
)
HEALTHY: tuple[Case, ...] = (
    _hour("steady", USUAL, faults.nothing(), quick=True),
    _hour("huge", HUGE, faults.nothing()),
    _hour("amd", AMD, faults.nothing()),
    _hour("pauses-in-steps", PAUSES, faults.nothing()),
    _hour("pauses-between-steps", BETWEEN, faults.nothing()),
    _hour("start-up", TOLD, hours.start_up()),
    _hour("longer-sequences", SMALL, hours.longer_sequences(), "sequence-length", "rollout", "unknown"),
    _hour("warm-day", AIR, hours.warm_day()),
    _hour("neighbours-start", USUAL, hours.neighbours_start()),
    _hour("node-replaced", USUAL, hours.node_replaced()),
    _hour("exporters-updated", TOLD, hours.exporters_updated()),
    _hour("prometheus-down", CLOUD, hours.prometheus_down()),
    _hour("motley-gpus", LARGE, hours.motley_gpus()),
    _hour("blips", USUAL, hours.blips()),
    _hour("backup", BETWEEN, hours.backup()),
    _hour("skewed-clock", AIR, hours.skewed_clock()),
    _hour("uneven-steps", USUAL, hours.uneven_steps()),
    _hour("decoys", USUAL, faults.decoys()),
)
CASES = TROUBLE + HEALTHY
