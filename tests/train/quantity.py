"""How many examples a property is tried on: so many in `make test`, ten times as many in `make soak`."""

from hypothesis import settings

SOAK = "soak"
"""The profile of Hypothesis that `make soak` chooses."""
SOAK_TIMES = 10


def examples(count: int, profile: str | None = None) -> int:
    """What `settings(max_examples=...)` is to be given for `count` of them in `make test`."""
    return count * SOAK_TIMES if (profile or settings.get_current_profile_name()) == SOAK else count
