"""Steps that are told out of order because a clock was set back.

Events are folded in the order of their times. Where a clock goes back, later steps get earlier times and lie
between the steps before them: 48, 51, 49, 52, 50. That looks like many rollbacks. But a run that is rolled
back does again what it has told before, and these steps were never told: they were skipped a moment ago.
"""

from typing import NamedTuple

from holdfast.ledger.copies import copied

SPANS_MAX = 16
"""So many places where steps are missing are remembered at once."""
_REACH = 2
"""A skipped step is told late before the run has gone on by so many times the steps that were skipped."""


class _Skipped(NamedTuple):
    """Steps between these two that nobody has told yet, and when the second was told."""

    after: int
    before: int
    at_ns: int
    told: int  # the last of them that came


class Setback(NamedTuple):
    """A clock that was set back: when, by how much at least, and how many steps came out of order."""

    at_ns: int
    back_ns_min: int
    steps: int


class Disorder:
    """What is missing, and what came late."""

    __slots__ = ("_spans", "setbacks")

    def __init__(self) -> None:
        self._spans: list[_Skipped] = []
        self.setbacks: list[Setback] = []

    def skip(self, after: int, before: int, now_ns: int) -> None:
        """The run told `before` and had told `after`; nothing in between."""
        self._spans = [*self._spans[-SPANS_MAX + 1 :], _Skipped(after, before, now_ns, after)]

    def forget(self) -> None:
        """The run starts from somewhere: what it tells next is not late."""
        if self._spans:
            self._spans = []

    def is_late(self, step: int, position: int, now_ns: int) -> bool:
        """Whether this step is one of those that were skipped a moment ago."""
        for index, span in enumerate(self._spans):
            is_near = position <= span.before + _REACH * (span.before - span.after)
            if span.told < step < span.before and is_near:
                is_first = span.told == span.after
                self._spans[index] = span._replace(told=step)
                self._note(span, now_ns, is_first)
                return True
        return False

    def was_late(self, step: int) -> bool:
        """Whether the last word on one of the skipped steps was about this one."""
        return any(span.told == step > span.after for span in self._spans)

    def _note(self, span: _Skipped, now_ns: int, is_first: bool) -> None:
        if is_first and len(self.setbacks) < SPANS_MAX:
            self.setbacks.append(Setback(span.at_ns, now_ns - span.at_ns, 1))
        elif self.setbacks and not is_first:
            last = self.setbacks[-1]
            self.setbacks[-1] = Setback(last.at_ns, now_ns - last.at_ns, last.steps + 1)

    def copy(self) -> "Disorder":
        return copied(self, "_spans", "setbacks")
