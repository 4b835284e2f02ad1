"""Pickles of plain values are read as Python reads them; anything else is refused, and does nothing."""

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.signals import plain_pickle
from holdfast.signals.plain_pickle import NotPlain, decode

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.integers(0, 70_000), inner, max_size=4)
        | st.lists(inner, max_size=5).map(tuple)
    ),
    max_leaves=20,
)


@given(value=plain, protocol=st.integers(2, 5))
@settings(max_examples=examples(100))
def test_it_reads_what_python_reads(value: object, protocol: int) -> None:
    content = pickle.dumps([value, value], protocol)
    assert decode(content) == pickle.loads(content) == [value, value]


def test_more_than_256_values_may_be_repeated() -> None:
    names = [f"name {number}" for number in range(600)]
    assert decode(pickle.dumps([names, list(names)], 2)) == [names, names]


class Touching:
    """Creates a file when it is unpickled as Python does it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_something_does_nothing(protocol: int, tmp_path: Path) -> None:
    made = tmp_path / "made"
    content = pickle.dumps({"version": "2.10", "entries": [Touching(made)]}, protocol)
    with pytest.raises(NotPlain):
        decode(content)
    assert not made.exists()
    pickle.loads(content)
    assert made.exists(), "the attack would have worked"


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"(ios\nsystem\n.",
        b"\x80\x02}(K\x01o.",
        b"\x80\x02)\x81.",
        b"\x80\x02]}b.",
        b"\x80\x02])R.",
        b"\x80\x02\x82\x01.",
        b"Pname\n.",
        b"\x80\x02K\x01Q.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
    ],
    ids=["global", "stack", "inst", "obj", "newobj", "build", "reduce", "ext", "persid", "bin", "array"],
)
def test_opcodes_of_more_than_plain_values_are_refused(content: bytes) -> None:
    with pytest.raises(NotPlain):
        decode(content)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",
        b"\x80\x02X\xff\xff\xff\x7fa.",
        b"\x80\x02h\x05.",
        b"\x80\x02]K\x01s.",
        b"\x80\x02}]K\x01s.",
        b"\x80\x02K\x01K\x02.",
        b"\x80\x02e.",
        b"",
    ],
    ids=["far-memo", "long-text", "no-memo", "no-dict", "key", "two", "no-mark", "empty"],
)
def test_nonsense_is_refused_and_takes_no_memory(content: bytes) -> None:
    with pytest.raises(NotPlain):
        decode(content)


def test_a_pickle_that_is_cut_off_is_refused_wherever_that_is() -> None:
    content = pickle.dumps({"entries": [{"sizes": [[8, 2]], "name": "all_reduce", "at": (2**40, 0.5)}]}, 2)
    for length in range(len(content)):
        with pytest.raises(NotPlain):
            decode(content[:length])


@pytest.mark.parametrize("opcode", [b"}", b"(", b")", b"]\x94", b"N"])
def test_small_values_without_end_are_refused_before_they_fill_the_memory(
    opcode: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_pickle, "STEPS_MAX", 1_000)
    with pytest.raises(NotPlain, match="more than 1,000 values"):
        decode(b"\x80\x02" + opcode * 1_000)


def test_repetitions_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle.dumps(["all_reduce"] * 5_000, 2)
    monkeypatch.setattr(plain_pickle, "STEPS_MAX", 100)
    assert decode(content) == ["all_reduce"] * 5_000
