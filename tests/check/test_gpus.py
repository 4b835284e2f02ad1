"""GPUs by what a probe tells of them, whatever becomes of the probe, and by what driver and kernel tell."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.check.figures import owed
from holdfast.check.gpus import (
    PARTS,
    PROBE,
    TOGETHER,
    Probed,
    counted,
    logged,
    plugged_in,
    probe,
    probe_for,
    tried,
)
from holdfast.detect.suspects import PARTS as SUSPECTS
from holdfast.signals.collectors.kernel_log import parse_line
from holdfast.signals.frame import Reading

SOON_S, LATE_S = 20.0, 1.5
LINKED: list[dict[str, object]] = [
    {"name": "reduce", "value": 470.0},
    {"name": "reduce_wrong", "value": 0},
]
FULL = {"product": 730.0, "differing": 0, "memory": 4_100.0, "wrong": 0, "to_device": 54.0, "to_host": 54.0}


def lines(*told: dict[str, object], then: str = "") -> Sequence[str]:
    """A program that writes these lines."""
    text = "".join(json.dumps(one) + "\n" for one in told)
    return [sys.executable, "-c", f"print({text!r}, end='', flush=True)\n{then}"]


def of_gpu(number: int, figures: dict[str, float]) -> list[dict[str, object]]:
    named: list[dict[str, object]] = [{"gpu": number, "device": "NVIDIA H200"}]
    return [*named, *({"gpu": number, "name": name, "value": value} for name, value in figures.items())]


def judged(found: Probed, wanted: int | None = None, readings: Sequence[Reading] = ()) -> dict[str, bool]:
    return {one.name: one.ok for one in tried(found, wanted, readings)}


def test_every_figure_of_every_gpu_is_there_and_good() -> None:
    found = probe(
        time.monotonic() + SOON_S,
        lines({"count": 2}, *of_gpu(0, FULL), *of_gpu(1, {**FULL, "wrong": 3}), *LINKED),
    )
    shown = judged(found, 2)
    alone = {f"gpu{number}.{part}" for number in (0, 1) for part in PARTS}
    assert set(shown) == {"gpus", *alone, *(f"gpus.{part}" for part in TOGETHER)}
    assert [name for name, ok in shown.items() if not ok] == ["gpu1.wrong"]


@pytest.mark.parametrize(
    ("told", "bad"),
    [
        ({"name": "reduce", "value": 150.0}, ["gpus.reduce"]),
        ({"name": "reduce_wrong", "value": 7}, ["gpus.reduce_wrong"]),
        ({"name": "reduce", "error": "NCCL Error 2: unhandled system error"}, ["gpus.reduce"]),
    ],
)
def test_links_between_gpus_that_are_slow_wrong_or_dead_are_not_good(
    told: dict[str, object], bad: list[str]
) -> None:
    linked = [told if one["name"] == told["name"] else one for one in LINKED]
    found = probe(time.monotonic() + SOON_S, lines({"count": 2}, *of_gpu(0, FULL), *of_gpu(1, FULL), *linked))
    assert [name for name, ok in judged(found, 2).items() if not ok] == bad


def test_links_that_nobody_can_try_here_do_not_speak_against_a_node_but_prove_nothing() -> None:
    told: dict[str, object] = {"name": "reduce", "untried": "this torch has no NCCL"}
    found = probe(time.monotonic() + SOON_S, lines({"count": 2}, *of_gpu(0, FULL), *of_gpu(1, FULL), told))
    assert all(judged(found, 2).values())
    shown = owed(list(tried(found, 2)), "nvlink")
    assert [(one.name, one.note, one.untried) for one in shown if not one.ok] == [
        (f"gpus.{part}", "this torch has no NCCL", True) for part in TOGETHER
    ]


def test_a_gpu_that_slows_down_under_load_is_not_good() -> None:
    throttled = {**FULL, "sustained": 0.6, "clock": 1_200.0}
    found = probe(time.monotonic() + SOON_S, lines({"count": 1}, *of_gpu(0, throttled)))
    assert [name for name, ok in judged(found, 1).items() if not ok] == ["gpu0.sustained"]
    assert {one.name for one in owed(list(tried(found, 1)), "gpu-compute") if one.untried} == set()


def test_what_is_suspected_is_tried_for_longer() -> None:
    commands = {part: probe_for(part, 1_800.0)[len(PROBE) :] for part in (*SUSPECTS, None)}
    assert commands.pop("gpu-memory") == ("--patterns", "270.0")
    assert commands.pop("gpu") == commands.pop("gpu-compute") == ("--sustain", "270.0")
    assert set(commands.values()) == {()}
    assert probe_for("gpu-compute", 50.0)[-1] == "8.0"


def test_a_gpu_alone_has_no_links_to_others() -> None:
    found = probe(time.monotonic() + SOON_S, lines({"count": 1}, *of_gpu(0, FULL)))
    assert not any(name.startswith("gpus.") for name in judged(found, 1))


def test_what_a_library_prints_is_no_figure() -> None:
    noisy = lines({"count": 1}, *of_gpu(0, FULL), then="print('warning: \\xff')")
    assert judged(probe(time.monotonic() + SOON_S, noisy))["gpu0.product"]


def test_a_gpu_that_hangs_is_not_good_and_does_not_hold_up_the_check() -> None:
    begun = time.monotonic()
    hung = lines(
        {"count": 2},
        *of_gpu(0, FULL),
        *of_gpu(1, {"product": 700.0}),
        then="input_ = open(0).read\nimport time; time.sleep(600)",
    )
    found = probe(begun + LATE_S, hung)
    assert time.monotonic() - begun < LATE_S + SOON_S
    shown = judged(found, 2)
    assert shown["gpu0.memory"]
    assert not shown["gpu1.memory"]
    assert found.note == "the probe did not end in time"


def test_a_gpu_that_raises_says_why() -> None:
    raised = lines({"count": 1}, {"gpu": 0, "device": "NVIDIA H200"}, {"gpu": 0, "error": "CUDA error: sad"})
    notes = {one.note for one in tried(probe(time.monotonic() + SOON_S, raised), None) if not one.ok}
    assert notes == {"CUDA error: sad"}


def test_too_few_gpus_are_not_good_and_none_are_if_nobody_wants_any() -> None:
    none = probe(time.monotonic() + SOON_S, lines())
    assert judged(none) == {}
    assert judged(none, 8) == {"gpus": False}


def test_a_probe_that_fails_is_told() -> None:
    failed = probe(time.monotonic() + SOON_S, [sys.executable, "-c", "import no_such_module"])
    assert "no_such_module" in failed.note
    assert judged(failed, 1) == {"gpus": False}


def test_a_probe_that_complains_at_length_is_heard_out() -> None:
    wordy = lines({"count": 1}, *of_gpu(0, FULL), then="import sys; sys.stderr.write('w' * 1_000_000)")
    found = probe(time.monotonic() + SOON_S, wordy)
    assert (found.note, judged(found)["gpu0.product"]) == ("", True)


def test_gpus_that_no_driver_sees_are_counted(tmp_path: Path) -> None:
    for number, (vendor, kind) in enumerate(
        [("0x10de", "0x030200"), ("0x10de", "0x068000"), ("0x8086", "0x030000"), ("0x10de", "0x030000")]
    ):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "vendor").write_text(vendor + "\n", encoding="ascii")
        (tmp_path / str(number) / "class").write_text(kind + "\n", encoding="ascii")
    (tmp_path / "gone").mkdir()
    assert plugged_in(tmp_path) == 2


def reading(metric: str, value: float, gpu: str = "0") -> Reading:
    return Reading(metric=f"DCGM_FI_DEV_{metric}", labels={"gpu": gpu}, at_ns=0, value=value)


def test_copies_are_held_against_the_fastest_link_there_is() -> None:
    link = [reading("PCIE_MAX_LINK_GEN", 5), reading("PCIE_MAX_LINK_WIDTH", 16)]
    slow = probe(time.monotonic() + SOON_S, lines({"count": 1}, *of_gpu(0, {**FULL, "to_host": 13.0})))
    assert judged(slow)["gpu0.to_host"]
    assert not judged(slow, readings=link)["gpu0.to_host"]
    assert judged(slow, readings=link)["gpu0.to_device"]


def test_what_the_driver_counts_speaks_against_a_gpu() -> None:
    found = counted(
        [reading("ECC_DBE_VOL_TOTAL", 2), reading("ROW_REMAP_FAILURE", 0), reading("GPU_TEMP", 40)]
    )
    assert [(one.name, one.ok) for one in found] == [("gpu0.uncorrected", False), ("gpu0.remap_failed", True)]


@pytest.mark.parametrize(
    ("line", "ok"),
    [
        ("3,100,5000000,-;NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.", False),
        ("3,100,5000000,-;NVRM: Xid (PCI:0000:9b:00): 13, Graphics Exception", True),
        ("6,100,5000000,-;usb 1-1: new device", True),
    ],
)
def test_what_the_kernel_logged_speaks_against_a_node_if_it_ends_work(line: str, ok: bool) -> None:
    (found,) = logged([parse_line(line)])
    assert found.ok is ok
