"""Evidence counted over a small cluster, with findings made by hand."""

from collections.abc import Iterable

import msgspec
import pytest

from holdfast.detect.finding import Finding, Method
from holdfast.detect.scene import Decided, Healthy, Scene
from holdfast.detect.signs import Sign
from holdfast.diagnose.own import own_signs
from holdfast.diagnose.run_findings import MACHINE_SIGNS, RunFindings
from holdfast.diagnose.weighing import PRIOR, Hypothesis, hypotheses, lost_because, unknown
from holdfast.topology.graph import Builder, Topology
from holdfast.topology.names import gpu_name, member_name, port_name

RUN = "pretrain"
S = 10**9
NODES = 32
NODES_PER_RACK, RACKS_PER_LOOP = 4, 4


def member(number: int) -> str:
    return member_name(RUN, f"n{number}")


def cluster() -> Topology:
    """32 nodes with names that are not padded, in racks of four, loops of sixteen, leaves of eight."""
    builder = Builder()
    builder.add(RUN, "run")
    builder.add("water", "circuit")
    for number in range(NODES):
        node, rack = f"n{number}", number // NODES_PER_RACK
        loop, leaf, mount = f"cdu{rack // RACKS_PER_LOOP}", f"leaf{number // 8}", f"fs{number // 16}"
        gpu, port = gpu_name(node, "0"), port_name(node, "mlx5_0")
        builder.add(loop, "loop")
        builder.add(f"shelf{rack}", "shelf")
        builder.add(f"rack{rack}", "rack")
        builder.add(leaf, "leaf")
        builder.add(mount, "mount")
        builder.add(node, "node")
        builder.add(gpu, "gpu")
        builder.add(port, "port")
        builder.add(member(number), "member")
        for one, on in (
            (loop, "water"),
            (f"rack{rack}", loop),
            (f"rack{rack}", f"shelf{rack}"),
            (node, f"rack{rack}"),
            (gpu, node),
            (port, node),
            (port, leaf),
            (member(number), gpu),
            (member(number), port),
            (member(number), mount),
            (RUN, member(number)),
        ):
            builder.depends(one, on)
    return builder.build()


TOPOLOGY = cluster()
SCENE = Scene(
    run=RUN,
    began_ns=0,
    gpus=NODES * 8,
    healthy=Healthy(step_s=6.0, is_declared=True),
    members={},
    gone={},
    checkpoints=(),
    decisions=(),
    faults=(),
    out=(),
)


def finding(
    sign: Sign,
    subject: str,
    *,
    since_s: float = 100.0,
    value: float = 2.0,
    usual: float = 1.0,
    confidence: float = 0.95,
    method: Method = "past",
) -> Finding:
    is_symptom = sign.startswith(("late-", "slow-step"))
    return Finding(
        sign=sign,
        subject=subject,
        metric=f"metric-of-{sign}",
        method=method,
        since_ns=round(since_s * S),
        until_ns=None,
        noticed_ns=round((since_s + 20) * S),
        confidence=confidence,
        value=value,
        usual=usual,
        unit="s",
        effect_s=value - usual if is_symptom else None,
        note=f"note of {sign}",
    )


def late(numbers: Iterable[int], sign: Sign = "late-compute", since_s: float = 120.0) -> list[Finding]:
    return [finding(sign, member(number), since_s=since_s, value=6.0, usual=5.0) for number in numbers]


def ranked(findings: list[Finding], scene: Scene = SCENE) -> list[Hypothesis]:
    return sorted(hypotheses(RunFindings(findings, TOPOLOGY, scene)), key=lambda one: -one.bans)


def named(hypothesis: Hypothesis) -> tuple[str, str]:
    return hypothesis.mechanism.name, hypothesis.subject


def the(findings: list[Finding], mechanism: str, subject: str) -> Hypothesis:
    return next(one for one in ranked(findings) if named(one) == (mechanism, subject))


SLOW = finding("slow-step", RUN, since_s=120, value=7.0, usual=6.0)
ON_LOOP_0 = range(16)
BRAKED_RACK = [
    finding("failed-supply", "shelf1", since_s=100, method="limit"),
    *(finding("power-throttle", f"n{number}.0", since_s=105) for number in range(4, 8)),
]


