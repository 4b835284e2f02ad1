"""What can be found with the metrics that are there, and the cheapest step to more."""

import io
from collections.abc import Collection, Iterable
from contextlib import redirect_stdout

import pytest

from holdfast.cli.doctor_text import show
from holdfast.diagnose.checkup import Checkup, check_up
from holdfast.diagnose.findable import STEPS, TOPOLOGY
from holdfast.diagnose.mechanisms import MECHANISMS
from holdfast.signals.catalogue import CATALOGUE
from holdfast.signals.frame import Frame
from holdfast.topology import file

DCGM = [metric for metric in CATALOGUE if metric.startswith("DCGM_")]
DCGM_FEW = ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_XID_ERRORS"]
NODE = [metric for metric in CATALOGUE if metric.startswith("node_")]
OF_POOLS = {"pool-path", "routing-imbalance"}
MACHINES = "nodes: {n1: {gpus: 8}}\n"
SECTIONS = {
    "loops": "loops: {cdu-0: n1}\n",
    "shelves": "shelves: {shelf-0: n1}\n",
    "leaves": "leaves: {leaf-0: n1}\n",
    "mounts": "mounts: {fs-0: n1}\n",
}
WHOLE = MACHINES + "".join(SECTIONS.values())
TITLES = {one.name: one.title for one in MECHANISMS}


class Names:
    """A source with metrics that show nothing now."""

    def __init__(self, metrics: Iterable[str]) -> None:
        self._metrics = tuple(sorted(metrics))

    def metrics(self) -> tuple[str, ...]:
        return self._metrics

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        return None


def checked(metrics: Iterable[str], *, steps: Collection[str] = (), page: str = "") -> Checkup:
    read = file.read(page)
    return check_up(Names(metrics), read.described(read.survey), steps, 10**18, {})


def found(checkup: Checkup) -> set[str]:
    return {one.cause for one in checkup.causes if one.is_findable}


def test_without_any_signal_nothing_is_found_and_steps_come_first() -> None:
    nothing = checked([])
    assert found(nothing) == set()
    assert nothing.next_step is not None
    assert (nothing.next_step.of, nothing.next_step.adds) == (STEPS, ("hang",))
    assert nothing.missing[0].exporter == "holdfast run"
    assert nothing.verdict == (
        "You can find none of 29 causes, and no slowdown of a run is seen or priced. The cheapest next step: "
        "Name the steps of your runs with --step-metric NAME, or a run's log with --step-log PATH. "
        "It adds 1: hang."
    )


def test_with_steps_only_the_exporter_that_adds_most_is_next() -> None:
    steps = checked([], steps=["train"])
    assert found(steps) == {"hang"}
    assert steps.next_step is not None
    assert steps.next_step.of == "dcgm-exporter"
    assert {"gpu-throttle", "nvlink", "memory-errors"} < {*steps.next_step.adds}
    assert steps.verdict.startswith(
        "You can find 1 of 29 causes. The cheapest next step: Run dcgm-exporter on every node"
    )


def test_with_dcgm_only_broken_gpus_are_found_and_steps_come_next() -> None:
    gpus = checked(DCGM)
    assert {"nvlink", "memory-errors", "gpu-fault", "gpu-throttle"} < found(gpus)
    # Its sign alone is not enough for a warning while no run is seen to be slower.
    assert {"rollout", "air-cooling", "fragmentation"}.isdisjoint(found(gpus))
    assert "but no slowdown of a run is seen or priced" in gpus.verdict
    assert gpus.next_step is not None
    assert {"hang", "rollout", "air-cooling", "fragmentation"} == {*gpus.next_step.adds}
    needs = {one.cause: one.by for one in gpus.causes if not one.is_findable}
    assert needs["rollout"] == (STEPS,)
    assert needs["cpu-contention"] == ("node_exporter",)


