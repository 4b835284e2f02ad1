"""Windows of a run's accounts: cut to the nanosecond; any windows that tile the time sum to the whole."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from quantity import sampled

from holdfast.economics.pricing.prices import DEFAULTS, Prices, read
from holdfast.economics.pricing.pricing import ACCRUED, Pricing
from holdfast.economics.pricing.rates import edges_ns
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.ledger.window import (
    SILENT_NS_MAX,
    Window,
    WindowStanding,
    accruing,
    fell_silent,
    standing,
    within,
)
from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    CheckpointBegun,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    CostRate,
    DataMoved,
    FaultObserved,
    MemberJoined,
    MemberLost,
    PhaseEntered,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    StepBegun,
    StepCommitted,
)

S = 10**9
HOUR = 3_600 * S
MANY, FEWER = 1_000, 150
EVER = Window()
RATES = read(
    """
    [[rates]]
    per_gpu_hour = 3.1
    [[rates]]
    per_gpu_hour = 1.7
    from = 1970-01-01T00:01:00
    to = 1970-01-01T00:04:10
    [[rates]]
    per_gpu_hour = 0.9
    from = 1970-01-01T00:03:20.5
    """
)


class History:
    """Events of one run, one after the other."""

    def __init__(self) -> None:
        self.at_ns = 0
        self.events: list[AnyEvent] = []

    def tell(self, kind: Any, after_ns: int = 0, **fields: Any) -> "History":
        self.at_ns += after_ns
        self.events.append(kind(id=f"e-{len(self.events):08}", occurred_ns=self.at_ns, run="run", **fields))
        return self


def random_history(random: Random) -> list[AnyEvent]:
    """Steps, faults, restarts, rollbacks, stalls, held GPUs, prices and references at any moments."""
    history = History()
    if random.random() < 0.5:
        history.tell(CostRate, gpus=random.choice((None, 8, 12)), usd_per_gpu_hour=random.choice((None, 2.0)))
    history.tell(RunStarted, random.randrange(30 * S), gpus=random.choice((0, 8, 8, 8)))
    if random.random() < 0.6:
        history.tell(ReferenceDeclared, step_ns=random.randrange(S, 9 * S), gpus=8)
    step = 0

    def after() -> int:
        return random.choice((0, 1, S, random.randrange(20 * S)))

    for _ in range(random.randrange(4, 26)):
        kind = random.randrange(14)
        if kind <= 5:
            step = max(0, step + random.choice((1, 1, 1, 1, 2, -1)))
            if random.random() < 0.4:
                history.tell(StepBegun, after(), step=step)
            history.tell(StepCommitted, after(), step=step)
        elif kind == 6:
            history.tell(
                FaultObserved,
                after(),
                fault="xid",
                subject="n1",
                severity=random.choice(("fatal", "degraded")),
            )
        elif kind == 7:
            history.tell(
                RunEnded, after(), outcome=random.choice(("completed", "failed", "stopped", "preempted"))
            )
        elif kind == 8:
            history.tell(RunStarted, after(), gpus=random.choice((4, 8)))
            step = random.randrange(step + 1)
            history.tell(CheckpointLoaded, after(), step=step)
        elif kind == 9:
            history.tell(CheckpointBegun, after(), step=step, blocking=True)
            history.tell(CheckpointSaved, after(), step=step, stall_ns=random.choice((0, S)))
        elif kind == 10:
            phase = random.choice(("step", "data", "eval", "stop", "load"))
            history.tell(PhaseEntered, after(), phase=phase)
        elif kind == 11:
            history.tell(
                CostRate,
                after(),
                gpus=random.choice((None, 0, 16)),
                usd_per_gpu_hour=random.choice((None, 5.5)),
            )
        elif kind == 12:
            history.tell(random.choice((MemberJoined, MemberLost)), after(), subject="m1")
        else:
            history.tell(
                ActionTaken, after(), action=random.choice(("drain", "restore", "restart")), subject="n1"
            )
            history.tell(DataMoved, after(), what="egress", size_bytes=random.randrange(10**9))
    return history.events


def told(
    events: Sequence[AnyEvent], window: Window = EVER, cuts: Sequence[int] = (), now_ns: int | None = None
) -> Report:
    ledger = Ledger(cuts_ns=(*cuts, *window.edges_ns))
    standings, done = {}, 0
    for edge in window.edges_ns:
        count = sum(event.occurred_ns < edge for event in events)
        ledger.add(events[done:count])
        standings[edge], done = standing(ledger.fold), count
    ledger.add(events[done:])
    whole = report("run", ledger.fold)
    if now_ns is not None:
        whole = accruing(whole, now_ns)
    return within(whole, window, standings.get(window.from_ns or -1), standings.get(window.to_ns or -1))


def tiled(
    events: Sequence[AnyEvent], windows: Sequence[Window], cuts: Sequence[int], now_ns: int
) -> list[Report]:
    """The reports of windows that tile the time, from one fold."""
    edges = [window.to_ns for window in windows if window.to_ns is not None]
    ledger = Ledger(cuts_ns=(*cuts, *edges))
    standings: list[WindowStanding | None] = [None]
    done = 0
    for edge in edges:
        count = sum(event.occurred_ns < edge for event in events)
        ledger.add(events[done:count])
        standings.append(standing(ledger.fold))
        done = count
    ledger.add(events[done:])
    whole = accruing(report("run", ledger.fold), now_ns)
    standings.append(None)
    return [
        within(whole, window, *bounds) for window, bounds in zip(windows, pairwise(standings), strict=True)
    ]


def usd(one: Report, prices: Prices) -> Fraction:
    charges = Pricing(one, prices).charges()
    return sum((charge.usd(charge.gpu_ns) for charge in charges), Fraction())


def losses(one: Report) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for incident in one.incidents:
        assert sum(incident.losses.values()) == incident.lost_gpu_ns
        found.update({(incident.name, key): part for key, part in incident.losses.items()})
    return found


def drawn(one: Report) -> Counter[str]:
    """The sum of all buckets of a report's course."""
    found = Counter(timed=sum(one.course.timed))
    for bucket in one.course.buckets:
        found.update(bucket)
    return +found