def test_nothing_has_no_hypotheses() -> None:
    assert ranked([]) == []


def test_bans_are_the_prior_and_the_evidence() -> None:
    one = the([*BRAKED_RACK, *late(range(4, 8)), SLOW], "power-brake", "shelf1")
    assert one.bans == pytest.approx(PRIOR + sum(evidence.weight for evidence in one.evidence))


def test_a_node_that_is_late_by_a_tenth_of_it_does_not_hold_steps_up() -> None:
    """All wait for their data, and one of them computes a little longer besides."""
    waits = [finding("late-data", member(number), since_s=120, value=1.2, usual=0.1) for number in range(32)]
    much, little = (finding("late-compute", member(5), value=value, usual=5.0) for value in (5.9, 5.1))
    assert named(ranked([much, SLOW])[0]) == ("slow-node", "n5")
    assert the([little, SLOW], "slow-node", "n5").bans < 0
    assert named(ranked([*waits, little, SLOW])[0]) == ("data-loader", RUN)


def test_the_cause_beneath_exactly_the_late_members_wins() -> None:
    first, *others = ranked([*BRAKED_RACK, *late(range(4, 8)), SLOW])
    assert named(first) == ("power-brake", "shelf1")
    assert first.bans > 1 + max(one.bans for one in others)
    explained = {(one.sign, one.subject) for one in first.explains}
    assert explained >= {("late-compute", member(number)) for number in range(4, 8)}
    assert ("slow-step", RUN) in explained


def test_healthy_members_beneath_and_late_ones_elsewhere_speak_against_it() -> None:
    all_of_them = the([*BRAKED_RACK, *late(range(4, 8)), SLOW], "power-brake", "shelf1")
    half = the([*BRAKED_RACK, *late(range(4, 6)), SLOW], "power-brake", "shelf1")
    elsewhere = the([*BRAKED_RACK, *late(range(16, 20)), SLOW], "power-brake", "shelf1")
    assert all_of_them.bans > half.bans > elsewhere.bans
    assert any("not late" in evidence.text for evidence in half.evidence)
    assert any(evidence.weight < 0 for evidence in elsewhere.evidence)


def test_members_that_are_late_in_another_way_speak_against_it() -> None:
    compute = the([*BRAKED_RACK, *late(range(4, 8)), SLOW], "power-brake", "shelf1")
    exchange = the([*BRAKED_RACK, *late(range(4, 8), "late-exchange"), SLOW], "power-brake", "shelf1")
    assert exchange.bans < compute.bans - 1


def test_a_sign_of_something_else_speaks_against_it() -> None:
    hot = [finding("thermal-throttle", f"n{number}.0") for number in range(4, 8)]
    without = the([*BRAKED_RACK, *late(range(4, 8)), SLOW], "power-brake", "shelf1")
    with_it = the([*BRAKED_RACK, *hot, *late(range(4, 8)), SLOW], "power-brake", "shelf1")
    assert with_it.bans < without.bans
    far = [finding("thermal-throttle", f"n{number}.0") for number in range(24, 28)]
    elsewhere = the([*BRAKED_RACK, *far, *late(range(4, 8)), SLOW], "power-brake", "shelf1")
    assert elsewhere.bans == pytest.approx(without.bans)


def test_what_began_with_the_symptom_is_likelier_its_cause_than_what_came_after_it() -> None:
    def bans(since_s: float) -> float:
        signs = [finding("cpu-pressure", f"n{number}", since_s=since_s) for number in range(4, 8)]
        return the([*signs, *late(range(4, 8), since_s=500)], "cpu-contention", "rack1").bans

    assert bans(480) == bans(520) > bans(200) > bans(1_000)


def test_what_was_there_when_anybody_first_looked_did_not_come_after_the_symptom() -> None:
    """Two of its GPUs show it again later; its beginning was not seen."""
    held = [
        *(
            finding("low-power", f"n{number}.0", since_s=900 if number < 6 else 2_000)
            for number in range(4, 8)
        ),
        finding("slow-step", RUN, since_s=600, value=7.0, usual=6.0),
    ]
    case = RunFindings(held, TOPOLOGY, SCENE, from_ns=890 * S)
    cap = next(one for one in hypotheses(case) if named(one) == ("power-cap", "rack1"))
    texts = [evidence.text for evidence in cap.evidence]
    assert "it has been so for as long as the run has been slower" in texts
    assert not any("after the first symptom" in text for text in texts)


