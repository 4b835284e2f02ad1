import math

import msgspec
import pytest

from bench.commits import Commit
from bench.faultkit import cases_named
from bench.faultkit_cases import CASES, NEWEST, NOT_APPLIED, STRIKES_AT, TARGET, UNDAMAGED, Case
from bench.faultkit_result import (
    Report,
    Seen,
    gemini_reports,
    holdfast_checkpoint_reports,
    holdfast_reports,
    judged,
    judged_restart,
    mean_step_s,
    rows,
    scout_reports,
    table,
    torchrun_failure,
)
from holdfast.record.errors import InputError
from holdfast.record.events import ActionTaken, CheckpointFailed, FaultObserved, MemberLost

KIT_TYPES = 21
S = 1_000_000_000
INJECTED_NS = 100 * S
CASE = CASES[0]
(CORRUPTED,) = (case for case in CASES if case.fault == "checkpoint_corruption")
# As lm-resiliency 0.2.0 and torchrun of torch 2.13 write them, shortened.
SCOUT_LINES = """\
{"at_ns": 3, "by": 3, "report": {"failed_ranks": [2], "layer_id": -1, "kind": "sdc", "scope": "rank"}}
{"at_ns": 2, "by": 0, "report": {"failed_ranks": [0, 1, 2, 3], "kind": "sdc", "scope": "peer_group"}}
{"at_ns": 1, "by": 0, "report": {"failed_ranks": [0], "kind": "oob_daemon_failure", "scope": "rank"}}
"""
TORCHRUN_LINES = """\
multiprocessing/api.py:1002] failed (exitcode: 75) local_rank: 0 (pid: 11) of binary: python
multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 2 (pid: 13) of binary: python
"""
LOG_LINES = """\
{"at_ns": 5, "said": "A peer rejected its checkpoint shard at step 10"}
{"at_ns": 4, "said": "Checkpoint validation failed at step 10: /b/rank-2.pt: 1 chunk(s) failed checksum"}
{"at_ns": 6, "said": "Ignoring checkpoint status from another run or topology: /b/STATUS.rank-2"}
"""


def commits(step: int, at_s: float, processes: tuple[int, ...] = (1, 2, 3, 4)) -> list[Commit]:
    return [Commit(process=process, step=step, world=0, at_ns=round(at_s * S)) for process in processes]


def seen(*reports: Report, more: tuple[Commit, ...] = (), digests: frozenset[str] = frozenset({"d"})) -> Seen:
    return Seen(
        injected_ns=INJECTED_NS, reports=reports, commits=[*commits(11, 99.0), *more], digests=digests
    )


def test_every_type_of_the_kit_is_made_or_has_a_reason() -> None:
    assert (
        len({case.fault for case in CASES} | NOT_APPLIED.keys()) == len(CASES) + len(NOT_APPLIED) == KIT_TYPES
    )
    assert all(NOT_APPLIED.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault)
def test_a_manifest_names_the_rank_or_the_checkpoint_and_the_step(case: Case) -> None:
    (incident,) = msgspec.json.decode(msgspec.json.encode(case.manifest()))["incidents"]
    assert incident["trigger"] == {"at": [STRIKES_AT]}
    target = incident["faults"][0]["target"]
    assert (target.get("rank"), target.get("resource")) == (
        (TARGET, None) if case.damage is None else (None, f"step-{NEWEST}")
    )
    assert incident["faults"][0]["type"] == case.fault


def test_reports_of_a_rank_and_of_a_group() -> None:
    group, rank = scout_reports(SCOUT_LINES)
    assert (group.at_ns, group.ranks) == (2, ())
    assert (rank.at_ns, rank.ranks, rank.kind) == (3, (2,), "sdc")


def test_torchrun_blames_the_first_that_did_not_end_by_a_report() -> None:
    found = torchrun_failure(TORCHRUN_LINES, 75)
    assert found is not None
    assert found[0] == 2
    assert torchrun_failure("nothing failed", 75) is None