@pytest.mark.slow
@pytest.mark.parametrize("histories", sampled([FEWER, MANY], [FEWER]))
def test_windows_that_tile_the_time_sum_to_the_whole(histories: int) -> None:
    """Random histories, each tiled at random: by category, incident and count, and in money."""
    kinds: Counter[str] = Counter()
    for seed in range(histories):
        random = Random(seed)
        events = random_history(random)
        last_ns = events[-1].occurred_ns
        now_ns = last_ns + random.choice((0, 1, 40 * S))
        rates = sorted(edges_ns(RATES.rates))
        whole = told(events, cuts=rates, now_ns=now_ns)
        inside = sorted({random.randrange(-S, now_ns + S) for _ in range(random.randrange(1, 4))})
        windows = [Window(from_ns=from_ns, to_ns=to_ns) for from_ns, to_ns in pairwise([None, *inside, None])]
        tiles = tiled(events, windows, rates, now_ns)
        if seed % 10 == 0:  # alone, a window is what it is among others
            assert [told(events, window, rates, now_ns).partition for window in windows] == [
                tile.partition for tile in tiles
            ], seed
        partition: Counter[str] = Counter()
        lost: Counter[tuple[str, str]] = Counter()
        for tile in tiles:
            assert all(part >= 0 for part in tile.partition.values()), seed
            assert sum(tile.partition.values()) == tile.paid_gpu_ns
            partition.update(tile.partition)
            lost.update(losses(tile))
        assert partition == Counter(whole.partition), seed
        assert +lost == +losses(whole), seed
        assert sum(tile.accrued.gpu_ns for tile in tiles if tile.accrued) == (
            whole.accrued.gpu_ns if whole.accrued else 0
        ), seed
        assert sum((usd(tile, RATES) for tile in tiles), Fraction()) == usd(whole, RATES), seed
        for name in ("steps", "launches", "restarts", "saves", "loads"):
            assert sum(getattr(tile.counts, name) for tile in tiles) == getattr(whole.counts, name), seed
        assert sum((drawn(tile) for tile in tiles), Counter()) == drawn(whole), seed
        assert sum(gap.gpu_ns for tile in tiles for gap in tile.gaps) == sum(
            gap.gpu_ns for gap in whole.gaps
        ), seed
        kinds.update(key for key, part in whole.partition.items() if part)
        kinds["gap"] += bool(whole.gaps)
        kinds["accrued"] += whole.accrued is not None
        kinds["incident"] += bool(whole.incidents)
    assert len(kinds) >= 17, kinds  # the histories have been through nearly every category
    assert min(kinds.values()) > histories / 100, kinds


