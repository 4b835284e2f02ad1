from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from holdfast.twin.agenda import Agenda


def played(agenda: Agenda) -> None:
    while agenda.next_ns is not None:
        at_ns, action = agenda.pop()
        action(at_ns)


def noting(happened: list[tuple[int, str]], name: str) -> Callable[[int], None]:
    return lambda now_ns: happened.append((now_ns, name))


def test_things_happen_in_the_order_of_time_then_as_planned() -> None:
    agenda, happened = Agenda(), list[tuple[int, str]]()
    agenda.plan(5, noting(happened, "late"))
    agenda.plan(3, noting(happened, "one"))
    agenda.plan(3, noting(happened, "two"))
    agenda.plan(3, noting(happened, "first"), first=True)
    assert agenda.next_ns == 3
    played(agenda)
    assert happened == [(3, "first"), (3, "one"), (3, "two"), (5, "late")]


def test_what_is_planned_here_is_void_once_something_came_between() -> None:
    agenda, happened = Agenda(), list[tuple[int, str]]()
    agenda.plan_here(5, noting(happened, "the step's end"))
    agenda.plan(5, noting(happened, "a repair"))
    agenda.disturb()
    agenda.plan_here(7, noting(happened, "the next step's end"))
    played(agenda)
    assert happened == [(5, "a repair"), (7, "the next step's end")]


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans())))
def test_nothing_is_lost_and_nothing_comes_too_early(plans: list[tuple[int, bool]]) -> None:
    agenda, happened = Agenda(), list[tuple[int, str]]()
    for number, (at_ns, first) in enumerate(plans):
        agenda.plan(at_ns, noting(happened, str(number)), first=first)
    played(agenda)
    expected = sorted(range(len(plans)), key=lambda number: (plans[number][0], not plans[number][1], number))
    assert happened == [(plans[number][0], str(number)) for number in expected]
