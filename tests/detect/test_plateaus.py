"""Plateaus of a run's step times: where the mean changes, also where a slowdown has come and gone."""

import numpy as np
from numpy.typing import NDArray

from holdfast.detect.pace import plateaus_of

SEED = 7


def steps(*levels: tuple[int, float]) -> NDArray[np.float32]:
    """So many steps of each level, which scatter by some percent to one side, as on a busy machine."""
    generator = np.random.default_rng(SEED)
    return np.concatenate(
        [level * (1 + 0.03 * generator.gamma(2, 1, count)) for count, level in levels]
    ).astype(np.float32)


def test_slowdowns_that_came_and_went_are_plateaus_of_their_own() -> None:
    values = steps((68, 0.14), (30, 0.55), (66, 0.13), (35, 0.29), (65, 0.13), (26, 0.34))
    found = list(plateaus_of(values))
    assert len(found) == 6
    begun = (0, 68, 98, 164, 199, 264)
    assert all(abs(one.first - row) <= 2 for one, row in zip(found, begun, strict=True))
    assert found[-1].end == len(values)


def test_short_slowdowns_do_not_hide_each_other() -> None:
    """One or three minutes each, in steps that are read from a counter six times a minute."""
    levels = ((26, 2.0), (19, 3.2), (53, 2.0), (10, 3.2), (38, 2.0), (7, 3.2), (10, 2.0), (7, 3.2))
    found = [(one.end - one.first, round(one.step_s / 2.12, 1)) for one in plateaus_of(steps(*levels))]
    assert found == [(count, round(level / 2, 1)) for count, level in levels]


def test_a_single_long_step_is_no_plateau() -> None:
    values = steps((400, 0.14))
    values[[60, 190, 333]] *= 3
    assert len(list(plateaus_of(values))) == 1


def test_what_came_and_went_is_found_in_a_long_history_too() -> None:
    values = steps((800, 0.14), (30, 0.28), (1_170, 0.14))
    assert [round(one.step_s / 0.14) for one in plateaus_of(values)] == [1, 2, 1]
