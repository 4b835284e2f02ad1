"""Random histories with random holes: useful, lost and not known, against a truth made with the history."""

import csv
import html
import io
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import msgspec
import pytest
from quantity import sampled

from holdfast import wording
from holdfast.cli import cost_text, finance_text, report_text
from holdfast.dashboard import finance_page, page
from holdfast.economics.finance.balance import Balance
from holdfast.economics.finance.finance import FinanceQuestion, cuts_ns, finance
from holdfast.economics.finance.invoice import UNKNOWN, USEFUL, focus_csv
from holdfast.economics.finance.statement import Finance
from holdfast.economics.pricing.cost import run_cost
from holdfast.economics.pricing.months import month_of, months_between
from holdfast.economics.pricing.prices import DEFAULTS
from holdfast.ledger.accounts import START_NS_MAX
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    CheckpointLoaded,
    CostRate,
    GenerationOpened,
    KnownEvent,
    MemberJoined,
    MemberLost,
    PhaseEntered,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    StepCommitted,
)
from holdfast.wording.units import HOUR_NS, MINUTE_NS
from tests.economics.finance.shown import assert_three

HISTORIES = 150
RUNS_MAX = 3
SHARE_OFF_MAX = 1e-9
LATE_NS = 10**18 * 5


class Truth(msgspec.Struct):
    """GPU-nanoseconds as the history was made."""

    useful: int = 0
    lost: int = 0
    unknown: int = 0

    def add(self, other: "Truth") -> None:
        self.useful += other.useful
        self.lost += other.lost
        self.unknown += other.unknown

    @property
    def three(self) -> tuple[int, int, int]:
        return self.useful, self.lost, self.unknown


