"""Host lists: what Slurm's notation stands for, and back."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.errors import InputError
from holdfast.topology.hostlist import expand, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1,3-4],login", ["n1", "n3", "n4", "login"]),
        ("n[0-1]/mlx5_[0-1]", ["n0/mlx5_0", "n0/mlx5_1", "n1/mlx5_0", "n1/mlx5_1"]),
        (" a , b ", ["a", "b"]),
        ("n[9-10].lab.example", ["n9.lab.example", "n10.lab.example"]),
    ],
)
def test_a_list_stands_for_its_names(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        "a,",
        "a,,b",
        "a b",
        "n[",
        "n]",
        "n[]",
        "n[a-b]",
        "n[3-1]",
        "n[1-]",
        "n[[1]]",
    ],
)
def test_what_is_no_list_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError) as told:
        expand(text)
    assert "n[00-15,20]" in told.value.hint


@pytest.mark.slow
def test_a_list_that_stands_for_too_many_is_refused() -> None:
    with pytest.raises(InputError, match="more than 2,000,000 names"):
        expand("n[0-9999][0-9999]")
    with pytest.raises(InputError, match="more than 2,000,000 names"):
        expand("n[1-99999999]")
    with pytest.raises(InputError, match="more than 2,000,000 names"):
        expand("n[0-999999],m[0-999999],o[0-999999]")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n00", "n01", "n02"], "n[00-02]"),
        (["n8", "n9", "n10"], "n[8-10]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n1.0", "n1.1", "n2.0", "n2.1"], "n[1-2].[0-1]"),
        (["n1.0", "n1.1", "n2.0"], "n1.[0-1],n2.0"),
        (["red", "blue"], "red,blue"),
        (["red", "n1", "n3"], "red,n[1,3]"),
        (["n1>n3", "n1>n4", "n2>n3", "n2>n4"], "n[1-2]>n[3-4]"),
        ([], ""),
    ],
)
def test_names_are_folded(names: list[str], text: str) -> None:
    assert fold(names) == text


names_in_lists = st.from_regex(r"[a-z]{1,2}[0-9]{0,3}([-./][a-z0-9]{1,3})?", fullmatch=True)


@given(st.lists(names_in_lists, min_size=1, max_size=30))
@settings(max_examples=examples(300), deadline=None)
def test_folding_loses_no_name_and_invents_none(names: list[str]) -> None:
    assert sorted(expand(fold(names))) == sorted({*names})


@given(st.text(max_size=30))
@settings(max_examples=examples(300), deadline=None)
def test_any_text_is_a_list_or_a_mistake(text: str) -> None:
    with suppress(InputError):
        assert expand(text)
