"""Cooling and power: causes in the building that training feels as slow steps."""

from holdfast.drills.plant import SUPPLIES_PER_SHELF
from holdfast.drills.scenarios.stage import Plot, Scenario, Stage, slow_members
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
            MetricTrace(metric="densewatch_cdu_coolant_flow_lpm", subjects=(name("loop", loop),)),
            MetricTrace(metric="densewatch_cdu_pump_speed_percent", subjects=(name("loop", loop),)),
        ),
        surface=slow_members(affected),
    )


def _inlet(stage: Stage) -> Plot:
    """Every loop of one circuit of facility water, so the half of them on one side of the hall."""
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
        traces=(MetricTrace(metric="densewatch_cdu_coolant_supply_temp_celsius", subjects=names),),
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
        traces=(
            MetricTrace(metric="redfish_chassis_power_powersupply_health", subjects=(name("shelf", shelf),)),
        ),
        surface=slow_members(affected),
    )


FACILITIES = (
    Scenario(
        name="cooling-pump",
        found_as="coolant-flow",
        title="a coolant pump fails, and a loop of GPUs throttles",
        told="Training reports that steps have become slower. Every node is up and no job has failed. The"
        " network team sees no errors.",
        domain="cooling",
        surfaces_in="runtime",
        what="steps slow down; the members of a few neighbouring racks compute longer than the rest",
        mechanism="flow falls, the coolant takes less heat, GPUs reach their slowdown point, clocks fall",
        owner="facilities",
        seam="facilities-ml",
        loss="slowdown",
        decides="The loop's flow against its rated flow while its pump is asked for full speed.",
        questions=(
            "Which teams could rule themselves out within five minutes, and with which reading?",
            "What would you expect to see if one bad node were holding the run back instead?",
        ),
        draw=_pump,
    ),
    Scenario(
        name="cooling-inlet",
        found_as="coolant-supply",
        title="facility water gets warm, and half a hall throttles a little",
        told="Throughput has been sinking for some minutes. It is not one node: hundreds of GPUs are a little"
        " slower than the others.",
        domain="cooling",
        surfaces_in="runtime",
        what="steps get slower over minutes; half of the members compute a little longer",
        mechanism="the chiller fails, supply temperature rises on every loop of the circuit, GPUs throttle",
        owner="facilities",
        seam="facilities-ml",
        loss="slowdown",
        decides="The supply temperature of all loops side by side: one circuit's rise, and flow does not.",
        questions=(
            "Which of your dashboards groups GPUs by what they share, and by what?",
            "How long can it go on like this, and who decides to lower the load before that?",
        ),
        draw=_inlet,
    ),
    Scenario(
        name="power-cap",
        found_as="power-brake",
        title="a power shelf loses supplies, and a rack is braked",
        told="One rack's members have been late since a moment ago. Their GPUs are cool and healthy.",
        domain="power",
        surfaces_in="runtime",
        what="steps slow down at once; the members of one rack compute longer, at low temperature",
        mechanism="supplies fail, the shelf asserts the power brake, clocks of the whole rack fall",
        owner="facilities",
        seam="facilities-ml",
        loss="slowdown",
        decides="Power violation time and the health of the shelf's supplies, against temperature.",
        questions=(
            "The GPUs are cooler than before. What does that rule out?",
            "Is it better to leave the rack out of the run, or to wait? What does each cost?",
        ),
        draw=_shelf,
    ),
)
