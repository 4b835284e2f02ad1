"""The cost of incidents and runs: every layer by hand, sums, and runs that record little."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.economics.pricing.cost import incident_cost, run_cost
from holdfast.economics.pricing.layers import IncidentCost, Layer, RunCost, Stack
from holdfast.economics.pricing.prices import DEFAULTS, Prices, read
from holdfast.ledger.categories import Category
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import IncidentReport, Report
from holdfast.ledger.reporting import report
from holdfast.record.errors import InputError
from holdfast.record.events import (
    AnyEvent,
    CheckpointBegun,
    CheckpointLoaded,
    CheckpointSaved,
    CostRate,
    FaultObserved,
    KnownEvent,
    PhaseEntered,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    StepCommitted,
)
from holdfast.record.importers import Options, import_file

PUBLISHED = Path(__file__).parents[2] / "data" / "google-70b-112-nodes-events.jsonl"
SECOND = 10**9
HOUR = 3_600 * SECOND
GPUS = 8
PRICES = read(
    """
    usd_per_gpu_hour = 2
    opportunity_multiplier = 1.5
    labour_usd_per_hour = 100
    responders = 3
    follow_up_hours = 4
    paged_after_minutes = 10
    """
)


class Story:
    """A run, event by event; `at_s` is the time of the next one."""

    def __init__(self) -> None:
        self.at_s = 0
        self.events: list[AnyEvent] = []

    def tell(self, kind: Callable[..., KnownEvent], after_s: int = 0, **fields: Any) -> "Story":
        self.at_s += after_s
        number = len(self.events)
        self.events.append(
            kind(id=f"story-{number:06}", occurred_ns=self.at_s * SECOND, run="story", **fields)
        )
        return self

    def steps(self, first: int, last: int, step_s: int = 10) -> "Story":
        for step in range(first, last + 1):
            self.tell(StepCommitted, step_s, step=step)
        return self

    def report(self) -> Report:
        ledger = Ledger()
        ledger.add(self.events)
        return report("story", ledger.fold)


def started(**declared: Any) -> Story:
    """Steps of ten seconds on eight GPUs, at work from the start."""
    story = Story().tell(RunStarted, gpus=GPUS)
    story.tell(ReferenceDeclared, step_ns=10 * SECOND, gpus=GPUS, **declared)
    return story.tell(PhaseEntered, phase="step")


def failed(**declared: Any) -> Report:
    """A hundred steps, the last forty not saved; an hour from a fault to going on from step 60."""
    story = started(**declared).steps(1, 60)
    story.tell(CheckpointSaved, step=60).steps(61, 100)
    story.tell(FaultObserved, fault="XID 79", subject="node-3").tell(
        RunEnded, outcome="failed", reason="XID 79"
    )
    story.tell(CostRate, gpus=GPUS).tell(RunStarted, 3_000, gpus=GPUS).tell(PhaseEntered, phase="load")
    story.tell(CheckpointLoaded, 600, step=60).tell(PhaseEntered, phase="step").steps(61, 150)
    return (
        story.tell(CheckpointSaved, step=150)
        .tell(RunEnded, outcome="completed")
        .tell(CostRate, gpus=0)
        .report()
    )


def layers(stack: Stack) -> dict[str, Layer]:
    return {layer.key: layer for layer in stack.layers}


def usd(stack: Stack) -> dict[str, float | None]:
    return {layer.key: layer.usd for layer in stack.layers}


def only(told: Report, prices: Prices = PRICES) -> IncidentCost:
    (incident,) = told.incidents
    return incident_cost(told, incident.name, prices)


@pytest.fixture(scope="module")
def published() -> Report:
    ledger = Ledger()
    with import_file(PUBLISHED, Options(reference_step_s=8)) as reading:
        ledger.add(sorted(reading, key=lambda event: (event.occurred_ns, event.id)))
    return report("google", ledger.fold)


# -- the layers, by hand -----------------------------------------------------------------------------


def test_the_five_layers_of_an_incident() -> None:
    stack = only(failed()).stack
    # One hour of standing still, and forty steps of ten seconds done again, on eight GPUs at 2 USD.
    idle, again = GPUS * 1.0, GPUS * 400 / 3_600
    assert usd(stack) == pytest.approx(
        {
            "direct_compute": 2 * idle,
            "reserved_capacity": 0.5 * 2 * (idle + again),
            "rollback": 2 * again,
            # It is over with the first step that is new or done again, ten seconds after the hour.
            "response_labour": 100 * (3 * 3_610 / 3_600 + 4),
            "schedule_slip": 2 * (idle + again),
        }
    )
    assert stack.lost_gpu_hours == pytest.approx(idle + again)
    told = layers(stack)
    assert told["direct_compute"].gpu_hours == pytest.approx(idle)
    assert told["rollback"].gpu_hours == pytest.approx(again)
    assert told["response_labour"].gpu_hours is None


def test_every_layer_shows_its_formula_and_where_its_inputs_come_from() -> None:
    for prices in (PRICES, DEFAULTS):
        for layer in only(failed(), prices).stack.layers:
            assert layer.formula
            assert all(one.source and one.unit for one in layer.inputs)
            # A price is assumed exactly if it was not given.
            assumed = {one.name for one in layer.inputs if one.assumed}
            given = {one.name for one in layer.inputs if one.source == "the prices file"}
            measured = {one.name for one in layer.inputs if one.source == "the ledger"}
            assert assumed | given | measured == {one.name for one in layer.inputs}
            assert given == set() if prices is DEFAULTS else assumed <= {"value of a day"}


def test_the_direct_layer_says_what_the_time_went_to() -> None:
    direct = layers(only(failed()).stack)["direct_compute"]
    parts = {one.name: one.value for one in direct.inputs if one.source == "the ledger"}
    assert set(parts) == {"recovering", "starting"}
    assert sum(parts.values()) == direct.gpu_hours


def test_the_same_loss_as_progress() -> None:
    progress = only(failed(tokens_per_step=1_000)).stack.progress
    assert progress.run_hours == pytest.approx(1 + 400 / 3_600)
    assert progress.steps == pytest.approx(400)
    assert progress.tokens == pytest.approx(400_000)
    assert progress.day_share == pytest.approx((1 + 400 / 3_600) / 24)
    assert only(failed()).stack.progress.tokens is None


def test_the_sum_is_a_range_and_repeats_nothing() -> None:
    amounts = usd(stack := only(failed()).stack)
    assert None not in amounts.values()
    known = {key: amount or 0.0 for key, amount in amounts.items()}
    bill = known["direct_compute"] + known["rollback"] + known["response_labour"]
    assert stack.together is not None
    assert (stack.together.usd_min, stack.together.usd_max) == pytest.approx(
        (bill, bill + known["reserved_capacity"])
    )
    assert "Schedule slip is in neither" in stack.together.caveat


def test_a_value_of_a_day_is_part_of_the_most() -> None:
    prices = msgspec.structs.replace(
        PRICES, usd_per_day_of_delay=read("usd_per_day_of_delay = 24000").usd_per_day_of_delay
    )
    stack = only(failed(), prices).stack
    assert usd(stack)["schedule_slip"] == pytest.approx(1_000 * (1 + 400 / 3_600))
    assert stack.together is not None
    assert stack.together.usd_max == pytest.approx(sum(amount or 0.0 for amount in usd(stack).values()))
    assert "neither" not in stack.together.caveat


# -- labour ------------------------------------------------------------------------------------------


def incident(**changes: Any) -> IncidentReport:
    return msgspec.structs.replace(
        IncidentReport(
            name="1",
            what="hang",
            subject="",
            severity="fatal",
            began_ns=0,
            noticed_ns=HOUR,
            recovered_ns=2 * HOUR,
            restarts=0,
            members_lost=0,
            steps_rolled_back=0,
            lost_gpu_ns=HOUR,
            losses={"recovering": HOUR},
            evidence=("event-1",),
        ),
        **changes,
    )


@pytest.mark.parametrize(
    ("changes", "person_hours"),
    [
        ({}, 3 * 1 + 4),
        ({"recovered_ns": HOUR + 599 * SECOND}, 0),
        ({"recovered_ns": HOUR + 600 * SECOND}, 3 / 6 + 4),
        ({"recovered_ns": 0}, 0),
        ({"evidence": ()}, 0),
        ({"recovered_ns": None}, 3 * 2 + 4),
    ],
    ids=["noticed to over", "over before anyone came", "just not", "over when noticed", "unseen", "not over"],
)
def test_labour_is_from_being_noticed_until_it_is_over(changes: dict[str, Any], person_hours: float) -> None:
    told = msgspec.structs.replace(
        failed(), incidents=(incident(**changes),), last_ns=3 * HOUR, known_ns=3 * HOUR
    )
    assert usd(only(told).stack)["response_labour"] == pytest.approx(100 * person_hours)


# -- runs --------------------------------------------------------------------------------------------


def test_a_run_is_its_incidents_and_the_rest(published: Report) -> None:
    cost = run_cost(published, DEFAULTS)
    each = [incident_cost(published, one.name, DEFAULTS).stack for one in published.incidents]
    for key, amount in usd(cost.total).items():
        within, elsewhere = usd(cost.in_incidents)[key], usd(cost.elsewhere)[key]
        assert within == pytest.approx(sum(usd(stack)[key] or 0.0 for stack in each))
        assert amount == pytest.approx((within or 0.0) + (elsewhere or 0.0))
    lost = published.paid_gpu_ns - published.partition["useful"] - published.partition["unattributed"]
    assert cost.total.lost_gpu_hours == pytest.approx(lost / HOUR)
    told = layers(cost.total)
    assert (told["direct_compute"].gpu_hours or 0) + (told["rollback"].gpu_hours or 0) == pytest.approx(
        lost / HOUR
    )
    assert [line.usd for line in cost.incidents] == [usd(stack) for stack in each]


def test_what_no_incident_explains_is_elsewhere() -> None:
    story = started().steps(1, 50).tell(CheckpointBegun, step=50).tell(CheckpointSaved, 90, step=50)
    told = story.tell(PhaseEntered, phase="data").tell(PhaseEntered, 30, phase="step").steps(51, 60).report()
    cost = run_cost(told, PRICES)
    assert cost.incidents == ()
    assert usd(cost.in_incidents)["direct_compute"] == 0
    assert usd(cost.elsewhere)["direct_compute"] == pytest.approx(2 * GPUS * 120 / 3_600)
    assert usd(cost.total) == usd(cost.elsewhere)


def test_a_run_in_which_all_was_useful_cost_nothing() -> None:
    cost = run_cost(started().steps(1, 20).report(), PRICES)
    assert set(usd(cost.total).values()) == {0.0}
    assert cost.total.together is not None
    assert (cost.total.together.usd_min, cost.total.together.usd_max) == (0, 0)
    assert cost.total.progress.day_share == 0
    assert cost.remarks == ()


def test_gpus_outside_the_run_cost_money_and_no_time() -> None:
    told = started().steps(1, 60).tell(CostRate, gpus=3 * GPUS).steps(61, 120).report()
    total = run_cost(told, PRICES).total
    assert told.partition["idle"] == 2 * GPUS * 600 * SECOND
    assert usd(total)["direct_compute"] == pytest.approx(2 * 2 * GPUS * 600 / 3_600)
    assert usd(total)["schedule_slip"] == 0
    assert total.progress.run_hours == 0


def test_without_gpus_only_labour_is_known() -> None:
    told = (
        Story()
        .tell(RunStarted)
        .steps(1, 5)
        .tell(FaultObserved, fault="hang")
        .tell(RunEnded, 10, outcome="failed")
    )
    report_ = told.tell(RunStarted, 3_600).steps(6, 9).report()
    assert report_.gpus == 0
    cost = run_cost(report_, PRICES)
    labour = usd(cost.total).pop("response_labour")
    assert labour
    assert {key for key, amount in usd(cost.total).items() if amount is None} == {
        "direct_compute",
        "reserved_capacity",
        "rollback",
        "schedule_slip",
    }
    assert cost.total.together is None
    assert cost.total.progress.day_share is None
    assert "No GPUs are recorded" in cost.remarks[0]


def test_an_incident_that_is_not_over_is_told_so_far() -> None:
    story = started().steps(1, 50).tell(FaultObserved, fault="hang", subject="node-1")
    told = (
        story.tell(RunEnded, outcome="failed")
        .tell(CostRate, gpus=GPUS)
        .tell(CostRate, 7_200, gpus=GPUS)
        .report()
    )
    cost = only(told)
    assert not cost.over
    assert cost.ended_ns == told.last_ns
    assert usd(cost.stack)["direct_compute"] == pytest.approx(2 * GPUS * 2)
    assert usd(cost.stack)["response_labour"] == pytest.approx(100 * (3 * 2 + 4))
    assert any("not over" in remark for remark in cost.remarks)


def test_the_price_of_an_incident_that_was_over_soon_says_when_it_was_spent() -> None:
    """Lost in a moment, and done again for an hour."""
    story = started().steps(1, 400).tell(RunStarted, gpus=GPUS)
    told = story.tell(CheckpointLoaded, 50, step=40).steps(41, 500).report()
    cost = only(told)
    assert cost.spent_ns is not None
    lasted_ns, spent_ns = cost.ended_ns - cost.began_ns, cost.spent_ns[1] - cost.spent_ns[0]
    assert lasted_ns < 2 * 60 * SECOND < 3_600 * SECOND <= spent_ns
    assert cost.stack.lost_gpu_hours > GPUS
    assert "its cost is spread over 1 h" in cost.remarks[0]


def test_unreported_slow_steps_are_priced_without_labour() -> None:
    told = started().steps(1, 100).steps(101, 400, step_s=20).report()
    cost = only(told)
    assert cost.name == "slow-1"
    assert usd(cost.stack)["response_labour"] == 0
    assert (usd(cost.stack)["direct_compute"] or 0) > 0
    assert any("It was not reported" in remark for remark in cost.remarks)


@pytest.mark.parametrize("cut_s", [1_500, 6_900, 7_050, 7_200])
def test_an_incident_costs_no_more_of_a_stretch_than_was_lost_in_it(cut_s: int) -> None:
    """100 quick steps, then 300 slow ones until 7,000 s, then quick ones: after that nothing was lost."""
    story = started().steps(1, 100).steps(101, 400, step_s=20).steps(401, 500)
    ledger = Ledger(cuts_ns=(cut_s * SECOND,))
    ledger.add(story.events)
    told = report("story", ledger.fold)
    (slow,) = told.incidents
    charged = [segment.incidents.get(slow.name, {}).get("slowdown", 0) for segment in told.segments]
    assert sum(charged) == slow.lost_gpu_ns
    booked = [segment.partition.get("slowdown", 0) for segment in told.segments]
    assert all(part <= most for part, most in zip(charged, booked, strict=True))


def test_what_is_unattributed_is_in_no_layer() -> None:
    told = Story().tell(RunStarted, gpus=GPUS).tell(RunEnded, 3_600, outcome="completed").report()
    cost = run_cost(told, PRICES)
    assert usd(cost.total)["direct_compute"] == 0
    assert any("100.0 % of what was paid for is in no layer" in remark for remark in cost.remarks)


@pytest.mark.parametrize(
    ("name", "hint"), [("2", "`holdfast report story`"), ("slow-1", "`holdfast report story`")]
)
def test_an_incident_that_is_not_there(name: str, hint: str) -> None:
    with pytest.raises(InputError, match=f"no incident '{name}'") as raised:
        incident_cost(failed(), name, PRICES)
    assert hint in raised.value.hint


# -- which price -------------------------------------------------------------------------------------


def priced(cost: RunCost | IncidentCost) -> tuple[float, bool, str]:
    stack = cost.stack if isinstance(cost, IncidentCost) else cost.total
    (price,) = [one for one in layers(stack)["direct_compute"].inputs if one.name == "price"]
    return price.value, price.assumed, price.source


def test_the_price_recorded_is_what_was_paid() -> None:
    story = started().tell(CostRate, usd_per_gpu_hour=3.0).steps(1, 60).tell(CostRate, usd_per_gpu_hour=5.0)
    told = story.steps(61, 120).report()
    assert told.usd_per_gpu_hour == pytest.approx(4.0)
    value, assumed, source = priced(cost := run_cost(told, PRICES))
    assert value == pytest.approx(4.0)
    assert (assumed, source) == (
        False,
        "mean of 3.00 to 5.00 USD, each hour at its own; recorded in the run",
    )
    assert any("recorded 4.00 USD" in remark and "2.00 USD" in remark for remark in cost.remarks)
    (rise,) = run_cost(told, DEFAULTS).remarks
    assert rise.startswith("The price of a GPU-hour went from 3.00 USD to 5.00 USD at 1970-01-01 00:10 UTC;")


def test_a_given_price_is_used_where_none_was_recorded() -> None:
    assert priced(run_cost(failed(chip="b200"), PRICES)) == (2.0, False, "the prices file")


def test_the_chip_decides_where_nothing_else_does() -> None:
    value, assumed, source = priced(run_cost(failed(chip="NVIDIA B200"), DEFAULTS))
    assert (value, assumed) == (6.69, True)
    assert "B200" in source
    assert priced(run_cost(failed(), DEFAULTS))[0] == 3.99


# -- checkpoints -------------------------------------------------------------------------------------


def test_checkpoints_in_terms_of_throughput() -> None:
    story = started(tokens_per_step=1_000)
    for save in range(3):
        story.steps(20 * save + 1, 20 * save + 20).tell(CheckpointBegun, step=20 * save + 20)
        story.tell(CheckpointSaved, 50, step=20 * save + 20)
    told = run_cost(story.steps(61, 85).report(), PRICES).checkpointing
    elapsed_days = (85 * 10 + 3 * 50) / 86_400
    assert told.efficiency == pytest.approx(850 / 1_000)
    assert told.healthy is not None
    assert (told.healthy.steps, told.healthy.tokens) == (8_640, 8_640_000)
    assert told.actual is not None
    assert told.actual.steps == pytest.approx(85 / elapsed_days)
    assert told.lost_to_saving is not None
    assert told.lost_to_saving.steps == pytest.approx(15 / elapsed_days)
    assert (told.recoveries, told.recovery_gpu_hours) == (0, None)
    assert told.exposure_mean is not None
    assert told.exposure_now is not None
    assert told.exposure_worst is not None
    assert (told.exposure_now.steps, told.exposure_mean.steps, told.exposure_worst.steps) == (25, 10, 25)
    assert told.exposure_now.gpu_hours == pytest.approx(25 * 10 * GPUS / 3_600)
    assert told.exposure_now.usd == pytest.approx(2 * 25 * 10 * GPUS / 3_600)
    assert told.exposure_now.tokens == 25_000
    assert told.exposure_now.day_share == pytest.approx(250 / 86_400)


def test_recovery_in_terms_of_throughput() -> None:
    told = run_cost(report_ := failed(), PRICES).checkpointing
    assert told.recoveries == 1
    assert told.recovery_gpu_hours == pytest.approx(GPUS * (1 + 400 / 3_600))
    assert told.lost_to_recovery is not None
    assert told.lost_to_recovery.steps == pytest.approx(400 * 86_400 / report_.elapsed_s)
    assert told.exposure_now is not None
    assert told.exposure_worst is not None
    assert (told.exposure_now.steps, told.exposure_worst.steps) == (0, 90)


def test_without_a_recorded_checkpoint_the_exposure_is_unknown() -> None:
    told = run_cost(started().steps(1, 70).report(), PRICES).checkpointing
    assert (told.exposure_now, told.exposure_mean, told.exposure_worst) == (None, None, None)
    assert told.efficiency is None


def test_a_completed_run_risks_nothing() -> None:
    """Its last 25 steps are in no checkpoint and need none; a failure before its end would have lost them."""
    story = started()
    for save in range(2):
        story.steps(20 * save + 1, 20 * save + 20).tell(CheckpointSaved, step=20 * save + 20)
    told = run_cost(story.steps(41, 65).tell(RunEnded, outcome="completed").report(), PRICES).checkpointing
    assert told.exposure_now is not None
    assert told.exposure_worst is not None
    assert (told.exposure_now.steps, told.exposure_now.usd, told.exposure_worst.steps) == (0, 0, 25)


def test_a_run_of_no_length_has_no_throughput() -> None:
    told = run_cost(Story().tell(RunStarted, gpus=GPUS).report(), PRICES)
    assert told.checkpointing.actual is None
    assert told.checkpointing.efficiency is None
    assert told.total.lost_gpu_hours == 0


# -- any report --------------------------------------------------------------------------------------

LOSSES = st.dictionaries(
    st.sampled_from(
        [category.key for category in Category if category.key not in ("useful", "unattributed")]
    ),
    st.integers(1, 10**18),
    max_size=6,
)


@settings(max_examples=examples(80), deadline=None)
@given(
    losses=st.lists(LOSSES, max_size=6),
    rest=LOSSES,
    useful=st.integers(1, 10**18),
    usd_per_gpu_hour=st.floats(0, 100),
    multiplier=st.floats(1, 5),
)
def test_layers_are_never_negative_and_always_add_up(
    losses: list[dict[str, int]],
    rest: dict[str, int],
    useful: int,
    usd_per_gpu_hour: float,
    multiplier: float,
) -> None:
    partition = {category.key: rest.get(category.key, 0) for category in Category} | {"useful": useful}
    for loss in losses:
        for key, part in loss.items():
            partition[key] += part
    told = msgspec.structs.replace(
        failed(),
        partition=partition,
        paid_gpu_ns=sum(partition.values()),
        segments=(
            msgspec.structs.replace(
                failed().segments[0],
                partition=partition,
                incidents={str(number): loss for number, loss in enumerate(losses, start=1)},
            ),
        ),
        incidents=tuple(
            incident(name=str(number), losses=loss, lost_gpu_ns=sum(loss.values()))
            for number, loss in enumerate(losses, start=1)
        ),
    )
    prices = read(f"usd_per_gpu_hour = {usd_per_gpu_hour!r}\nopportunity_multiplier = {multiplier!r}")
    cost = run_cost(told, prices)
    each = [incident_cost(told, one.name, prices).stack for one in told.incidents]
    for stack in (cost.total, cost.in_incidents, cost.elsewhere, *each):
        amounts = usd(stack)
        assert all(amount is not None and amount >= 0 for amount in amounts.values())
        # Direct compute and rollback are the whole loss at its price, once.
        bill = (amounts["direct_compute"] or 0.0) + (amounts["rollback"] or 0.0)
        assert bill == pytest.approx(stack.lost_gpu_hours * usd_per_gpu_hour)
    for key, amount in usd(cost.total).items():
        parts = [usd(stack)[key] or 0.0 for stack in (*each, cost.elsewhere)]
        assert amount == pytest.approx(sum(parts))
