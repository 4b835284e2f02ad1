"""How many examples a property is tried on: a fifth of those of `make test` in `make quick`, in `make soak`
ten times as many.
"""

from hypothesis import settings

QUICK, SOAK = "quick", "soak"
"""Profiles of Hypothesis that those two choose."""
TIMES = {QUICK: 0.2, SOAK: 10.0}


def examples(count: int, profile: str | None = None) -> int:
    """What `settings(max_examples=...)` is to be given for `count` of them in `make test`."""
    return round(count * TIMES.get(profile or settings.get_current_profile_name(), 1.0))
