"""Each scenario against its truth: what that says is in the events and the samples, there and then only."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from quantity import sampled

from holdfast.drills.scenarios import SCENARIOS, TABLETOP, Played, play
from holdfast.drills.scenarios.truth import MetricTrace
from holdfast.drills.telemetry import CLEAN
from holdfast.drills.training import CHECKPOINT_INTERVAL_S
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.record.errors import InputError
from holdfast.record.events import ActionTaken, FaultObserved, RunStarted, StepCommitted, decode, encode
from holdfast.signals.frame import Frame
from holdfast.twin.cluster import Layout

pytestmark = pytest.mark.slow

SECOND_NS = 10**9
SEEDS = (1, 2)
SETTLED_NS = 200 * SECOND_NS
"""By then a cause that sets in slowly is felt in full, or nearly."""
HEALTHY_WRITE_S = 12.8
EVENT_SLOWDOWN_TOLERANCE = 0.04
LEDGER_TOLERANCE_S = 6.0

INCIDENTS = [name for name, scenario in SCENARIOS.items() if scenario.is_incident]
DECOYS = [name for name, scenario in SCENARIOS.items() if not scenario.is_incident]
ROVING = ("gc-pause", "sequence-imbalance")
"""Another member each step: no member is slow, but the run is."""
REQUESTS = "node_mountstats_nfs_operations_requests_total"
RESPONSE_TIME = "node_mountstats_nfs_operations_response_time_seconds_total"

_plays: dict[tuple[str, int], Played] = {}


def played(name: str, seed: int) -> Played:
    """Each is played once; none is changed."""
    if (name, seed) not in _plays:
        _plays[name, seed] = play(name, seed, dirt=CLEAN)
    return _plays[name, seed]


def ledger(one: Played) -> Report:
    fold = Ledger()
    fold.add(one.events)
    return report(one.run, fold.fold)


def over(one: Played) -> int:
    return one.truth.ended_ns or one.events[-1].occurred_ns


def commits(one: Played) -> NDArray[np.int64]:
    return np.array([event.occurred_ns for event in one.events if isinstance(event, StepCommitted)])


every_incident = pytest.mark.parametrize("name", INCIDENTS)
every_scenario = pytest.mark.parametrize("name", SCENARIOS)
every_seed = pytest.mark.parametrize("seed", SEEDS)


@pytest.mark.parametrize("name", sampled(SCENARIOS, ["cooling-pump", "pool-link", "warm-day", "quiet"]))
def test_the_same_seed_is_the_same_bytes(name: str) -> None:
    one, again = play(name, 3), play(name, 3)
    assert [encode(event) for event in one.events] == [encode(event) for event in again.events]
    assert msgspec.json.encode(one.truth) == msgspec.json.encode(again.truth)
    for metric in ("DCGM_FI_DEV_GPU_TEMP", "node_infiniband_symbol_error_total", "HeatRemovedkW"):
        first, second = one.telemetry.sample(metric), again.telemetry.sample(metric)
        assert first.values.tobytes() == second.values.tobytes()
        assert (first.labels, first.words) == (second.labels, second.words)


@every_incident
def test_seeds_differ(name: str) -> None:
    stories = {(one.truth.began_ns, one.truth.slowdown) for one in (played(name, seed) for seed in SEEDS)}
    assert len(stories) == len(SEEDS)


@every_incident
def test_it_starts_in_one_domain_and_surfaces_in_another(name: str) -> None:
    truth = played(name, 1).truth
    assert truth.cause.domain != truth.surface.domain
    assert truth.cause.owner != "none"
    assert truth.seam != "none"
    assert truth.affected
    assert truth.surface.at_ns is not None
    assert truth.began_ns <= truth.surface.at_ns < over(played(name, 1))


def test_every_seam_has_scenarios() -> None:
    seams = [SCENARIOS[name].seam for name in INCIDENTS]
    assert {seam: seams.count(seam) >= 3 for seam in seams} == {
        "facilities-ml": True,
        "gpu-fabric-pool": True,
        "runtime-schedule-finance": True,
    }


@every_seed
@every_scenario
def test_events_are_a_record_and_its_ledger_sums_exactly(name: str, seed: int) -> None:
    one = played(name, seed)
    told = ledger(one)
    assert sum(told.partition.values()) == told.paid_gpu_ns
    assert [decode(encode(event)) for event in one.events] == list(one.events)
    assert len({event.id for event in one.events}) == len(one.events)
    stamps = [event.occurred_ns for event in one.events]
    assert stamps == sorted(stamps)


@every_seed
@every_scenario
def test_the_ledger_finds_the_time_that_the_truth_says_was_lost(name: str, seed: int) -> None:
    one = played(name, seed)
    told = ledger(one)
    lost_s = {key: part / told.gpus / SECOND_NS for key, part in told.partition.items()}
    usual_s = HEALTHY_WRITE_S * told.elapsed_s / (CHECKPOINT_INTERVAL_S + HEALTHY_WRITE_S)
    lost_s["checkpoint_stall"] -= usual_s
    found_s = sum(
        lost_s[key]
        for key in ("slowdown", "data_stall", "checkpoint_stall", "recovering", "localising", "discarded")
    )
    # One checkpoint more or less falls into the time that is looked at.
    assert found_s == pytest.approx(one.truth.lost_s, abs=LEDGER_TOLERANCE_S + HEALTHY_WRITE_S)
    if one.truth.is_incident:
        stalls = ("slowdown", "data_stall", "checkpoint_stall")
        assert max(stalls, key=lambda key: lost_s[key]) == one.truth.loss


@every_seed
@every_scenario
def test_steps_are_slower_by_what_the_truth_says(name: str, seed: int) -> None:
    one = played(name, seed)
    times_ns = commits(one)
    during = times_ns[(times_ns >= one.truth.began_ns) & (times_ns <= over(one))]
    pace_s = (over(one) - one.truth.began_ns) / len(during) / SECOND_NS
    usual_s = one.healthy_step_s * (1 + HEALTHY_WRITE_S / CHECKPOINT_INTERVAL_S)
    assert pace_s / usual_s == pytest.approx(one.truth.slowdown, rel=EVENT_SLOWDOWN_TOLERANCE)
    assert (one.truth.slowdown > 1.03) == one.truth.is_incident


@every_scenario
def test_before_it_begins_nothing_is_wrong(name: str) -> None:
    one = played(name, 1)
    before = commits(one)[commits(one) < one.truth.began_ns]
    steps_s = np.diff(before) / SECOND_NS
    assert np.median(steps_s) == pytest.approx(one.healthy_step_s, rel=0.01)


def courses(one: Played, trace: MetricTrace) -> tuple[Frame, list[int]]:
    """The samples of a metric and the columns that the trace is about. Of a counter its growth counts, and of
    a sum of times its growth for each request.
    """
    samples = one.telemetry.sample(trace.metric)
    if samples.kind == "counter":
        grown = np.diff(samples.values, axis=0, prepend=np.nan)
        if trace.metric == RESPONSE_TIME:
            asked = np.diff(one.telemetry.sample(REQUESTS).values, axis=0, prepend=np.nan)
            grown = np.divide(grown, asked, where=asked > 0, out=np.full(asked.shape, np.nan))
        samples = msgspec.structs.replace(samples, values=grown)
    columns = [index for index, subject in enumerate(samples.subjects) if subject in set(trace.subjects)]
    assert columns, f"nothing in {trace.metric} is about {trace.subjects}"
    return samples, columns


def moved(one: Played, samples: Frame, columns: list[int]) -> bool:
    """Whether these series, while it lasts, leave the range they had before it by more than they vary."""
    times_ns = samples.times_ns
    before = samples.values[(times_ns > times_ns[5]) & (times_ns < one.truth.began_ns)][:, columns]
    during = samples.values[(times_ns > one.truth.began_ns + SETTLED_NS) & (times_ns < over(one))][:, columns]
    low, high = np.nanmin(before), np.nanmax(before)
    room = 0.3 * (high - low) + 1e-3 * abs(high)
    return bool((np.nanmax(during) > high + room) or (np.nanmin(during) < low - room))


@every_seed
@every_incident
def test_the_symptom_is_where_the_truth_says(name: str, seed: int) -> None:
    one = played(name, seed)
    samples, columns = courses(one, one.truth.surface.trace)
    assert moved(one, samples, columns)
    others = [index for index in range(len(samples.subjects)) if index not in columns]
    if others and name != "hbm-errors":  # there a spare joins, which no range before it covers
        assert not moved(one, samples, others)


@every_seed
@every_incident
def test_the_cause_can_be_seen_at_its_subject(name: str, seed: int) -> None:
    one = played(name, seed)
    for trace in one.truth.traces:
        samples, columns = courses(one, trace)
        assert moved(one, samples, columns), trace.metric
    assert bool(one.truth.traces) == (name not in (*ROVING, "pipeline-stage"))


@pytest.mark.parametrize("name", ROVING)
def test_of_a_roving_straggler_no_member_is_it(name: str) -> None:
    one = played(name, 1)
    compute = one.telemetry.sample("holdfast_member_compute_seconds")
    during = compute.values[
        (compute.times_ns > one.truth.began_ns + SETTLED_NS) & (compute.times_ns < over(one))
    ]
    slowest = during.argmax(axis=1)
    assert len(set(slowest.tolist())) > len(slowest) / 3
    assert np.median(during, axis=0).max() < 5.2


def test_the_slow_members_of_a_pipeline_share_no_hardware() -> None:
    affected = [int(member[1:]) for member in played("pipeline-stage", 1).truth.affected]
    assert len({TABLETOP.number("leaf", node) for node in affected}) == len(affected)
    assert {TABLETOP.number("loop", node) for node in affected} == set(range(TABLETOP.count("loop")))


def test_an_operator_is_told_only_what_somebody_saw() -> None:
    for name in SCENARIOS:
        faults = [event for event in played(name, 1).events if isinstance(event, FaultObserved)]
        decided = [event.action for event in played(name, 1).events if isinstance(event, ActionTaken)]
        assert [fault.fault for fault in faults] == (["xid-95"] if name == "hbm-errors" else [])
        expected = {
            "hbm-errors": ["drain"],
            "pipeline-stage": ["resplit"],
            "checkpoint-cadence": ["set-cadence"],
            "planned-maintenance": ["drain", "restore"],
        }
        assert decided == expected.get(name, [])
        assert name not in played(name, 1).run


@pytest.mark.parametrize("name", DECOYS)
def test_decoys_lose_nothing(name: str) -> None:
    truth = played(name, 1).truth
    assert (truth.slowdown, truth.lost_s, truth.surface.at_ns) == (1.0, 0.0, None)


def test_a_lost_member_is_replaced_and_the_run_is_well_again() -> None:
    one = played("hbm-errors", 1)
    told = ledger(one)
    assert told.counts.members_lost == 1
    died_ns = over(one)
    after = commits(one)[commits(one) > died_ns + 60 * SECOND_NS]
    assert np.median(np.diff(after)) / SECOND_NS == pytest.approx(one.healthy_step_s, rel=0.01)


def test_it_scales_with_the_cluster_and_the_time() -> None:
    layout = Layout(gpus=2_048)
    one = play("cooling-pump", 1, layout=layout, duration_s=3_600, scrape_s=15)
    assert len(one.truth.affected) == layout.size("loop")
    assert len(one.telemetry.sample("DCGM_FI_DEV_GPU_TEMP").times_ns) == 240
    started = next(event for event in one.events if isinstance(event, RunStarted))
    assert started.gpus == 2_048 - 4 * 8


@pytest.mark.parametrize(
    ("name", "changes", "sentence", "hint"),
    [
        ("coolin-pump", {}, "no scenario 'coolin-pump'", "Did you mean cooling-pump?"),
        ("earthquake", {}, "no scenario 'earthquake'", "There are: cooling-pump, "),
        ("quiet", {"layout": Layout(gpus=64)}, "not 64 GPUs", "256 or more"),
        ("quiet", {"layout": Layout(gpus=1_021)}, "not 1021 GPUs", "multiple of 8"),
        ("quiet", {"duration_s": 60}, "cannot last 60 s", "between 900 and 86400"),
        ("quiet", {"scrape_s": 0}, "every 0 s", "between 1 and 60"),
    ],
)
def test_mistakes_are_told(name: str, changes: dict[str, float], sentence: str, hint: str) -> None:
    with pytest.raises(InputError, match=sentence) as refused:
        play(name, 1, **changes)  # type: ignore[arg-type]
    assert hint in refused.value.hint


def test_the_page_has_every_scenario_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
    rows = [
        f"| `{one.name}` | {one.title} | {one.domain} | {one.surfaces_in} | {one.seam} | {one.owner} |"
        for one in SCENARIOS.values()
    ]
    assert re.findall(r"^\| `[a-z]+(?:-[a-z]+)*` \| .*$", page, re.MULTILINE) == rows
