"""How far a run has come, the time of each step's first execution, and which incidents owe repeated steps.

The *position* is the last step whose result the run has now; the *high* mark is the furthest it ever had. A
rollback lowers the position and keeps the high mark; the steps between the two are lost. The first execution
of a step counts as useful. Every later one is recomputation, owed by the incident whose rollback made it
necessary.
"""

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from holdfast.ledger.categories import Category
from holdfast.ledger.copies import copied


class RolledBackSteps(NamedTuple):
    """Steps that were done and then rolled back."""

    entry: int
    last_step: int
    gpu_ns: int
    entry_gpu_ns: int  # of the entry they are part of
    entry_steps: int
    steps: int
    excess: Category  # the category of their time beyond a normal step
    incident: int | None  # the incident that the excess was charged to


class StepProgress:
    """Position, high mark, and debts as (up to which step, number of the incident).

    Each commit of new steps adds one entry, in step order. Nearly every entry is one step, so an entry keeps
    only its GPU-ns; jumps of the step number are kept apart.
    """

    __slots__ = (
        *("_first_entry", "_gaps", "_jumps", "_kept_before", "_length", "_special"),
        *("debts", "entries_gpu_ns", "high", "position"),
    )

    def __init__(self) -> None:
        self.position: int | None = None
        self.high = -1  # steps may be counted from 0
        self.debts: list[tuple[int, int]] = []
        self.entries_gpu_ns: list[int] = []
        self._jumps: list[tuple[int, int]] = [(-1, -1)]  # (entry, its last step) if not the next step
        self._special: dict[int, tuple[Category, int | None]] = {}  # excess and incident, where not plain
        self._gaps: list[tuple[int, int]] = []  # (after, up to) steps not seen being done
        self._first_entry = 0  # since the step counter began again
        self._kept_before = 0  # steps the run had at that time
        self._length: int | None = None  # how much of the shared list this copy sees

    def advance(
        self, step: int, gpu_ns: int, excess: Category = Category.SLOWDOWN, incident: int | None = None
    ) -> None:
        """The run did the steps up to `step`, beyond the high mark, for the first time."""
        if excess != Category.SLOWDOWN or incident is not None:
            self._special[len(self.entries_gpu_ns)] = (excess, incident)
        if step != self.high + 1:
            self._jumps.append((len(self.entries_gpu_ns), step))
        self.entries_gpu_ns.append(gpu_ns)
        self.position = self.high = step

    def jump(self, step: int) -> None:
        """The run is at `step`; the steps in between were not seen."""
        if step > self.high:
            self._gaps.append((self.high, step))
            self.advance(step, 0)
        self.position = step
        self.settle()

    def begin_from(self, step: int) -> None:
        """The first entry, which was reported as a single step, has all the steps after `step`."""
        last = self._gaps[0][1] + 1
        self._gaps[0] = (-1, step)
        self._jumps[:] = [(-1, -1), (0, step), (1, last)]

    def kept(self) -> int:
        """How many observed steps the run has now."""
        if self.position is None:
            return 0
        skipped = sum(max(0, min(upto, self.position) - after) for after, upto in self._gaps)
        return self._kept_before + self.position + 1 - skipped

    @property
    def entry(self) -> int:
        """The number of the next entry."""
        return len(self.entries_gpu_ns) if self._length is None else self._length

    @property
    def first_step(self) -> int:
        """The first observed step of the run."""
        return self._gaps[0][1] + 1 if self._gaps and self._gaps[0][0] < 0 else 0

    def begin_again(self, step: int) -> None:
        """The run was complete, and another run of its name starts after `step`: all its steps are new."""
        self._kept_before = self.kept()
        self._first_entry = self.entry
        self._jumps.append((len(self.entries_gpu_ns), step))
        self.entries_gpu_ns.append(0)
        self._gaps, self.debts = [(-1, step)], []
        self.position = self.high = step

    def roll_back(self, step: int, incident: int) -> None:
        """The steps after `step` are lost; this incident owes repeating them."""
        assert self.position is not None
        self.debts.append((self.position, incident))
        self.position = step

    def settle(self) -> None:
        """Drop the debts for steps that were repeated."""
        while self.debts and self.position is not None and self.debts[-1][0] <= self.position:
            self.debts.pop()

    def lost(self) -> Iterator[RolledBackSteps]:
        """The lost steps between position and high mark, latest first."""
        position = self.high if self.position is None else self.position
        entry = self.entry - 1
        while entry >= self._first_entry and (last := self._last_step(entry)) > position:
            steps = last - self._last_step(entry - 1)
            lost_steps = min(steps, last - position)
            gpu_ns = self.entries_gpu_ns[entry]
            if gpu_ns:
                yield RolledBackSteps(
                    entry,
                    last,
                    gpu_ns * lost_steps // steps,
                    gpu_ns,
                    steps,
                    lost_steps,
                    *self._special.get(entry, (Category.SLOWDOWN, None)),
                )
            entry -= 1

    def _last_step(self, entry: int) -> int:
        at, step = self._jumps[bisect_right(self._jumps, entry, key=itemgetter(0)) - 1]
        return step + entry - at

    def copy(self) -> "StepProgress":
        """A copy that shares the entries; call its `adopt` before adding to it."""
        twin = copied(self, "debts", "_jumps", "_special", "_gaps")
        twin._length = self.entry
        return twin

    def adopt(self) -> None:
        """Drop the entries added since this copy was made, and continue from it."""
        del self.entries_gpu_ns[self._length :]
        self._length = None