def test_a_run_is_cut_where_the_window_ends_though_nothing_happened_there() -> None:
    """1,000 GPUs through October and November."""
    october, november, december = (day * 24 * HOUR for day in (273, 304, 334))
    history = (
        History()
        .tell(RunStarted, october, gpus=1_000)
        .tell(RunEnded, december - october, outcome="completed")
    )
    first = told(history.events, Window(to_ns=november))
    second = told(history.events, Window(from_ns=november))
    assert first.paid_gpu_ns == 744_000 * HOUR
    assert second.paid_gpu_ns == 720_000 * HOUR
    assert (first.ended, first.last_ns) == (None, november)
    assert second.ended is not None
    assert "The run went on after this window." in first.remarks


def test_what_happened_later_says_what_time_in_the_window_was() -> None:
    """Steps of the first minute that the second one rolls back and never does again were no use."""
    history = History().tell(RunStarted, gpus=1).tell(ReferenceDeclared, step_ns=10 * S, gpus=1)
    history.tell(PhaseEntered, phase="step")
    for step in range(1, 7):
        history.tell(StepCommitted, 10 * S, step=step)
    history.tell(RunEnded, outcome="failed", reason="xid").tell(RunStarted, gpus=1)
    history.tell(CheckpointLoaded, 30 * S, step=2).tell(RunEnded, outcome="stopped")
    first = told(history.events, Window(to_ns=45 * S))
    assert {key: part // S for key, part in first.partition.items() if part} == {
        "useful": 20,
        "discarded": 25,
    }
    (incident,) = first.incidents
    assert incident.losses == {"discarded": 25 * S}


def test_what_a_running_run_holds_is_accrued_and_is_no_category() -> None:
    history = History().tell(RunStarted, gpus=100).tell(ReferenceDeclared, step_ns=10 * S, gpus=100)
    history.tell(PhaseEntered, phase="step")
    for step in range(1, 5):
        history.tell(StepCommitted, 10 * S, step=step)
    now_ns = 40 * S + 2 * HOUR
    whole = told(history.events, now_ns=now_ns)
    assert whole.partition["useful"] == whole.paid_gpu_ns == 100 * 40 * S
    assert whole.accrued is not None
    assert whole.accrued.gpu_ns == 200 * HOUR
    window = told(history.events, Window(from_ns=40 * S + HOUR), now_ns=now_ns)
    assert window.accrued is not None
    assert (window.accrued.gpu_ns, window.paid_gpu_ns) == (100 * HOUR, 0)
    charges = Pricing(window, DEFAULTS).charges()
    assert [dict(charge.parts) for charge in charges if charge.gpu_ns] == [{ACCRUED: 100 * HOUR}]


@pytest.mark.parametrize(("silent_ns", "goes_on"), [(SILENT_NS_MAX, True), (SILENT_NS_MAX + 1, False)])
def test_a_run_that_fell_silent_is_not_taken_to_go_on(silent_ns: int, goes_on: bool) -> None:
    history = History().tell(RunStarted, S, gpus=8)
    found = told(history.events, now_ns=S + silent_ns)
    assert (found.accrued is not None) == goes_on
    assert fell_silent(found, S + silent_ns) != goes_on
    ended = told(history.tell(RunEnded, S, outcome="completed").events, now_ns=3 * S)
    assert ended.accrued is None
    assert not fell_silent(ended, 10**18)