def test_what_holdfast_recorded_names_members() -> None:
    slow = FaultObserved(id="a", occurred_ns=30, subject="n0.2", fault="slow member", severity="degraded")
    hung = MemberLost(id="b", occurred_ns=20, subject="n0.1", reason="no progress for 6 s, at train.py:8")
    killed = MemberLost(id="c", occurred_ns=40, subject="n0.2+1", reason="SIGKILL")
    moved = ActionTaken(id="d", occurred_ns=35, subject="n0.2", action="rebalance")
    found = holdfast_reports([slow, hung, killed, moved], 10)
    assert [(report.at_ns, report.ranks, report.kind) for report in found] == [
        (10, (1,), "hang"),
        (20, (2,), "straggler"),
        (30, (2,), "process_failure"),
    ]


def test_the_right_rank_is_localised_and_its_step_done_again() -> None:
    report = Report(at_ns=INJECTED_NS + S, ranks=(2,), kind="sdc")
    # Step 12 was committed, and is done again by four new processes.
    more = (*commits(12, 100.5), *commits(12, 104.0, (5, 6, 7, 8)))
    trial = judged(CASE, "holdfast", seen(report, more=more), "d", 4)
    assert trial.localised
    assert trial.localization.occurrence_id == f"{CASE.fault}@{STRIKES_AT}"
    assert (trial.detect_s, trial.recover_s) == (1.0, 4.0)
    assert (trial.steps_lost, trial.workers_restarted, trial.false_alarms) == (1, 4, 0)
    assert trial.bits_equal is True


def test_naming_a_healthy_rank_is_a_false_alarm_and_no_localisation() -> None:
    trial = judged(CASE, "holdfast", seen(Report(at_ns=INJECTED_NS + S, ranks=(1, 2))), "d", 4)
    assert not trial.localised
    assert trial.false_alarms == 1
    assert judged(CASE, "holdfast", seen(Report(at_ns=1, ranks=(2,))), "d", 4).false_alarms == 1


def test_members_without_the_lost_one_have_gone_on_too() -> None:
    report = Report(at_ns=INJECTED_NS + S, ranks=(2,))
    more = (*commits(12, 102.0, (1, 2, 4)), *commits(13, 105.0, (1, 2, 4, 5)))
    trial = judged(CASE, "holdfast", seen(report, more=more), "d", 4)
    assert (trial.recover_s, trial.steps_lost, trial.workers_restarted) == (2.0, 0, 1)


def test_a_group_is_found_and_not_localised() -> None:
    trial = judged(CASE, "holdfast", seen(Report(at_ns=INJECTED_NS + S)), "d", 4)
    assert trial.localization.detected
    assert not trial.localised
    assert trial.false_alarms == 0


def test_what_nobody_found_has_gone_on_only_with_the_same_bits() -> None:
    more = tuple(commits(12, 101.0))
    assert judged(CASE, "holdfast", seen(more=more), "d", 4).recover_s == 1.0
    other = judged(CASE, "holdfast", seen(more=more), "undisturbed", 4)
    assert (other.recover_s, other.detect_s, other.bits_equal) == (None, None, False)
    assert judged(CASE, "holdfast", seen(digests=frozenset()), "d", 4).bits_equal is None


def test_rows_count_trials_and_the_table_shows_who_did_not_end() -> None:
    report = Report(at_ns=INJECTED_NS + S, ranks=(2,))
    good = judged(CASE, "holdfast", seen(report, more=tuple(commits(12, 103.0))), "d", 4)
    stuck = judged(CASE, "holdfast", seen(digests=frozenset()), "d", 4)
    (row,) = rows([good, stuck])
    assert (row.localised, row.repetitions, row.finished, row.bits_equal) == (1, 2, 1, 1)
    assert row.recover_s == 3.0
    assert table([row])[-1] == (
        "| tensor_corruption | holdfast | 1 of 2 | 0 | 1.00 s | 3.00 s | 0 | 0 | 1 of 2 (1 ended) |"
    )


def test_a_check_every_few_steps_shows_in_the_mean() -> None:
    assert mean_step_s([0, S, 2 * S, 6 * S]) == 2.0
    assert math.isnan(mean_step_s([S]))


def test_a_restart_without_damage_belongs_to_the_types_of_checkpoints() -> None:
    assert [case.fault for case in cases_named(["hang"])] == ["hang"]
    assert [case.fault for case in cases_named(["io_error"])] == ["io_error", "no damage"]
    assert cases_named([]) == [*CASES, UNDAMAGED]
    with pytest.raises(InputError, match="workers here use none"):
        cases_named(["resource_unavailable"])