def test_one_gpu_that_seems_no_hotter_does_not_argue_against_warm_air_at_all_others() -> None:
    """Its sensor may be stuck. That half of them are no hotter is another matter."""

    def against(cool: range) -> float:
        hot = [finding(sign, f"n{number}.0") for number in range(NODES) for sign in ("hot-gpu", "low-clock")]
        held = [finding("low-power", f"n{number}.0") for number in cool]
        warm = the([*hot, *held, SLOW], "air-cooling", "water")
        return next(one.weight for one in warm.evidence if one.metric == "metric-of-low-power")

    assert -0.1 < against(range(1)) < 0
    assert against(range(16)) == pytest.approx(-0.5 * 0.95)


def test_flow_and_supply_are_told_apart_by_their_own_signs() -> None:
    hot = [finding("thermal-throttle", f"n{number}.0") for number in ON_LOOP_0]
    symptoms = [*hot, *late(ON_LOOP_0), SLOW]
    flow = ranked([finding("low-flow", "cdu0"), *symptoms])[0]
    assert named(flow) == ("coolant-flow", "cdu0")
    supply = ranked([finding("warm-supply", "cdu0"), *symptoms])[0]
    assert named(supply) == ("coolant-supply", "cdu0")


def test_loops_that_share_a_circuit_are_one_cause() -> None:
    warm = [finding("warm-supply", "cdu0"), finding("warm-supply", "cdu1")]
    hot = [finding("thermal-throttle", f"n{number}.0") for number in range(NODES)]
    assert named(ranked([*warm, *hot, *late(range(NODES)), SLOW])[0]) == ("coolant-supply", "water")


def test_a_decision_at_that_time_speaks_for_what_it_would_do() -> None:
    often = [finding("frequent-checkpoints", RUN)]
    decided = Decided(at_ns=90 * S, action="set-cadence", subject=RUN, reason="safety")
    scene = msgspec.structs.replace(SCENE, decisions=(decided,))
    without, with_it = ranked(often)[0], ranked(often, scene)[0]
    assert named(with_it) == ("checkpoint-cadence", RUN)
    assert with_it.bans > without.bans
    assert any("safety" in evidence.text for evidence in with_it.evidence)


@pytest.mark.parametrize("every", [4, 8])
def test_every_kth_member_is_a_stage_whatever_the_names_look_like(every: int) -> None:
    """n2 comes before n10: numbers in names count."""
    first = ranked([*late(range(every - 1, NODES, every)), SLOW])[0]
    assert named(first) == ("pipeline-stage", RUN)
    assert any(f"one in {every} members" in evidence.text for evidence in first.evidence)


def test_members_of_one_rack_are_no_stage() -> None:
    stage = the([*late(range(4, 8)), SLOW], "pipeline-stage", RUN)
    assert stage.bans < 0


def test_writes_and_checkpoints_of_a_size_fit_each_other() -> None:
    def bans(stall_s: float) -> float:
        stall = finding("slow-checkpoint", RUN, value=stall_s, usual=10.0)
        writes = finding("slow-writes", "fs0", value=0.04, usual=0.01)
        return the([writes, stall], "storage-crowded", "fs0").bans

    assert bans(40.0) > bans(15.0)


STALLED = finding("slow-checkpoint", RUN, value=40.0, usual=10.0)
ODD = {
    "checkpoints that never stalled before": [
        finding("slow-checkpoint", RUN, value=30.0, usual=0.0),
        finding("slow-writes", "fs0", value=0.04, usual=0.01),
    ],
    "writes that took no time before": [STALLED, finding("slow-writes", "fs0", value=0.04, usual=0.0)],
    "a clock that stands still": [
        *BRAKED_RACK,
        finding("low-clock", "n4.0", value=0.0, usual=1_980.0),
        *late(range(4, 8)),
    ],
    "a member that had nothing to compute before": [
        *BRAKED_RACK,
        finding("low-clock", "n4.0", value=990.0, usual=1_980.0),
        finding("late-compute", member(4), value=1.0, usual=0.0),
    ],
    "subjects that the graph does not know": [
        *BRAKED_RACK,
        finding("low-flow", "somewhere else"),
        finding("late-compute", "pretrain/stranger"),
        finding("wandering", "another run"),
    ],
}