def test_a_gap_is_told_in_the_window_it_lies_in() -> None:
    """Down from the first hour to the fourth: two hours of it lie before the window's end."""
    history = History().tell(RunStarted, gpus=8).tell(RunEnded, HOUR, outcome="failed")
    history.tell(RunStarted, 3 * HOUR, gpus=8).tell(RunEnded, HOUR, outcome="completed")
    before, after, later = (
        told(history.events, window)
        for window in (
            Window(to_ns=3 * HOUR),
            Window(from_ns=3 * HOUR, to_ns=4 * HOUR),
            Window(from_ns=4 * HOUR),
        )
    )
    assert [gap.gpu_ns // HOUR for gap in (*before.gaps, *after.gaps, *later.gaps)] == [16, 8]
    assert any("it is 16.00 GPU-hours" in remark for remark in before.remarks)
    assert any("it is 8.00 GPU-hours" in remark for remark in after.remarks)
    assert not any("down between two attempts" in remark for remark in later.remarks)


def test_incidents_take_room_only_where_they_cost_something() -> None:
    """A hundred incidents and a thousand cuts: each incident lies between two or three of them."""
    history = History().tell(RunStarted, gpus=8)
    for number in range(100):
        history.tell(StepCommitted, 5 * HOUR, step=number + 1)
        history.tell(FaultObserved, HOUR, fault="xid", subject="n1").tell(RunEnded, outcome="failed")
        history.tell(RunStarted, HOUR, gpus=8)
    ledger = Ledger(cuts_ns=range(0, history.at_ns, history.at_ns // 1_000))
    ledger.add(history.events)
    cuts = ledger.fold.settled().accounts.timeline.cuts
    assert cuts is not None
    assert len(cuts.parts) > 1_000
    assert sum(map(len, cuts.blamed.values())) < 1_500


def test_when_an_incident_cost_something_is_told_as_far_as_it_lies_in_the_window() -> None:
    history = History().tell(RunStarted, gpus=8)
    for step in range(1, 361):
        history.tell(StepCommitted, 10 * S, step=step)
    history.tell(RunStarted, gpus=8).tell(CheckpointLoaded, 60 * S, step=0)
    for step in range(1, 361):
        history.tell(StepCommitted, 10 * S, step=step)
    (whole,) = told(history.events).incidents
    assert whole.spent_ns is not None
    cut_ns = whole.spent_ns[0] + HOUR // 2
    for window in (Window(to_ns=cut_ns), Window(from_ns=cut_ns)):
        part = told(history.events, window)
        spent_ns = [one.spent_ns for one in part.incidents]
        assert spent_ns == [window.clipped(*whole.spent_ns) if part.incidents[0].losses else None]
        assert not any("spread over 1 h" in remark for remark in part.remarks)
    assert any("spread over 1 h" in remark for remark in told(history.events).remarks)


def test_what_endangered_the_run_is_told_in_the_window_in_which_it_failed() -> None:
    history = History().tell(RunStarted, gpus=8).tell(StepCommitted, HOUR, step=1)
    for step, hours in ((2, 1), (3, 2)):
        history.tell(CheckpointBegun, hours * HOUR, step=step, blocking=False)
        history.tell(CheckpointFailed, step=step, reason="No space left on device")
    history.tell(StepCommitted, HOUR, step=4).tell(RunEnded, outcome="completed")
    edges = (2 * HOUR, 3 * HOUR, 5 * HOUR)  # the failures are after 2 h and 4 h
    windows = [Window(to_ns=edges[0]), *(Window(from_ns=a, to_ns=b) for a, b in pairwise(edges))]
    parts = [told(history.events, window) for window in (*windows, Window(from_ns=edges[-1]))]
    assert [part.counts.saves_failed for part in parts] == [0, 1, 1, 0]
    assert [[one.times for one in part.dangers] for part in parts] == [[], [1], [2], []]