class History:
    """A run of several attempts. What happens is added to the truth when it is made; holes leave no lines.

    The rules of docs/ledger.md that it takes for granted: a step is useful for as long as the declared
    reference, and lost beyond it; a step that a failure or a stop cuts off is lost for as long as a step may
    take; held GPUs between attempts are lost. Silence before a failure is lost if the run then goes on from
    where it was before it; if nothing follows, it is lost if it was short, and else not known.
    """

    def __init__(self, random: Random, number: int, begin_ns: int) -> None:
        self.random, self.run, self.now_ns = random, f"run-{number}", begin_ns
        self.gpus = random.choice((1, 8, 64, 1_000))
        self.price = Fraction(random.randrange(50, 900), 100)
        self.step_ns = random.randrange(10**9, 300 * 10**9)
        self.is_held = random.random() < 0.4
        self.has_phases = random.random() < 0.3
        self.has_members = random.random() < 0.4
        self.is_bare = not (self.has_phases or self.has_members)
        self.is_heard = self.may_roll_back = False
        self.drained_gpus = 0
        self.silences_ns: list[int] = []  # before failures that nothing has followed yet
        self.step = -1
        self.truth = Truth()
        self.events: list[AnyEvent] = []
        self.tell(CostRate, usd_per_gpu_hour=float(self.price), gpus=self.gpus if self.is_held else None)
        self.tell(ReferenceDeclared, step_ns=self.step_ns)
        attempts = random.randrange(1, 5)
        for attempt in range(attempts):
            self.attempt(is_last=attempt == attempts - 1)
        self.judge(self.silences_ns)

    def tell(self, kind: Callable[..., KnownEvent], **fields: Any) -> None:
        event_id = f"{self.run}-{len(self.events):06}"
        self.events.append(kind(id=event_id, occurred_ns=self.now_ns, run=self.run, **fields))

    def passes(self, duration_ns: int, *, useful_ns: int = 0, unknown_ns: int = 0) -> None:
        self.now_ns += duration_ns
        self.truth.useful += useful_ns * self.gpus
        self.truth.unknown += unknown_ns * self.gpus
        self.truth.lost += (duration_ns - useful_ns - unknown_ns) * self.gpus

    def some_ns(self, steps: int) -> int:
        return self.random.randrange(1, steps * self.step_ns)

    def attempt(self, *, is_last: bool) -> None:
        team = self.random.choice(("", "a", "b"))
        self.tell(RunStarted, gpus=self.gpus, team=team, project=self.random.choice(("", "x")))
        if self.random.random() < 0.4 and not self.drained_gpus:
            if not self.say_nothing(is_last=is_last):
                return
        else:
            self.do_steps()
            if not (self.has_members and not self.drained_gpus and self.lose_members()):
                self.end(is_last=is_last)
        if not is_last:
            gap_ns = self.random.randrange(MINUTE_NS, 20 * HOUR_NS)
            self.now_ns += gap_ns
            self.truth.lost += gap_ns * self.gpus * self.is_held

    def judge(self, silences_ns: list[int]) -> None:
        """Nothing tells what these were: starts, if they were short and the run ever said anything."""
        self.truth.unknown += self.gpus * sum(
            silent_ns for silent_ns in silences_ns if silent_ns > START_NS_MAX or not self.is_heard
        )
        self.truth.lost += self.gpus * sum(
            silent_ns for silent_ns in silences_ns if silent_ns <= START_NS_MAX and self.is_heard
        )

    def say_nothing(self, *, is_last: bool) -> bool:
        """An attempt of which nothing but its start and end is known, or what it loaded. Return whether it
        was said to have ended.
        """
        is_loaded = self.load()
        silent_ns = self.be_silent()
        how = self.random.choice(("completed", "stopped", "failed", *(() if is_last else ("vanished",))))
        if how in ("failed", "vanished"):
            self.silences_ns.append(silent_ns)
        elif is_loaded:
            self.judge([silent_ns])
        else:
            self.truth.unknown += silent_ns * self.gpus
        if how == "vanished":
            return False
        self.tell(RunEnded, outcome=how)
        self.may_roll_back = how != "completed"
        return True

    def load(self) -> bool:
        """Go on from an earlier step: those after it are lost, until they are done again."""
        if not self.may_roll_back or self.step < 1 or self.random.random() < 0.5:
            return False
        self.passes(self.some_ns(5))
        back = self.random.randrange(min(self.step, 12))
        self.step -= back
        self.truth.useful -= back * self.step_ns * self.gpus
        self.truth.lost += back * self.step_ns * self.gpus
        self.go_on()
        self.tell(CheckpointLoaded, step=self.step)
        self.is_bare = False
        return True

    def join(self) -> None:
        """The members come; if a node is drained, half of them."""
        if self.drained_gpus:
            self.tell(MemberJoined, subject="half", gpus=self.gpus - self.drained_gpus)
        elif self.has_members:
            self.members = [f"m{number}" for number in range(2 if self.gpus > 1 else 1)]
            for name in self.members:
                self.tell(MemberJoined, subject=name, gpus=self.gpus // len(self.members))

    def lose_members(self) -> bool:
        """Lose a member, again and again. Return whether the attempt ends without another step."""
        silences_ns: list[int] = []  # since the latest loss
        losses = 0
        while self.random.random() < 0.5:
            if not losses:
                self.passes(self.some_ns(2))
            self.silences_ns += silences_ns
            losses += 1
            lost = self.random.randrange(len(self.members))
            self.tell(MemberLost, subject=self.members[lost])
            self.members[lost] = f"{losses}-{self.members[lost]}"
            silences_ns = [self.be_silent()]
            self.tell(MemberJoined, subject=self.members[lost], gpus=self.gpus // len(self.members))
            for _ in range(self.random.randrange(1, 3)):
                self.tell(GenerationOpened, members=tuple(self.members))
                silences_ns.append(self.be_silent())
        if not losses:
            return False
        how = self.random.choice(("completed", "stopped", "failed", "steps"))
        if how == "failed":
            self.silences_ns += silences_ns
        elif how == "steps":
            self.silences_ns += silences_ns
            self.go_on()
            self.commit_steps(2)
            return False
        else:
            self.judge(silences_ns)
        self.tell(RunEnded, outcome=how)
        self.may_roll_back = how != "completed"
        return True

    def be_silent(self) -> int:
        silent_ns = self.random.randrange(MINUTE_NS, self.random.choice((START_NS_MAX, 20 * HOUR_NS)))
        self.now_ns += silent_ns
        return silent_ns

    def go_on(self) -> None:
        """The run goes on from where it was: what it did in silence is lost."""
        self.truth.lost += sum(self.silences_ns) * self.gpus
        self.silences_ns = []

    def commit_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.step_once()
            self.tell(StepCommitted, step=self.step)

    def step_once(self, slow_ns: int = 0) -> None:
        """On half of the GPUs a step takes twice as long."""
        times = 2 if self.drained_gpus else 1
        self.passes(times * self.step_ns + slow_ns, useful_ns=self.step_ns)
        self.step += 1

    def do_steps(self) -> None:
        """Steps, some of them slow, some without a line; the first ones and the last one have one."""
        self.load()
        self.passes(self.some_ns(5))  # the start: it has no line of its own
        self.join()
        self.passes(self.some_ns(5))
        self.go_on()
        self.is_heard = True
        if self.has_phases:
            self.tell(PhaseEntered, phase="step")
        steps = self.random.randrange(6, 40)
        hole = self.random.randrange(5, steps), self.random.randrange(5, steps)
        for number in range(steps):
            if self.has_phases and self.random.random() < 0.1:
                self.tell(PhaseEntered, phase=self.random.choice(("data", "eval")))
                self.passes(self.some_ns(2))
                self.tell(PhaseEntered, phase="step")
            slow_ns = self.some_ns(3) if self.random.random() < 0.2 else 0
            self.step_once(slow_ns)
            if not (min(hole) <= number < max(hole) and not self.has_phases) or number == steps - 1:
                self.tell(StepCommitted, step=self.step)
        self.commit_steps(1)

    def end(self, *, is_last: bool) -> None:
        """What followed the last step is not known, unless a rule of the ledger says what it was."""
        silent_ns = self.random.choice((0, self.some_ns(2), self.some_ns(200)))
        cut_off_ns = min(silent_ns, self.step_ns)
        how = self.random.choice(("completed", "stopped", "failed", *(("goes on",) if is_last else ())))
        if self.drained_gpus:
            how = "failed"
        if how == "completed":
            self.passes(silent_ns, unknown_ns=silent_ns if self.is_bare else 0)
        elif how == "stopped":
            self.passes(silent_ns, unknown_ns=silent_ns - cut_off_ns)
        elif how == "failed":
            self.passes(silent_ns)
        else:
            self.passes(silent_ns, unknown_ns=silent_ns)
            self.tell(CostRate, usd_per_gpu_hour=float(self.price))
            return
        if self.drained_gpus:
            self.tell(ActionTaken, action="restore", subject="half-2")
            self.drained_gpus = 0
        elif how == "failed" and self.gpus > 1 and not is_last and self.random.random() < 0.3:
            self.tell(ActionTaken, action="drain", subject="half-2", gpus=self.gpus // 2)
            self.drained_gpus = self.gpus // 2
            self.is_bare = False
        self.tell(RunEnded, outcome=how)
        self.may_roll_back = how != "completed"

    def reported(self, edges_ns: set[int]) -> Report:
        ledger = Ledger(cuts_ns=edges_ns)
        ledger.add(self.events)
        return report(self.run, ledger.fold)


def histories(seed: int) -> tuple[list[History], Finance, list[Report]]:
    random = Random(seed)
    begin_ns = month_of(2026, 10).from_ns + random.randrange(30 * 24) * HOUR_NS
    runs = [History(random, number, begin_ns) for number in range(random.randrange(1, RUNS_MAX + 1))]
    edges_ns = cuts_ns(begin_ns, max(run.now_ns for run in runs), DEFAULTS)
    reports = [run.reported(edges_ns) for run in runs]
    return runs, finance(reports, DEFAULTS, FinanceQuestion(now_ns=LATE_NS)), reports


def of(balance: Balance) -> tuple[int, int, int]:
    return balance.useful.gpu_ns, balance.waste.gpu_ns, balance.unknown.gpu_ns


@pytest.mark.parametrize("seed", sampled(range(HISTORIES), range(0, HISTORIES, 6)))
def test_the_three_amounts_are_the_truth_everywhere(seed: int) -> None:
    runs, told, reports = histories(seed)
    whole, usd = Truth(), [Fraction(), Fraction(), Fraction()]
    by_run = {one.run: one for one in told.runs}
    for run, found in zip(runs, reports, strict=True):
        truth = run.truth
        split = found.split
        assert (split.useful_gpu_ns, split.lost_gpu_ns, split.unknown_gpu_ns) == truth.three
        assert sum(truth.three) == found.paid_gpu_ns
        assert run_cost(found, DEFAULTS).split == split
        assert run_cost(found, DEFAULTS).unknown_usd == pytest.approx(
            float(truth.unknown * run.price / HOUR_NS), rel=SHARE_OFF_MAX
        )
        assert of(by_run[run.run]) == truth.three
        whole.add(truth)
        usd = [sum_ + part * run.price / HOUR_NS for sum_, part in zip(usd, truth.three, strict=True)]
        known = truth.useful + truth.lost
        if found.goodput.total is not None:
            assert found.goodput.total == pytest.approx(truth.useful / known, rel=SHARE_OFF_MAX)
        assert (found.goodput.total is None) == (not any(event for event in run.events if is_line(event)))
    assert of(told) == whole.three
    amounts = [told.useful.usd, told.waste.usd, told.unknown.usd]
    assert amounts == pytest.approx([float(part) for part in usd], rel=SHARE_OFF_MAX, abs=1e-12)
    for parts in (told.runs, told.teams, told.projects, told.months):
        assert tuple(map(sum, zip(*(of(part) for part in parts), strict=True))) == whole.three
    if told.useful_share is not None:
        assert told.useful_share == pytest.approx(float(usd[0] / (usd[0] + usd[1])), rel=SHARE_OFF_MAX)
    if whole.unknown:
        assert told.useful_share_bounds == pytest.approx(
            (float(usd[0] / sum(usd)), float((usd[0] + usd[2]) / sum(usd))), rel=SHARE_OFF_MAX
        )
    assert invoiced(told) == pytest.approx(whole.three, abs=len(told.invoice.lines) * 10**4)


def is_line(event: AnyEvent) -> bool:
    """Whether the run itself said something."""
    return isinstance(event, StepCommitted | PhaseEntered | CheckpointLoaded)


def invoiced(told: Finance) -> tuple[int, int, int]:
    """The GPU-time in the invoice's lines as they are written, to the microsecond."""
    months = months_between(told.first_ns, told.last_ns)
    sums = [0, 0, 0]
    for row in csv.DictReader(io.StringIO(focus_csv(told.invoice, months))):
        which = {USEFUL: 0, UNKNOWN: 2}.get(row["x_Cause"], 1)
        sums[which] += round(float(row["ConsumedQuantity"]) * HOUR_NS)
    return sums[0], sums[1], sums[2]


@pytest.mark.parametrize("seed", sampled(range(0, HISTORIES, 5), [5, 40]))
def test_what_is_printed_and_drawn_says_the_same_three(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    runs, told, reports = histories(seed)
    for run, found in zip(runs, reports, strict=True):
        three = wording.Amounts(found.paid_gpu_ns).three(*run.truth.three)
        report_text.show(found)
        cost_text.show(run_cost(found, DEFAULTS))
        assert capsys.readouterr().out.count(three) == 2
        assert three in html.unescape(page.render(found))
    finance_text.show(told)
    assert_three(told, capsys.readouterr().out, finance_page.render(told))
