"""Whatever is studied, the ledger reads the twin's own sums out of its events; and what single failures do to
a run. A cluster that breaks all the time, under each policy, is in test_exactness.py.
"""

from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.ledger.categories import Category
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.reporting import report
from holdfast.record.events import (
    ActionTaken,
    CheckpointBegun,
    CheckpointLoaded,
    CheckpointSaved,
    FaultObserved,
    GenerationOpened,
    KnownEvent,
    MemberJoined,
    MemberLost,
    RunEnded,
    RunStarted,
    StepCommitted,
    decode,
    encode,
)
from holdfast.twin.cluster import Layout
from holdfast.twin.elastic import ElasticRun
from holdfast.twin.failures import Failure, FailureClass, Hazards
from holdfast.twin.ground import Ground
from holdfast.twin.policies import Policy, policies, policy
from holdfast.twin.restarting import RestartingRun
from holdfast.twin.simulation import simulate
from holdfast.twin.study import START_NS, Checkpointing, Job, Study, best_interval_s

pytestmark = pytest.mark.slow

SECOND_NS = 10**9
GPUS = 64
POLICIES = [one.name for one in policies(GPUS, 0)]


def failure_class(name: str, rate: float = 0.0, transient_share: float = 0.5) -> FailureClass:
    """All kinds and reaches, by name; repairs take minutes to hours."""
    usual = FailureClass(
        name=name,
        part="gpu",
        rate_per_1000_node_days=rate,
        transient_share=transient_share,
        repair_median_h=0.3,
        repair_sigma=1.0,
        source="a test",
    )
    more: dict[str, dict[str, object]] = {
        "crash": {},
        "silent": {"part": "power"},
        "hang": {"kind": "hang"},
        "gray": {"kind": "gray", "slowdown": 1.3},
        "leaf": {"part": "fabric", "reach": "leaf"},
        "leaf hang": {"reach": "leaf", "kind": "hang"},
        "leaf gray": {"reach": "leaf", "kind": "gray", "slowdown": 2.5},
        "planned": {"part": "planned", "kind": "planned", "reach": "cluster", "transient_share": 1.0},
        "swap": {"part": "planned", "kind": "planned"},
    }
    return msgspec.structs.replace(usual, **more[name])


NAMES = ("crash", "silent", "hang", "gray", "leaf", "leaf hang", "leaf gray", "planned", "swap")


def job(members: int = 4, member_gpus: int = 16, **different: object) -> Job:
    usual: dict[str, object] = {
        "lanes": 16,
        "step_ns": 6_700_000_001,
        "steps_total": None,
        "checkpointing": Checkpointing(interval_s=600, stall_s=0.59, write_s=51, restore_s=100),
    }
    return Job(
        model="small",
        chip="h100",
        gpus=members * member_gpus,
        member_gpus=member_gpus,
        tokens_per_step=1_000,
        flops_per_step=1e15,
        **{**usual, **different},  # type: ignore[arg-type]
    )


def study(of: Job, classes: tuple[FailureClass, ...] = (), **different: object) -> Study:
    usual: dict[str, object] = {"duration_ns": 2 * 3_600 * SECOND_NS, "crews": None}
    return Study(
        name="small",
        job=of,
        layout=Layout(gpus=of.gpus, nodes_per_leaf=2),
        hazards=Hazards(classes=classes),
        usd_per_gpu_hour=4.0,
        **{**usual, **different},  # type: ignore[arg-type]
    )


checkpointings = st.builds(
    Checkpointing,
    interval_s=st.sampled_from([60, 600, 7_200]),
    stall_s=st.sampled_from([0, 0.59, 45]),
    write_s=st.sampled_from([0, 51, 1_000]),
    restore_s=st.sampled_from([0, 100]),
)
jobs = st.integers(1, 8).flatmap(
    lambda members: st.builds(
        job,
        members=st.just(members),
        member_gpus=st.sampled_from([8, 16, 32]),
        lanes=st.sampled_from([members, 16, 24, 7 + members]),
        step_ns=st.sampled_from([700_000_001, 6_700_000_001, 31 * SECOND_NS]),
        steps_total=st.sampled_from([None, None, 50, 500]),
        checkpointing=checkpointings,
    )
)
studies = st.builds(
    study,
    jobs,
    st.lists(
        st.builds(
            failure_class,
            st.sampled_from(NAMES),
            rate=st.sampled_from([100.0, 3_000.0, 30_000.0]),
            transient_share=st.sampled_from([0.0, 0.5, 1.0]),
        ),
        max_size=5,
    ).map(tuple),
    duration_ns=st.sampled_from([30, 900, 7_200, 36_000]).map(lambda seconds: seconds * SECOND_NS + 7),
    crews=st.sampled_from([None, 1, 2]),
)