def test_with_all_there_is_no_next_step() -> None:
    every = checked(CATALOGUE, page=WHOLE)
    assert found(every) == {*TITLES} - OF_POOLS
    assert (every.next_step, every.verdict) == (None, "You can find all 29 causes.")
    pooled = checked(CATALOGUE, page=WHOLE + "pools: {decode: {engines: n1}}\n")
    assert found(pooled) == {*TITLES}


def test_what_the_topology_does_not_have_cannot_be_named() -> None:
    gpus = ("DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_SM_CLOCK")
    without, cooled = (checked(gpus, steps=["train"], page=page) for page in (MACHINES, WHOLE))
    assert found(cooled) - found(without) == {"coolant-flow", "coolant-supply", "power-brake"}
    needs = {one.cause: one.by for one in without.causes if not one.is_findable}
    assert needs["coolant-flow"] == ("loops in the topology",)
    assert needs["power-brake"] == ("shelves in the topology",)
    assert needs["leaf-congestion"] == ("infiniband_exporter", "node_exporter")
    every = checked(CATALOGUE, page=MACHINES)
    assert {*TITLES} - OF_POOLS - found(every) == {
        "coolant-flow",
        "coolant-supply",
        "power-brake",
        "leaf-congestion",
        "storage-slow",
        "storage-crowded",
    }
    assert every.next_step is not None
    assert every.next_step.of == TOPOLOGY
    assert every.verdict == (
        "You can find 23 of 29 causes. The cheapest next step: Add your shelves, loops, leaves, mounts to "
        "the topology file (`holdfast doctor --write FILE` begins one). It adds 6: coolant-flow, "
        "coolant-supply, power-brake, leaf-congestion, storage-slow, storage-crowded."
    )


def test_what_is_installed_is_cheaper_than_what_is_not() -> None:
    few = checked([*DCGM_FEW], steps=["train"])
    assert few.next_step is not None
    assert (few.next_step.of, few.next_step.is_there) == ("dcgm-exporter", True)
    assert "Let dcgm-exporter show more, as listed above." in few.verdict
    # A collector that is on by default and shows nothing lacks its devices: that is no step.
    bare = [one for one in NODE if not one.startswith("node_infiniband_")]
    hosts = checked([*DCGM, *bare], steps=["train"])
    assert hosts.next_step is not None
    assert hosts.next_step.of != "node_exporter"


@pytest.mark.parametrize("steps", [[], ["train"]])
@pytest.mark.parametrize("metrics", [[], DCGM_FEW, DCGM, NODE, [*DCGM, *NODE]])
def test_each_step_adds_what_it_says_until_none_is_left(metrics: list[str], steps: list[str]) -> None:
    there, page = [*metrics], MACHINES
    while (now := checked(there, steps=steps, page=page)).next_step is not None:
        step = now.next_step
        page += "".join(SECTIONS[one] for one in step.sections)
        if step.of == STEPS:
            steps = ["train"]
        elif step.of != TOPOLOGY:
            more = next(one.metrics for one in now.missing if one.exporter == step.of)
            there = [*there, *more]
        then = found(checked(there, steps=steps, page=page))
        assert then - found(now) >= {*step.adds}
        assert now.verdict.endswith(f"It adds {len(step.adds)}: {', '.join(step.adds)}.")
    assert found(now) >= {"coolant-flow", "coolant-supply", "leaf-congestion", "storage-slow"}
    assert all(one.by for one in now.causes if not one.is_findable)


def test_the_text_says_what_each_cause_is_and_ends_with_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = io.StringIO()
        with redirect_stdout(shown):
            show(checked(DCGM))
        lines = shown.getvalue().splitlines()
        last = next(place for place, line in enumerate(lines) if line.startswith("Causes "))
        assert max(map(len, lines[last:])) <= columns
        text = " ".join(shown.getvalue().split())
        assert text.endswith(checked(DCGM).verdict)
        (row,) = (line for line in lines if line.startswith("  nvlink "))
        assert row.rstrip().endswith("yes")
