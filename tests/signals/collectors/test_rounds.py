"""Collectors that fail, hang and recover, and the others beside them."""

import threading

from holdfast.record.errors import HoldfastError
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.rounds import Rounds
from holdfast.signals.frame import Reading

READING = Reading(metric="slurm_nodes_idle", labels={}, at_ns=1, value=2.0)


class Scripted:
    """Does one thing after the other; then it gives a reading."""

    def __init__(self, name: str, *script: Exception | threading.Event) -> None:
        self.name = name
        self._script = list(script)

    def collect(self) -> list[Reading]:
        step = self._script.pop(0) if self._script else None
        if isinstance(step, Exception):
            raise step
        if step is not None:
            step.wait()
        return [READING]

    def close(self) -> None:
        """Nothing is held open."""


def play(rounds: Rounds, times: int, wait_s: float | None = None) -> list[dict[str, bool]]:
    return [
        {outcome.collector: outcome.readings is not None for outcome in rounds.play(wait_s)}
        for _ in range(times)
    ]


def test_one_that_fails_says_so_once_and_is_tried_again() -> None:
    told: list[str] = []
    broken = Scripted("a", Unavailable("It is away."), Unavailable("It is away."), Unavailable("It is ill."))
    rounds = Rounds([broken, Scripted("b")], lambda sentence, hint: told.append(sentence))
    assert play(rounds, 4) == [{"a": False, "b": True}] * 3 + [{"a": True, "b": True}]
    assert told == ["It is away.", "It is ill.", "a can be read again."]


def test_a_defect_of_ours_ends_nothing() -> None:
    told: list[str] = []
    broken = Scripted("a", ZeroDivisionError("by nought"))
    rounds = Rounds([broken, Scripted("b")], lambda sentence, hint: told.append(sentence))
    first = rounds.play(None)
    assert [(outcome.collector, outcome.problem) for outcome in first] == [
        ("a", "a failed: ZeroDivisionError: by nought."),
        ("b", ""),
    ]
    assert told == ["a failed: ZeroDivisionError: by nought."]
    assert play(rounds, 1) == [{"a": True, "b": True}]


def test_one_that_hangs_holds_up_nobody_and_is_not_asked_twice_at_a_time() -> None:
    released = threading.Event()
    rounds = Rounds([Scripted("a", released), Scripted("b")], lambda sentence, hint: None)
    assert play(rounds, 3, wait_s=0.05) == [{"b": True}] * 3
    released.set()
    assert play(rounds, 1) == [{"a": True, "b": True}]


def test_hints_are_told_with_their_sentence() -> None:
    told: list[tuple[str, str]] = []
    error = HoldfastError("It is away.", hint="Call it.")
    Rounds([Scripted("a", error)], lambda sentence, hint: told.append((sentence, hint))).play(None)
    assert told == [("It is away.", "Call it.")]
