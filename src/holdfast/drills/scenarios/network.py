"""Fabric: causes in switches, cables and ports that show in all members' reduction, or in another pool."""

import numpy as np

from holdfast.drills.fabric import RETRANSMIT_S
from holdfast.drills.levers import POOL_ENGINES
from holdfast.drills.pools import spine_of
from holdfast.drills.scenarios.stage import Draw, Plot, Stage, at_port, members
from holdfast.drills.scenarios.truth import MetricTrace
from holdfast.twin.cluster import name, port_name, spine_name

PREFILL_SHARE, DECODE_SHARE, SPINE_SHARE = (0.25, 0.4), (0.06, 0.085), (0.12, 0.18)
"""The remaining bandwidth of a path: the fewer pairs use it, the worse it must be to show."""


def _congestion(stage: Stage) -> Plot:
    leaf = stage.pick("leaf")
    affected = stage.members_on("leaf", leaf)
    uplink = stage.turn("uplink", [leaf], stage.uniform(0.35, 0.55), over_s=stage.uniform(20, 90))
    return Plot(
        subject=name("leaf", leaf),
        turned=(uplink,),
        affected=affected,
        traces=(
            MetricTrace("infiniband_switch_port_transmit_wait_total", (name("leaf", leaf),)),
            MetricTrace(
                "node_infiniband_port_transmit_wait_total",
                tuple(port_name(node, gpu) for node in affected for gpu in range(stage.layout.gpus_per_node)),
            ),
        ),
        surface=_slow_exchange(affected),
    )


def _flap(stage: Stage) -> Plot:
    node, gpu = stage.pick_gpu()
    there = stage.bursts(on_s=stage.uniform(60, 120), off_s=stage.uniform(20, 50))
    port = [stage.gpu_number(node, gpu)]
    return Plot(
        subject=port_name(node, gpu),
        turned=(
            stage.turn("symbols", port, there * stage.uniform(250, 700)),
            stage.turn("recoveries", port, there * stage.uniform(0.1, 0.2)),
        ),
        affected=(node,),
        traces=(
            at_port("node_infiniband_symbol_error_total", node, gpu),
            at_port("node_infiniband_link_error_recovery_total", node, gpu),
        ),
        surface=_slow_exchange((node,)),
    )


def _pool_link(stage: Stage) -> Plot:
    """The port of a prefill engine (a row of pairs), of a decode engine (a column), or a spine."""
    cast, engine, gpu = stage.cast, stage.one_of(POOL_ENGINES), stage.one_of(stage.layout.gpus_per_node)
    spines = spine_of(stage.layout)
    slow = np.zeros(spines.shape, np.bool_)
    traces: tuple[MetricTrace, ...] = ()
    variant = stage.one_of(3)
    if variant == 2:
        spine = engine % stage.layout.spines_per_pod
        slow[spines == spine] = True
        subject = spine_name(spine)
        turned = stage.turn("spine", [spine], stage.uniform(*SPINE_SHARE))
    else:
        node = (cast.prefill, cast.decode)[variant][engine]
        slow[(engine, slice(None)) if variant == 0 else (slice(None), engine)] = True
        subject = port_name(node, gpu)
        left = stage.uniform(*(PREFILL_SHARE, DECODE_SHARE)[variant])
        turned = stage.turn("symbols", [stage.gpu_number(node, gpu)], (1 / left - 1) / RETRANSMIT_S)
        traces = (at_port("node_infiniband_symbol_error_total", node, gpu),)
    pairs = tuple(
        f"{name('node', cast.prefill[one])}>{name('node', cast.decode[other])}"
        for one, other in np.argwhere(slow).tolist()
    )
    return Plot(
        subject=subject,
        turned=(turned,),
        affected=stage.everyone(),
        traces=(*traces, MetricTrace("holdfast_pool_transfer_seconds", pairs)),
        surface=MetricTrace("holdfast_member_data_seconds", members(stage.everyone())),
    )


def _slow_exchange(nodes: tuple[int, ...]) -> MetricTrace:
    return MetricTrace("holdfast_member_exchange_seconds", members(nodes))


NETWORK: dict[str, Draw] = {
    "leaf-congestion": _congestion,
    "link-flap": _flap,
    "pool-link": _pool_link,
}