# ---- a damaged checkpoint and a restart ------------------------------------------------------------------


def restarted(*reports: Report, step: int = 6, damaged: str = "") -> Seen:
    """A run that was killed after step 11 and made this step 20 s after it was started again."""
    return Seen(
        injected_ns=INJECTED_NS,
        reports=reports,
        commits=[*commits(11, 99.0), *commits(step, 120.0, (5, 6, 7, 8))],
        digests=frozenset({"d"}),
        damaged=damaged,
    )


def test_what_each_says_of_a_checkpoint_names_its_step() -> None:
    failed = CheckpointFailed(id="a", occurred_ns=30, step=10, place="/c/step-10", reason="x.pack is damaged")
    lost = MemberLost(id="b", occurred_ns=20, subject="n0.1", reason="SIGKILL")
    (ours,) = holdfast_checkpoint_reports([lost, failed], 10)
    assert (ours.at_ns, ours.resources, ours.detail) == (20, ("step-10",), "/c/step-10: x.pack is damaged")
    theirs = gemini_reports(LOG_LINES)
    assert [(report.at_ns, report.resources) for report in theirs] == [
        (4, ("step-10",)),
        (5, ("step-10",)),
        (6, ()),
    ]


def test_a_damaged_checkpoint_is_localised_by_its_step_before_it_is_used() -> None:
    peer = Report(at_ns=INJECTED_NS + 15 * S, resources=("step-10",), kind="sdc", detail="a peer rejected it")
    told = Report(
        at_ns=INJECTED_NS + 16 * S, resources=("step-10",), kind="sdc", detail="rank-2.pt: checksum"
    )
    trial = judged_restart(CORRUPTED, "holdfast", restarted(peer, told, damaged="rank-2.pt"), "d", 4)
    assert trial.localised
    assert trial.localization.failed_resources == ("step-10",)
    assert trial.localization.failed_ranks == ()
    assert (trial.detect_s, trial.recover_s) == (15.0, 20.0)
    assert (trial.steps_lost, trial.workers_restarted, trial.false_alarms) == (0, 4, 0)
    assert (trial.bits_equal, trial.said) == (True, "rank-2.pt: checksum")
    late = Report(at_ns=INJECTED_NS + 30 * S, resources=("step-10",))
    assert not judged_restart(CORRUPTED, "holdfast", restarted(late), "d", 4).localization.detected


def test_steps_are_lost_against_the_newest_whole_checkpoint() -> None:
    assert judged_restart(CORRUPTED, "holdfast", restarted(step=1), "d", 4).steps_lost == 5
    assert judged_restart(UNDAMAGED, "holdfast", restarted(step=11), "d", 4).steps_lost == 0
    assert judged_restart(UNDAMAGED, "holdfast", restarted(step=6), "d", 4).steps_lost == 5


def test_an_undamaged_restart_that_says_anything_is_a_false_alarm() -> None:
    told = Report(at_ns=INJECTED_NS + S, resources=("step-10",))
    alarmed = judged_restart(UNDAMAGED, "holdfast", restarted(told, step=11), "d", 4)
    assert (alarmed.false_alarms, alarmed.localised) == (1, False)
    other = Report(at_ns=INJECTED_NS + S, resources=("step-5",))
    both = judged_restart(CORRUPTED, "holdfast", restarted(told, other), "d", 4)
    assert (both.false_alarms, both.localised) == (1, True)
    before = Report(at_ns=INJECTED_NS - S, ranks=(1,))
    assert judged_restart(UNDAMAGED, "holdfast", restarted(before, step=11), "d", 4).false_alarms == 0


def test_a_run_that_is_refused_has_no_bits() -> None:
    told = Report(at_ns=INJECTED_NS + 5 * S, resources=("step-10",))
    refused = msgspec.structs.replace(restarted(told), commits=commits(11, 99.0), digests=frozenset())
    trial = judged_restart(CORRUPTED, "holdfast", refused, "d", 4)
    assert (trial.localised, trial.recover_s, trial.bits_equal) == (True, None, None)