@pytest.mark.parametrize("findings", ODD.values(), ids=ODD.keys())
def test_odd_findings_are_no_mistake(findings: list[Finding]) -> None:
    found = ranked([*findings, SLOW])
    assert found
    assert all(one.explains for one in found)


def test_how_much_of_the_run_shows_a_sign_is_counted_once() -> None:
    """Thousands of candidates ask for it, and thousands of subjects may show the sign."""
    case = RunFindings([*late(range(4, 8)), SLOW], TOPOLOGY, SCENE)
    fit = case.over_run("late-compute")
    assert fit is not None
    assert (fit.hit, fit.total) == (4, 4)
    assert case.over_run("late-compute") is fit


def test_unknown_explains_the_symptoms_and_says_what_the_late_have_in_common() -> None:
    case = RunFindings([*late(range(4, 8)), SLOW], TOPOLOGY, SCENE)
    nothing = unknown(case)
    assert {one.sign for one in nothing.explains} == {"late-compute", "slow-step"}
    (evidence,) = nothing.evidence
    assert "4 of 4 late members" in evidence.text
    assert unknown(RunFindings([SLOW], TOPOLOGY, SCENE)).evidence == ()


def test_why_an_alternative_lost_is_what_speaks_most_against_it() -> None:
    findings = [*BRAKED_RACK, *late(range(4, 8)), SLOW]
    best, *others = ranked(findings)
    for other in others:
        reason = lost_because(best, other)
        against = [one.text for one in other.evidence if one.weight < 0]
        assert reason in against or not against
        assert reason


def test_the_surer_the_telemetry_the_more_it_weighs() -> None:
    sure = [finding("failed-supply", "shelf1", confidence=0.95), *late(range(4, 8)), SLOW]
    unsure = [finding("failed-supply", "shelf1", confidence=0.3), *late(range(4, 8)), SLOW]
    assert the(sure, "power-brake", "shelf1").bans > the(unsure, "power-brake", "shelf1").bans + 1


@pytest.mark.parametrize("sign", ["slow-link", "symbol-errors", "damaged-packets"])
def test_a_host_that_sends_again_over_a_bad_port_is_no_cause_beside_the_port(sign: Sign) -> None:
    port = port_name("n3", "mlx5_0")
    resends = [
        finding("resent-packets", f"n{number}", value=share) for number, share in ((3, 0.05), (4, 0.02))
    ]
    found = own_signs([SLOW, finding(sign, port), *resends, *late([3], "late-exchange")])
    best, second, *_ = ranked(found)
    assert named(best) == ("link-errors", port)
    assert best.bans > second.bans


def test_a_node_that_no_exporter_shows_is_no_evidence() -> None:
    seen = frozenset(f"n{number}" for number in range(NODES) if number != 3)
    findings = [SLOW, *late([3])]
    measured = frozenset({"late-compute", *MACHINE_SIGNS, "low-clock"})

    def bare(hosts: frozenset[str]) -> str:
        by_sign = dict.fromkeys(MACHINE_SIGNS, hosts)
        case = RunFindings(findings, TOPOLOGY, SCENE, measured, hosts=by_sign)
        (found,) = (one for one in hypotheses(case) if named(one) == ("slow-node", "n3"))
        return " ".join(one.text for one in found.evidence)

    assert "no reading of the node is unusual, and its processors, memory and GPUs are measured" in bare(
        seen | {"n3"}
    )
    assert "measured" not in bare(seen)
    assert "no exporter shows this node" in bare(seen)


def test_of_a_rack_only_the_nodes_that_are_seen_count() -> None:
    throttling = [finding("power-throttle", f"n{number}.0") for number in (4, 5)]
    seen = frozenset(f"n{number}" for number in range(NODES) if number not in (6, 7))
    for hosts, reached in ({}, 4), ({"power-throttle": seen}, 2):
        fit = RunFindings(throttling, TOPOLOGY, SCENE, hosts=hosts).fit("power-throttle", "rack1")
        assert fit is not None
        assert (fit.hit, fit.reached) == (2, reached)
