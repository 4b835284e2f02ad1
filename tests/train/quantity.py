"""How much a tier tries. Of a property's examples `make quick` takes a fifth, `make test` a quarter, `make
soak` ten times as many. Of the cases of a test `make test` may take some, and `make soak` the others.
"""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings

QUICK, USUAL, SOAK = "quick", "unhurried", "soak"
"""The profiles of Hypothesis for these three tiers."""
TIMES = {QUICK: 0.2, USUAL: 1 / 4, SOAK: 10.0}


def examples(count: int, profile: str | None = None) -> int:
    """The value for `settings(max_examples=...)` if `count` is a fair number."""
    return max(1, round(count * TIMES.get(profile or settings.get_current_profile_name(), 1.0)))


def sampled(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Cases for `parametrize`; those that are not in `kept` are left to `make soak`."""
    every = list(cases)
    assert all(one in every for one in kept)
    return [one if one in kept else _left_to_soak(one) for one in every]


def _left_to_soak(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak)