@settings(max_examples=examples(80), deadline=None, derandomize=True)
@given(studies, st.sampled_from(POLICIES), st.integers(0, 3), st.integers(0, 1_000))
def test_the_ledger_agrees_whatever_is_studied(
    studied: Study, name: str, spare_nodes: int, seed: int
) -> None:
    """`derandomize`: a study that fails is found on every machine, every time."""
    chosen = policy(name, studied.job.gpus, spare_nodes)
    outcome = simulate(studied, chosen, seed)
    assert outcome.truth == outcome.report.partition
    assert sum(outcome.truth.values()) == outcome.report.paid_gpu_ns
    assert all(gpu_ns >= 0 for gpu_ns in outcome.truth.values())
    if chosen.recovery == "restart":
        assert all(one.occurred_ns <= other.occurred_ns for one, other in pairwise(outcome.events))


@pytest.mark.parametrize("name", POLICIES)
def test_its_events_can_be_stored_and_come_in_any_order(name: str) -> None:
    classes = tuple(failure_class(kind, rate=3_000.0) for kind in NAMES)
    outcome = simulate(study(job(), classes), policy(name, GPUS, 1), 11)
    events = [decode(encode(event)) for event in outcome.events]
    assert events == outcome.events
    assert outcome.interruptions > 0
    Random(7).shuffle(events)
    ledger = Ledger()
    ledger.add(events)
    assert report("small", ledger.fold) == outcome.report


# ---- single failures -------------------------------------------------------------------------------------


def failure(name: str, at_s: float, node: int = 0, *, repair_s: float | None = None) -> Failure:
    return Failure(
        at_ns=round(at_s * SECOND_NS),
        node=node,
        nodes=1,
        row=failure_class(name),
        is_transient=repair_s is None,
        repair_ns=round((repair_s or 0) * SECOND_NS),
    )


def played(chosen: Policy, *failures: Failure, of: Study | None = None) -> Ground:
    """A run with these failures, whose sums agree with the ledger's."""
    ground = Ground(of or study(job()), chosen)
    run = RestartingRun if chosen.recovery == "restart" else ElasticRun
    run(ground, failures).run()
    ledger = Ledger()
    ledger.add(ground.tape.events)
    truth = {category.key: gpu_ns for category, gpu_ns in ground.truth.gpu_ns.items()}
    assert report("small", ledger.fold).partition == truth
    return ground


def told(ground: Ground, *kinds: type[KnownEvent], after_s: float = 0) -> list[tuple[float, str]]:
    """The time and the main word of each event."""
    return [
        (round((event.occurred_ns - START_NS) / SECOND_NS, 3), word(event))
        for event in ground.tape.events
        if isinstance(event, kinds) and event.occurred_ns >= START_NS + after_s * SECOND_NS
    ]


def word(event: KnownEvent) -> str:
    match event:
        case ActionTaken(action=action):
            return action
        case GenerationOpened(members=members):
            return f"{len(members)} members"
        case FaultObserved(fault=fault):
            return fault
        case MemberLost(subject=subject):
            return f"{subject} lost"
        case CheckpointLoaded(step=step):
            return f"loaded {step}"
    return type(event).__name__


def test_a_crash_under_holdfast_is_told_by_the_membership() -> None:
    ground = played(policy("holdfast", GPUS, 0), failure("crash", 1_000, node=3, repair_s=1_800))
    recorded = told(ground, FaultObserved, MemberLost, ActionTaken, GenerationOpened, after_s=1_000)
    assert recorded == [
        (1000.0, "drain"),
        (1000.0, "node lost"),
        (1000.0, "r0001.0 lost"),
        (1000.0, "r0001.1 lost"),
        (1000.0, "shrink"),
        (1002.144, "3 members"),
        (2800.0, "restore"),
        (2874.704, "grow"),
        (2881.494, "4 members"),
    ]
    assert (ground.interruptions, ground.restarts, ground.rolled_back_steps) == (1, 0, 0)


def test_a_process_that_dies_is_replaced_where_one_stands_ready() -> None:
    ground = played(policy("holdfast", GPUS, 0), failure("crash", 1_000, node=3))
    recorded = told(ground, FaultObserved, MemberLost, ActionTaken, GenerationOpened, after_s=1_000)
    assert [what for _, what in recorded] == ["SIGKILL", "r0001.0 lost", "replace", "4 members"]


def test_a_machine_that_falls_silent_is_given_up_when_its_lease_ends() -> None:
    ground = played(policy("holdfast", GPUS, 0), failure("silent", 1_000, node=3, repair_s=1_800))
    (at_s, _), *_ = told(ground, FaultObserved)
    assert 1_005 <= at_s <= 1_030
    assert told(ground, MemberLost)[0] == (at_s, "r0001.0 lost")


