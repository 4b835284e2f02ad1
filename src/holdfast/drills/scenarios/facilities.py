"""Cooling and power: causes in the building that show in training as slow steps."""

from holdfast.drills.plant import SUPPLIES_PER_SHELF
from holdfast.drills.scenarios.stage import Draw, Plot, Stage, slow_members
from holdfast.drills.scenarios.truth import MetricTrace
from holdfast.twin.cluster import circuit_name, name


def _pump(stage: Stage) -> Plot:
    loop = stage.pick("loop")
    affected = stage.members_on("loop", loop)
    flow = stage.turn("flow", [loop], stage.uniform(0.34, 0.46), over_s=stage.uniform(40, 150))
    return Plot(
        subject=name("loop", loop),
        turned=(flow,),
        affected=affected,
        traces=(
            MetricTrace("densewatch_cdu_coolant_flow_lpm", (name("loop", loop),)),
            MetricTrace("densewatch_cdu_pump_speed_percent", (name("loop", loop),)),
        ),
        surface=slow_members(affected),
    )


def _inlet(stage: Stage) -> Plot:
    """Every loop of one circuit of facility water: the half of them on one side of the hall."""
    circuits = stage.layout.circuits()
    circuit = stage.one_of(len(circuits))
    loops = circuits[circuit]
    affected = tuple(node for loop in loops for node in stage.members_on("loop", loop))
    supply = stage.turn("supply", loops, stage.uniform(21, 26), over_s=stage.uniform(240, 420))
    names = tuple(name("loop", loop) for loop in loops)
    return Plot(
        subject=circuit_name(circuit),
        turned=(supply,),
        affected=affected,
        traces=(MetricTrace("densewatch_cdu_coolant_supply_temp_celsius", names),),
        surface=slow_members(affected),
    )


def _shelf(stage: Stage) -> Plot:
    shelf = stage.pick("shelf")
    affected = stage.members_on("shelf", shelf)
    left = 3 + stage.one_of(2)
    supplies = stage.turn("supplies", [shelf], left / SUPPLIES_PER_SHELF)
    return Plot(
        subject=name("shelf", shelf),
        turned=(supplies,),
        affected=affected,
        traces=(MetricTrace("redfish_chassis_power_powersupply_health", (name("shelf", shelf),)),),
        surface=slow_members(affected),
    )


FACILITIES: dict[str, Draw] = {
    "cooling-pump": _pump,
    "cooling-inlet": _inlet,
    "power-cap": _shelf,
}
