"""A run is found by its id or by its name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.errors import InputError
from holdfast.record.runs import MEANT_SHOWN_MAX, meant

HOUR_NS = 3_600 * 10**9
BEGUN_NS = {"1041": 0, "1042": HOUR_NS, "1142": 2 * HOUR_NS, "prod": 0, "prod-2": 0}
NAMES = {"1041": "llama", "1042": "llama", "1142": "bert", "prod-2": "1041"}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("1041", "1041"),  # an id, although another run is called so
        ("prod", "prod"),  # an id, although it is the start of another
        ("bert", "1142"),
        ("11", None),
        ("prod-", None),
        ("", None),
        ("nothing", None),
    ],
)
def test_a_run_is_found_by_id_or_name(asked: str, found: str | None) -> None:
    assert meant(asked, BEGUN_NS, NAMES) == found


def test_of_several_runs_the_ids_are_listed() -> None:
    with pytest.raises(InputError) as named:
        meant("llama", BEGUN_NS, NAMES)
    assert named.value.sentence == (
        "'llama' is the name of 2 runs: 1042 (began 1970-01-01 01:00:00Z), 1041 (began 1970-01-01 00:00:00Z)."
    )
    many = {f"x{number}": number for number in range(1_000)}
    with pytest.raises(InputError, match=f"of 1,000 runs: .* and {1_000 - MEANT_SHOWN_MAX} more"):
        meant("x", many, dict.fromkeys(many, "x"))


@settings(max_examples=examples(100))
@given(
    runs=st.sets(st.text("ab1", min_size=1, max_size=4), min_size=1, max_size=8),
    names=st.lists(st.text("ab1", max_size=4), max_size=8),
    asked=st.text("ab1", max_size=4),
)
def test_every_run_is_reached_and_none_by_chance(runs: set[str], names: list[str], asked: str) -> None:
    begun_ns, called = dict.fromkeys(runs, 0), dict(zip(sorted(runs), names, strict=False))
    assert all(meant(run, begun_ns, called) == run for run in runs)
    named = {run for run in runs if asked and called.get(run) == asked}
    possible = {run for run in runs if run == asked} or named
    try:
        found = meant(asked, begun_ns, called)
    except InputError:
        assert len(possible) > 1
    else:
        assert possible == ({found} if found else set())