def test_a_crash_under_restart_goes_back_to_the_last_checkpoint() -> None:
    chosen = policy("restart", GPUS, 1)
    ground = played(chosen, failure("crash", 1_000, node=3, repair_s=1_800))
    kinds = (FaultObserved, ActionTaken, RunStarted, CheckpointLoaded)
    assert told(ground, *kinds, after_s=1_000) == [
        (1_000 + chosen.detect_s, "crash"),
        (1_090.0, "restart"),
        (1_090.0, "drain"),
        (1_090.0, "RunStarted"),
        (1_250.0, "loaded 90"),
        (2_890.0, "restore"),
    ]
    assert ground.restarts == 1


def test_what_was_never_saved_is_begun_again() -> None:
    ground = played(policy("restart", GPUS, 0), failure("crash", 30), failure("crash", 300))
    # Nothing had been done when it failed first, so there was nothing to go back from.
    assert [what for _, what in told(ground, CheckpointLoaded)] == ["loaded 0"]
    assert ground.rolled_back_steps > 0


@pytest.mark.parametrize("tenth", range(12_020, 12_100, 5))
def test_one_that_hangs_after_a_long_calm_is_lost_alone(tenth: int) -> None:
    """Heartbeats are skipped: all members must report before the membership judges any of them."""
    silent = failure("silent", 500, node=3, repair_s=600)
    ground = played(policy("holdfast", GPUS, 1), silent, failure("hang", tenth / 10))
    lost = [what for _, what in told(ground, MemberLost, after_s=1_000)]
    assert lost == ["r0000.0 lost"]


def test_a_newcomer_that_dies_before_it_takes_part_costs_no_replica() -> None:
    """It is ready at 2874.704 s, and the others would change over at 2881.494 s."""
    crash = failure("crash", 1_000, node=3, repair_s=1_800)
    ground = played(policy("holdfast", GPUS, 0), crash, failure("crash", 2_880, node=3))
    assert told(ground, MemberLost, after_s=2_800) == [(2_880.0, "r0001.0+1 lost")]
    assert [what for _, what in told(ground, GenerationOpened)] == ["4 members", "3 members", "4 members"]


def test_what_fails_while_others_change_over_is_not_what_they_change_for() -> None:
    """At 2878.144 s they begin to take one newcomer in, which takes 2.144 s; another one dies meanwhile."""
    of = study(job(member_gpus=8))
    first = failure("crash", 1_000, node=1, repair_s=1_800)
    second = failure("crash", 1_000, node=2, repair_s=1_815)
    ground = played(policy("holdfast", 32, 0), first, second, failure("crash", 2_879, node=2), of=of)
    assert told(ground, MemberLost, after_s=2_800) == [(2_879.0, "r0002.0+1 lost")]
    assert told(ground, GenerationOpened, after_s=2_800)[0] == (2_878.144, "3 members")


def test_shares_of_a_batch_are_never_rounded_to_less_than_all_of_it() -> None:
    """Of 24 lanes, 6 members have 4 each and 3 have 8: one would be rounded down, the other up."""
    of = study(job(members=8, member_gpus=8, lanes=24, step_ns=SECOND_NS))
    broken = [failure("crash", 1_000 if node < 2 else 2_000, node=node, repair_s=9_000) for node in range(5)]
    ground = played(policy("holdfast", of.job.gpus, 0), *broken, of=of)
    assert {what for _, what in told(ground, GenerationOpened)} >= {"8 members", "6 members", "3 members"}


def test_a_batch_shrinks_only_where_keeping_it_costs_more_than_it_may() -> None:
    """Of 32 lanes, 4 members have 8 each. Without one of them 3 have 11 at most, where 10.67 are the mean:
    3 % of their time is idle, which is more than a hundredth.
    """
    of = study(job(members=4, member_gpus=8, lanes=32, step_ns=8 * SECOND_NS))
    broken = failure("crash", 1_000, repair_s=1e6)
    kept, smaller = (
        played(policy(name, of.job.gpus, 0), broken, of=of) for name in ("holdfast", "holdfast-smaller")
    )
    even = played(
        msgspec.structs.replace(policy("holdfast", of.job.gpus, 0), smaller_above_share=0.04), broken, of=of
    )
    assert even.truth.gpu_ns == kept.truth.gpu_ns
    # A step of 8 s takes 11 s while the batch is kept, of which 10.67 are what it should take on so few.
    assert smaller.truth.step > kept.truth.step
    assert smaller.truth.gpu_ns[Category.SLOWDOWN] == 0
    late = [one for one in (kept, smaller) if one.truth.gpu_ns[Category.SLOWDOWN]]
    assert late == [kept]
    assert smaller.truth.gpu_ns[Category.USEFUL] > kept.truth.gpu_ns[Category.USEFUL]