SPANS_MAX = 16
"""How many gaps between reported steps are remembered at once."""
_REACH = 2
"""A step counts as late only until the run is this many times the skipped steps further on."""


class _Skipped(NamedTuple):
    """Steps between these two that were not reported yet, and when the second was reported."""

    after: int
    before: int
    at_ns: int
    told: int  # the last of them reported so far


class Setback(NamedTuple):
    """A clock that was set back: when, by how much at least, and how many steps were out of order."""

    at_ns: int
    back_ns_min: int
    steps: int


class Disorder:
    """Steps that are reported out of order because a clock was set back.

    When a clock goes back, later steps get earlier times and mix with the steps before them: 48, 51, 49, 52,
    50. That looks like many rollbacks. But a run that rolls back repeats reported steps, and these were never
    reported: they were skipped a moment ago.
    """

    __slots__ = ("_spans", "setbacks")

    def __init__(self) -> None:
        self._spans: list[_Skipped] = []
        self.setbacks: list[Setback] = []

    def skip(self, after: int, before: int, now_ns: int) -> None:
        """The run reported `after`, then `before`, and no step in between."""
        self._spans = [*self._spans[-SPANS_MAX + 1 :], _Skipped(after, before, now_ns, after)]

    def forget(self) -> None:
        """The run starts or resumes: its next steps are not late."""
        if self._spans:
            self._spans = []

    def is_late(self, step: int, position: int, now_ns: int) -> bool:
        """Whether this step was skipped a moment ago. If so, note that it came."""
        for index, span in enumerate(self._spans):
            is_near = position <= span.before + _REACH * (span.before - span.after)
            if span.told < step < span.before and is_near:
                is_first = span.told == span.after
                self._spans[index] = span._replace(told=step)
                self._note(span, now_ns, is_first)
                return True
        return False

    def was_late(self, step: int) -> bool:
        """Whether this was the last skipped step reported in its gap."""
        return any(span.told == step > span.after for span in self._spans)

    def _note(self, span: _Skipped, now_ns: int, is_first: bool) -> None:
        if is_first and len(self.setbacks) < SPANS_MAX:
            self.setbacks.append(Setback(span.at_ns, now_ns - span.at_ns, 1))
        elif self.setbacks and not is_first:
            last = self.setbacks[-1]
            self.setbacks[-1] = Setback(last.at_ns, now_ns - last.at_ns, last.steps + 1)

    def copy(self) -> "Disorder":
        return copied(self, "_spans", "setbacks")
