"""The norm that ranks agree on: exact, and the same however the gradients are cut."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.train.replica import CHUNK, ROW, Agreed, agree

CPU = torch.device("cpu")
MINE = Agreed(loss=1.0, pending=(0, 0), latest=(0.0, 0.0), norm=None, is_due=False)


def norm(*spans: torch.Tensor) -> float:
    found = agree(None, MINE, spans, CPU).norm
    assert found is not None
    return found


@given(
    numel=st.sampled_from([1, 5, ROW - 1, ROW, 3 * ROW + 7, CHUNK["cpu"] + ROW + 1]),
    cuts=st.lists(st.floats(0, 1), max_size=4),
    power=st.integers(-30, 30),
    seed=st.integers(0, 1000),
)
@settings(max_examples=examples(40), deadline=None)
def test_it_does_not_depend_on_how_gradients_are_cut(
    numel: int, cuts: list[float], power: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(numel, generator=generator) * 2.0**power
    places = sorted(int(cut * numel) for cut in cuts)
    parts = [whole[begin:end] for begin, end in zip([0, *places], [*places, numel], strict=True)]
    assert norm(*reversed(parts)) == norm(whole)
    exact = math.sqrt(math.fsum(value * value for value in whole.double().tolist()))
    assert norm(whole) == pytest.approx(exact, rel=1e-12)


def test_small_gradients_beside_a_large_one_count() -> None:
    numel = 1 << 20
    gradients = torch.full((numel,), 1e-3)
    gradients[0] = 10.0
    assert norm(gradients) == pytest.approx(math.sqrt(100 + (numel - 1) * float(gradients[1]) ** 2), rel=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(bad: float) -> None:
    found = norm(torch.tensor([1.0, bad, 2.0]))
    assert math.isnan(found) if math.isnan(bad) else found == math.inf


def test_without_gradients_it_is_zero() -> None:
    assert math.copysign(1.0, norm(torch.zeros(8))) == 1.0
    assert norm(torch.zeros(8), torch.empty(0)) == 0.0
