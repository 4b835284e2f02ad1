"""Figures against what they should be: what is published, or what a good node showed."""

from pathlib import Path

import pytest

from holdfast.check.figures import (
    KEPT_SHARE,
    UNBOUND,
    figure,
    held_against,
    published_copy,
    published_memory,
    published_product,
    published_reduce,
    read_reference,
    reference_text,
    unmeasured,
)
from holdfast.record.errors import InputError


def test_a_figure_is_held_against_the_one_bound_it_has() -> None:
    assert figure("a", 3.0, "GB/s", least=3.0).ok
    assert not figure("a", 2.9, "GB/s", least=3.0).ok
    assert figure("a", 0, "errors", most=0).ok
    assert not figure("a", 1, "errors", most=0).ok
    assert figure("a", 0.0, "GB/s").ok


def test_a_good_node_reads_what_it_wrote_and_is_good(tmp_path: Path) -> None:
    found = [figure("gpu0.product", 731.25, "TFLOP/s", least=500), figure("wrong", 0, "numbers", most=0)]
    (tmp_path / "good.toml").write_text(reference_text(found), encoding="ascii")
    known = read_reference(tmp_path / "good.toml")
    assert known == {"gpu0.product": 731.25}
    again = held_against(found, known)
    assert [one.ok for one in again] == [True, True]
    assert again[0].reference == pytest.approx(KEPT_SHARE * 731.25)


def test_a_slower_node_is_not_good_and_neither_is_one_that_lacks_something() -> None:
    found = [figure("gpu0.product", 600.0, "TFLOP/s", least=500), unmeasured("gpu0.memory", "GB/s", "hung")]
    judged = held_against(found, {"gpu0.product": 730.0, "gpu0.memory": 4_000.0, "gpu1.product": 730.0})
    assert [(one.name, one.ok) for one in judged] == [
        ("gpu0.product", False),
        ("gpu0.memory", False),
        ("gpu1.product", False),
    ]


def test_none_of_a_count_may_be_missing_and_a_stricter_bound_stays() -> None:
    known = {"gpus": 8.0}
    assert not held_against([figure("gpus", 7, "")], known)[0].ok
    assert held_against([figure("gpus", 8, "")], known)[0].ok
    assert not held_against([figure("gpus", 8, "", least=16)], known)[0].ok


@pytest.mark.parametrize("text", ["nonsense", 'a = "b"', "a = -1.0", "a = inf", "a = nan", "\udcff"])
def test_what_is_not_a_reference_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError):
        read_reference(tmp_path / "file")


def test_a_reference_that_is_not_there_is_refused_with_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_reference(tmp_path / "file")
    assert "--write-reference" in str(caught.value.hint)


def test_a_gpu_nobody_has_published_anything_of_is_only_shown() -> None:
    assert published_product("NVIDIA H200") == pytest.approx((0.55 * 989, 989))
    assert published_memory("NVIDIA H200") == pytest.approx((0.75 * 4_800, 4_800))
    assert published_product("AMD Instinct MI300X OAM").limit == pytest.approx(1307)
    assert published_product("Quadro 600") == published_reduce("Quadro 600", 8) == UNBOUND
    assert published_reduce("NVIDIA H200", 8).limit == 900
    assert published_copy(5, 16) == pytest.approx((0.7 * 63.0, 63.0), rel=0.01)
    assert published_copy(99, 16) == UNBOUND


def test_more_than_the_hardware_can_do_was_measured_wrongly() -> None:
    assert figure("gpu0.product", 980.0, "TFLOP/s", least=544, limit=989).ok
    wrong = figure("gpu0.product", 1_900.0, "TFLOP/s", least=544, limit=989)
    assert not wrong.ok
    assert "reaches 989 at most" in wrong.note
