"""Values that members exchange come back as they were, and nothing else can be sent."""

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.record.errors import InputError
from holdfast.train import values

CPU = torch.device("cpu")
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.booleans())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_a_value_comes_back_with_its_types(value: object) -> None:
    assert repr(values.decode(values.encode(value), CPU)) == repr(value)


def test_every_bit_of_a_number_comes_back() -> None:
    odd = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_1234))[0]  # a NaN with its own bits
    for number in (-0.0, math.inf, odd, 5e-324):
        assert struct.pack("<d", values.decode(values.encode(number), CPU)) == struct.pack("<d", number)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int8, torch.bool]
)
def test_a_tensor_comes_back_with_its_type_and_shape(dtype: torch.dtype) -> None:
    for shape in ((), (3,), (2, 0), (2, 3)):
        tensor = torch.randn(shape).mul(3).to(dtype)
        back = values.decode(values.encode([tensor]), CPU)[0]
        assert (back.dtype, back.shape) == (dtype, tensor.shape)
        assert torch.equal(back, tensor)
    strided = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    back = values.decode(values.encode(strided), CPU)
    assert torch.equal(back, strided)
    assert not back.requires_grad


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        object(),
        [lambda: 1],
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.zeros(values.VALUE_BYTES_MAX),
        b"x" * values.VALUE_BYTES_MAX,
    ],
)
def test_anything_else_is_refused_with_a_sentence(value: object) -> None:
    with pytest.raises(InputError):
        values.encode(value)
    nested: list[object] = []
    for _ in range(values.DEPTH_MAX + 1):
        nested = [nested]
    with pytest.raises(InputError, match="nested"):
        values.encode(nested)