def test_a_restarting_run_takes_the_interval_that_is_best_for_its_failures() -> None:
    of = study(job(), (failure_class("crash", rate=3_000.0),))
    best_s = best_interval_s(of)
    assert best_s is not None
    saves = {
        name: len(told(played(policy(name, of.job.gpus, 0), of=of), CheckpointBegun))
        for name in ("restart", "restart-best")
    }
    usual_s = of.job.checkpointing.interval_s
    assert saves["restart-best"] / saves["restart"] == pytest.approx(usual_s / best_s, rel=0.25)
    # Young: the square root of twice the stall times the time between failures.
    hazards = of.hazards.unplanned()
    failures = sum(hazards.expected(row, of.layout.nodes, of.duration_ns) for row in hazards.classes)
    young_s = (2 * of.job.checkpointing.stall_s * of.duration_ns / 1e9 / failures) ** 0.5
    written_s = of.job.checkpointing.stall_s + of.job.checkpointing.write_s
    assert best_s == max(round(young_s), round(written_s))


def test_a_planned_stop_in_which_a_member_dies_is_still_planned() -> None:
    """From 1004.6440001 s to 1028.0040001 s. One newcomer dies meanwhile, another is ready at 1019.36 s."""
    broken = failure("crash", 500, node=3, repair_s=450)
    pause, crash = failure("planned", 1_000), failure("crash", 1_010, node=3)
    before_a_commit = failure("crash", 1_030, node=0)
    ground = played(policy("holdfast", GPUS, 0), broken, pause, crash, before_a_commit)
    assert told(ground, FaultObserved, after_s=1_000) == [(1_010.0, "SIGKILL"), (1_030.0, "SIGKILL")]
    assert ground.truth.gpu_ns[Category.LOCALISING] == 0
    assert ground.truth.gpu_ns[Category.PLANNED_STOP] == GPUS * 23_360_000_000 - 16 * 8_644_000_100


def test_a_checkpoint_that_takes_no_time_does_not_hold_up_the_steps() -> None:
    saves = Checkpointing(interval_s=600, stall_s=0, write_s=1_000, restore_s=0)
    of = study(job(checkpointing=saves, steps_total=500))
    ground = played(policy("restart", GPUS, 0), failure("crash", 3_500), of=of)
    # 60 s to launch, then 500 steps of 6.7 s: it had come to its end before the failure.
    ended = ground.tape.events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.occurred_ns == START_NS + 60 * SECOND_NS + 500 * of.job.step_ns
    assert ground.interruptions == 0


@pytest.mark.parametrize(
    ("more", "saved_and_committed_s"),
    [
        ((), [1_039.594, 1_049.644]),
        ((failure("crash", 1_006, node=3),), [1_039.594, 1_049.644]),
        ((failure("crash", 1_006, node=3), failure("crash", 1_045)), [1_039.594, 1_057.204]),
        ((failure("crash", 1_020),), [1_032.204]),
    ],
)
def test_no_step_is_committed_while_a_checkpoint_is_copied(
    more: tuple[Failure, ...], saved_and_committed_s: list[float]
) -> None:
    """It begins at 994.594 s and takes 45 s unless a member dies. A newcomer gets ready meanwhile."""
    saves = Checkpointing(interval_s=600, stall_s=45, write_s=5, restore_s=0)
    chosen = msgspec.structs.replace(policy("holdfast", GPUS, 0), checkpoint_s=990)
    broken = failure("crash", 500, node=3, repair_s=435)
    ground = played(chosen, broken, *more, of=study(job(checkpointing=saves)))
    assert told(ground, CheckpointBegun)[0] == (994.594, "CheckpointBegun")
    found = [at_s for at_s, _ in told(ground, CheckpointSaved, StepCommitted, after_s=994.595)]
    assert found[: len(saved_and_committed_s)] == saved_and_committed_s


def test_spares_are_shown_as_they_come_and_go() -> None:
    ground = played(policy("holdfast", GPUS, 2), failure("crash", 1_000, node=3, repair_s=1_800))
    shown = [
        (round((event.occurred_ns - START_NS) / SECOND_NS), event.gpus)
        for event in ground.tape.events
        if isinstance(event, MemberJoined) and event.subject == "spares"
    ]
    assert shown == [(0, 16), (1_000, 8), (2_800, 16)]


def test_a_study_that_ends_before_the_launch_does() -> None:
    for name in POLICIES:
        ground = played(policy(name, GPUS, 0), of=study(job(), duration_ns=SECOND_NS))
        assert sum(ground.truth.gpu_ns.values()) == ground.paid_gpus * SECOND_NS
