"""Whole frames at once, against the same said slowly: one series at a time, in plain words."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from quantity import examples

from holdfast.detect.compare import (
    MANY,
    PAST_KNOWN_MIN,
    FindingStretch,
    change,
    changes,
    lasting,
    onset,
    spread,
    usual,
)
from holdfast.signals.frame import Floats

EVERY_S = 10
BRIDGE_S = 30
Flags = NDArray[np.bool_]

HEALTHY, WRONG, SILENT = "-", "x", " "


def flags(*series: str) -> tuple[Flags, Flags, NDArray[np.int64]]:
    """Wrong, known and times of series as one writes them on paper, a sign a scrape."""
    rows = np.array([list(text) for text in zip(*series, strict=True)])
    times_ns = np.arange(len(rows), dtype=np.int64) * EVERY_S * 10**9
    return rows == WRONG, rows != SILENT, times_ns


def stretches(*series: str, rows: int, bridge_s: float = BRIDGE_S) -> list[FindingStretch]:
    return sorted(lasting(*flags(*series), rows, bridge_s))


def said_slowly(text: str, series: int, rows: int) -> list[FindingStretch]:
    """What is wrong again within the bridge had not gone; what was wrong `rows` times in a row counts, from
    the last time on at which it had not been right more often than wrong before that.
    """
    wrong = [row for row, sign in enumerate(text) if sign == WRONG]
    groups: list[list[int]] = []
    for row in wrong:
        if groups and (row - groups[-1][-1]) * EVERY_S <= BRIDGE_S:
            groups[-1].append(row)
        else:
            groups.append([row])
    found = []
    for group in groups:
        in_a_row, noticed, first, more = 0, None, group[0], 0
        for row in range(group[0], group[-1] + 1):
            if text[row] != SILENT:
                in_a_row = in_a_row + 1 if text[row] == WRONG else 0
                if more < 0 and noticed is None and text[row] == WRONG:
                    first, more = row, 0
                more += 1 if text[row] == WRONG else -1
            if noticed is None and in_a_row == rows:
                noticed = row
        if noticed is not None:
            is_lasting = (len(text) - 1 - group[-1]) * EVERY_S <= BRIDGE_S
            found.append(FindingStretch(series, first, noticed, group[-1], is_lasting))
    return found


def test_a_stretch_says_when_it_began_when_it_counted_and_when_it_was_last_seen() -> None:
    assert stretches("--xxx-----", rows=2) == [FindingStretch(0, 2, 3, 4, False)]
    assert stretches("-----xxx", rows=3) == [FindingStretch(0, 5, 7, 7, True)]


def test_fewer_observations_than_asked_for_are_none() -> None:
    assert stretches("--xx------", rows=3) == []
    assert stretches("x-x-x-x-x-", rows=2) == []


def test_without_an_observation_what_was_before_goes_on() -> None:
    assert stretches("--x x-----", rows=2) == [FindingStretch(0, 2, 4, 4, False)]
    assert stretches("--x  ------", rows=2) == []


def test_what_comes_back_within_the_bridge_had_not_gone() -> None:
    assert stretches("xx--xx", rows=2) == [FindingStretch(0, 0, 1, 5, True)]
    assert stretches("xx---xx", rows=2) == [
        FindingStretch(0, 0, 1, 1, False),
        FindingStretch(0, 5, 6, 6, True),
    ]


def test_a_stray_reading_is_not_when_it_began() -> None:
    assert stretches("x--xxx", rows=3) == [FindingStretch(0, 3, 5, 5, True)]
    assert stretches("xx--x-xxx", rows=3) == [FindingStretch(0, 0, 8, 8, True)]
    assert stretches("xx---xxx", rows=3, bridge_s=900) == [FindingStretch(0, 5, 7, 7, True)]


def test_no_stretch_has_fewer_observations_than_asked_for_however_long_the_silence() -> None:
    wrong, known, times_ns = flags("xxx" + SILENT * 10 + "x")
    for found in lasting(wrong, known, times_ns, 3, BRIDGE_S):
        assert wrong[found.first : found.last + 1, 0].sum() >= 3


def test_no_rows_and_no_series_have_no_stretches() -> None:
    nothing = np.empty((0, 3), np.bool_)
    assert lasting(nothing, nothing, np.empty(0, np.int64), 2) == []
    assert lasting(nothing[:, :0], nothing[:, :0], np.empty(0, np.int64), 2) == []


# Longer silences than the bridge are a question of their own, above.
series_texts = st.lists(
    st.sampled_from([HEALTHY, HEALTHY, WRONG, WRONG, WRONG + SILENT, HEALTHY + SILENT]), max_size=30
).map(lambda parts: "".join(parts)[:30].ljust(30, HEALTHY))


@given(texts=st.lists(series_texts, min_size=1, max_size=4), rows=st.integers(1, 5))
@settings(max_examples=examples(300), deadline=None)
def test_all_series_at_once_are_as_each_alone(texts: list[str], rows: int) -> None:
    expected = [one for number, text in enumerate(texts) for one in said_slowly(text, number, rows)]
    assert stretches(*texts, rows=rows) == expected


@given(
    text=st.text(st.sampled_from([HEALTHY, WRONG, SILENT]), min_size=1, max_size=40), rows=st.integers(1, 4)
)
@settings(max_examples=examples(200), deadline=None)
def test_stretches_are_apart_in_order_and_within_the_rows(text: str, rows: int) -> None:
    wrong, known, times_ns = flags(text)
    found = sorted(lasting(wrong, known, times_ns, rows, BRIDGE_S))
    for one in found:
        assert 0 <= one.first <= one.noticed <= one.last < len(text)
        assert text[one.first] == text[one.noticed] == text[one.last] == WRONG
        assert wrong[one.first : one.last + 1, 0].sum() >= rows
    for before, after in pairwise(found):
        assert before.last < after.first
        assert not before.lasting


# -- what is usual -------------------------------------------------------------------------------------


@given(
    rows=st.integers(18, 60),
    series=st.integers(1, 5),
    silent=st.integers(0, 40),
    missing=st.floats(0, 0.4),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=examples(100), deadline=None)
def test_usual_is_the_median_of_the_first_third_since_there_are_readings(
    rows: int, series: int, silent: int, missing: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(50, 10, (silent + rows, series)).astype(np.float32)
    values[rng.random(values.shape) < missing] = np.nan
    values[:silent] = np.nan
    values[silent] = 50.0
    past = values[silent : silent + round(rows / 3)]
    enough = np.isfinite(past).sum(axis=0) >= PAST_KNOWN_MIN
    found = usual(values)
    assert np.isnan(found[~enough]).all()
    np.testing.assert_allclose(found[enough], np.nanmedian(past[:, enough], axis=0), rtol=1e-6)


def test_usual_of_many_series_is_told_from_some_rows() -> None:
    values = np.random.default_rng(1).normal(50, 1, (180, MANY)).astype(np.float32)
    values[60:] += 100
    found = usual(values)
    assert np.abs(found - 50).max() < 2
    assert abs(spread(values, found) - 1) < 0.1


def test_half_of_the_past_may_be_abnormal() -> None:
    values = np.full((60, 1), 5.0, np.float32)
    values[11:] = 9.0
    assert usual(values)[0] == 5.0


@pytest.mark.parametrize(("rows", "past"), [(1, 0), (2, 0), (3, 1), (5, 3), (8, 6), (12, 6), (30, 10)])
def test_of_a_short_window_nearly_all_is_past_but_never_the_last_rows(rows: int, past: int) -> None:
    values = np.arange(rows, dtype=np.float32)[:, None]
    if past:
        assert usual(values)[0] == (past - 1) / 2
    else:
        assert not usual(values)[0] > 0


def test_from_too_few_readings_nobody_knows_what_is_usual() -> None:
    values = np.full((60, 2), 5.0, np.float32)
    values[PAST_KNOWN_MIN - 1 : 30, 1] = np.nan
    found = usual(values)
    assert found[0] == 5.0
    assert np.isnan(found[1])


def test_rows_may_be_chosen() -> None:
    values = np.arange(10, dtype=np.float32)[:, None]
    assert usual(values, np.array([7, 8, 9]))[0] == 8
    assert np.isnan(usual(values, np.empty(0, np.int64))[0])


def test_spread_is_that_of_most_series_around_their_own_level() -> None:
    rng = np.random.default_rng(2)
    levels = rng.uniform(10, 1_000, 64)
    values = (levels + rng.normal(0, 2.0, (300, 64))).astype(np.float32)
    values[:, :8] += rng.normal(0, 50, (300, 8))
    assert abs(spread(values, usual(values)) - 2.0) < 0.4


@pytest.mark.parametrize(
    "values",
    [np.empty((0, 3)), np.empty((9, 0)), np.full((9, 2), np.nan), np.zeros((1, 2))],
    ids=["no rows", "no series", "no numbers", "one row"],
)
def test_where_there_is_no_past_nothing_is_known_to_scatter(values: Floats) -> None:
    assert spread(values, usual(values)) == 0.0


def test_the_onset_is_where_a_series_began_to_leave_what_is_usual() -> None:
    away = np.array([0.0, 0.1, 0.0, 0.5, 0.8, 1.2, 1.4])
    assert onset(away, 1.0, 5) == 3
    assert onset(away, 1.0, 3) == 3
    assert onset(away, 0.0, 5) == 5
    assert onset(np.ones(4), 1.0, 2) == 0
    assert onset(np.array([0.9, np.nan, 0.9, 1.1]), 1.0, 3) == 2


def test_changes_of_many_series_are_those_of_each_alone() -> None:
    dice = np.random.default_rng(3)
    values = dice.normal(5, 1, (60, 40))
    values[30:, ::2] += 4
    values[dice.random(values.shape) < 0.1] = np.nan
    rows, scores = changes(values, 2)
    for series, (row, score) in enumerate(zip(rows.tolist(), scores.tolist(), strict=True)):
        known = np.flatnonzero(np.isfinite(values[:, series]))
        alone, sure = change(values[known, series], 2)
        assert (row, score) == (known[alone], pytest.approx(sure))
    assert all(28 <= row <= 33 for row in rows[::2].tolist())


@pytest.mark.slow
def test_a_window_may_have_more_rows_than_a_short_number() -> None:
    rows = 40_000
    text = HEALTHY * 5 + WRONG * 5 + HEALTHY * (rows - 10)
    (found,) = stretches(text, rows=3)
    assert (found.first, found.last) == (5, 9)


def test_what_comes_alone_after_many_that_were_right_is_not_the_same_again() -> None:
    (alone,) = stretches("xxxx" + 12 * "-" + "x" + 18 * "-", rows=3, bridge_s=300)
    assert (alone.last, alone.lasting) == (3, False)
    (again,) = stretches("xxxx" + 12 * "-" + "xxx" + 18 * "-", rows=3, bridge_s=300)
    assert (again.last, again.lasting) == (18, True)
    (soon,) = stretches("xxxx" + 8 * "-" + "x" + 18 * "-", rows=3, bridge_s=300)
    assert (soon.last, soon.lasting) == (12, True)
