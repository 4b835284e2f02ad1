"""How much a tier tries: of a property's examples `make quick` takes a fifth, `make test` a quarter,
`make soak` ten times as many; of the cases of a test `make test` may take some, and `make soak` has the
others.
"""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings

QUICK, USUAL, SOAK = "quick", "unhurried", "soak"
"""Profiles of Hypothesis, one for each of those three."""
TIMES = {QUICK: 0.2, USUAL: 1 / 4, SOAK: 10.0}


def examples(count: int, profile: str | None = None) -> int:
    """What `settings(max_examples=...)` is to be given where `count` of them are a fair number."""
    return max(1, round(count * TIMES.get(profile or settings.get_current_profile_name(), 1.0)))


def sampled(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Cases for `parametrize`, of which those that are not kept are left to `make soak`."""
    every = list(cases)
    assert all(one in every for one in kept)
    return [one if one in kept else _left_to_soak(one) for one in every]


def _left_to_soak(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak)
