"""When members had a step, by our clock, even if messages are held up or clocks stop."""

from holdfast.run.clocks import CLOCK_S, MemberClock
from holdfast.wording.units import SECOND_NS

LATE_NS = 3_000_000
"""How long a message takes to arrive."""
OTHER_NS = 1_000 * SECOND_NS
"""How far the coordinator's clock is ahead."""


def errors_ns(
    clock: MemberClock, truths_ns: list[int], heard_ns: int | None = None, lag_ns: int = 0
) -> list[int]:
    """How much too late each of these moments is dated. heard_ns: when all are heard; None for as they
    happen. lag_ns: how long the member's clock stood still before.
    """
    return [
        clock.moment_ns(truth_ns - OTHER_NS - lag_ns, (truth_ns if heard_ns is None else heard_ns) + LATE_NS)
        - truth_ns
        for truth_ns in truths_ns
    ]


def seconds(first: int, last: int) -> list[int]:
    return [OTHER_NS + second * SECOND_NS for second in range(first, last)]


def begun() -> MemberClock:
    return MemberClock.begun(-LATE_NS, OTHER_NS)


def test_what_is_held_up_for_long_is_dated_when_it_happened() -> None:
    clock = begun()
    assert set(errors_ns(clock, seconds(1, 200))) == {LATE_NS}
    held = seconds(200, 200 + 10 * int(CLOCK_S))
    assert set(errors_ns(clock, held, heard_ns=held[-1])) == {LATE_NS}


def test_the_steps_of_a_machine_that_was_suspended_are_not_dated_back_for_ever() -> None:
    clock = begun()
    errors_ns(clock, seconds(1, 100))
    lag_ns = 500 * SECOND_NS
    after = errors_ns(clock, seconds(600, 600 + 3 * int(CLOCK_S)), lag_ns=lag_ns)
    assert after[0] == LATE_NS - lag_ns  # it might have been held up on its way
    assert set(after[2 * int(CLOCK_S) :]) == {LATE_NS}


def test_steps_that_take_longer_than_any_message_counts() -> None:
    clock = begun()
    steps = seconds(1, 10_000)[:: 2 * int(CLOCK_S)]
    assert set(errors_ns(clock, steps[:9])) == {LATE_NS}
    assert errors_ns(clock, steps[9:10], heard_ns=steps[10]) == [LATE_NS]
    assert errors_ns(clock, steps[11:14], lag_ns=SECOND_NS)[1:] == [LATE_NS] * 2
