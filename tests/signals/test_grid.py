"""The grid follows the samples: each has its cell, whatever the interval and whenever it is asked for."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.signals.catalogue import describe
from holdfast.signals.frame import Frame
from holdfast.signals.grid import Samples, on_grid, step_of

S = 10**9
METRIC = "some_count_total"
STEP_NS = 10 * S


def framed(times_s: list[list[float]], window_s: tuple[float, float], step_ns: int = STEP_NS) -> Frame:
    """Series whose values are the numbers of their samples."""
    begin_ns, end_ns = (round(one * S) for one in window_s)
    shown = [
        [(round(at_s * S), number) for number, at_s in enumerate(one) if begin_ns <= at_s * S < end_ns]
        for one in times_s
    ]
    frame = on_grid(
        describe(METRIC),
        Samples(
            labels=tuple({"instance": f"n{index}"} for index in range(len(times_s))),
            series=np.repeat(np.arange(len(shown)), list(map(len, shown))),
            times_ns=np.array([at_ns for one in shown for at_ns, _ in one], np.int64),
            values=np.array([number for one in shown for _, number in one], np.float64),
        ),
        window_ns=(begin_ns, end_ns),
        step_ns=step_ns,
        name=lambda labels: labels["instance"],
    )
    assert frame is not None
    return frame


@settings(max_examples=examples(100))
@given(
    every_s=st.sampled_from([0.5, 1, 2, 2.5, 5, 6, 7, 7.5, 10, 13, 15, 30, 60]),
    phase=st.floats(0, 1),
    look=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
@example(every_s=30, phase=0.0, look=0.0, seed=0)
def test_every_cell_has_as_many_samples_as_every_other(
    every_s: float, phase: float, look: float, seed: int
) -> None:
    """So growth from row to row is that of the same time, in every phase of every interval."""
    jitter_s = 0.1 * every_s * np.random.default_rng(seed).uniform(-1, 1, 400)
    times_s = (phase * every_s + np.arange(400) * every_s + jitter_s).tolist()
    end_s = (350 + look) * every_s
    frame = framed([times_s], (0.0, end_s))
    values = frame.values[:, 0]
    per = max(1, round(10 / every_s))
    assert (np.diff(frame.times_ns) == round(per * every_s * S)).all()
    inner = values[2:-1]
    assert (np.diff(inner) == per).all()
    # The newest row is that of the newest complete cell: no sample is older than its cell and a late scrape.
    assert end_s - times_s[int(values[-2])] <= (2 * per + 1.2) * every_s


def test_a_missed_scrape_is_one_gap_and_does_not_move_the_rest() -> None:
    times_s = [5.0 * number + 2 for number in range(200) if number % 17]
    values = framed([times_s], (0.0, 900.0), 5 * S).values[:, 0]
    holes = np.flatnonzero(np.isnan(values[2:])) + 2
    assert set(np.diff(holes)) == {17}


def test_series_with_other_intervals_keep_their_samples() -> None:
    usual = [[10.0 * n + phase for n in range(100)] for phase in range(5)]
    often, seldom = [2.0 * n for n in range(500)], [60.0 * n + 3 for n in range(17)]
    values = framed([*usual, often, seldom], (0.0, 900.0)).values
    assert np.isfinite(values[2:, :6]).all()
    assert (np.diff(values[2:, 5]) == 5).all()
    known = np.flatnonzero(np.isfinite(values[:, 6]))
    assert len(known) >= 14
    assert set(np.diff(known)) == {6}


def test_the_newest_samples_tell_the_interval() -> None:
    def step_s(times_s: list[float]) -> float:
        times_ns = np.rint(np.array(times_s) * S).astype(np.int64)
        return step_of(np.zeros(len(times_ns), np.int64), times_ns, 1, STEP_NS) / S

    assert step_s([7.0 * n for n in range(50)]) == 7
    assert step_s([5.0 * n for n in range(50)]) == 10
    assert step_s([5.03 * n for n in range(50)]) == 10
    assert step_s([7.5 * n for n in range(50)]) == 7.5
    assert step_s([5.0 * n for n in range(100)] + [500 + 30.0 * n for n in range(12)]) == 30
    assert step_s([42.0]) == 10  # one sample tells nothing


def test_two_looks_at_one_time_show_the_same() -> None:
    """The cells do not move with the look: what a row showed, a later look shows again."""
    times_s = [2.0 * number + 0.7 for number in range(600)]
    frames = [framed([times_s], (end_s - 600, end_s)) for end_s in np.arange(900, 930, 3.7)]
    for one, other in pairwise(frames):
        shown = one.values[2:, 0]
        assert set(shown[:-5]) - set(other.values[:, 0]) <= set(shown[:5])


@pytest.mark.parametrize("missed", [1, 2])
def test_a_count_whose_last_scrape_was_missed_does_not_seem_to_grow_slower(missed: int) -> None:
    """Five scrapes in a cell, of which the last ones are missing: an older value is not the newest."""
    times_s = [2.0 * number for number in range(400)]
    whole = framed([times_s], (0.0, 700.5)).values[:, 0]
    assert np.isfinite(whole).all()
    *rest, last = framed([times_s[: 351 - missed]], (0.0, 700.5)).values[:, 0]
    assert np.isnan(last)
    assert rest == whole[:-1].tolist()
