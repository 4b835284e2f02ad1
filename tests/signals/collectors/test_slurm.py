"""Slurm's states, jobs and maintenance: a real cluster of two nodes, and what other versions print."""

import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples
from waiting import WAIT_S, until

from holdfast.record.clock import ManualClock
from holdfast.signals.catalogue import CATALOGUE
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.slurm import (
    JobPlacement,
    MaintenanceWindow,
    NodeState,
    SlurmCollector,
    parse_jobs,
    parse_nodes,
    parse_reservations,
    state_name,
)

FIRST, SECOND = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def collector(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCollector]:
    """With the commands' settings, and every node and reservation as before after the test."""
    monkeypatch.setenv("SLURM_CONF", str(slurm))
    monkeypatch.setenv("TZ", "Asia/Kolkata")  # what the commands would print times in
    yield SlurmCollector(clock=ManualClock(3))
    scontrol("update", f"nodename={SECOND}", "state=resume", check=False)
    scontrol("delete", "reservation=tide", check=False)


def scontrol(*words: str, check: bool = True) -> None:
    subprocess.run(["scontrol", *words], check=check, capture_output=True, timeout=WAIT_S)


def counts(collector: SlurmCollector) -> dict[str, float | None]:
    readings = collector.collect()
    assert {reading.metric for reading in readings} <= CATALOGUE.keys()
    return {one.metric.removeprefix("slurm_nodes_"): one.value for one in readings if one.value}


def await_counts(collector: SlurmCollector, expected: dict[str, float]) -> None:
    """Slurm takes a moment to act on what it was told."""
    until(lambda: counts(collector) == expected, lambda: counts(collector))


def test_a_real_cluster_is_counted(collector: SlurmCollector) -> None:
    await_counts(collector, {"idle": 2})
    assert {node.node for node in collector.view().nodes} == {FIRST, SECOND}
    assert all(node.answers and not node.reason for node in collector.view().nodes)


def test_a_drained_node_is_told_with_its_reason(collector: SlurmCollector) -> None:
    scontrol("update", f"nodename={SECOND}", "state=drain", "reason=warm | wet")
    await_counts(collector, {"idle": 1, "drain": 1})
    drained = next(node for node in collector.view().nodes if node.node == SECOND)
    assert drained == NodeState(node=SECOND, state="drained", answers=True, reason="warm | wet")


def test_a_job_is_told_with_its_nodes(collector: SlurmCollector) -> None:
    subprocess.run(
        ["sbatch", "--nodes=2", "--job-name=llm|70b", "--output=/dev/null", "--wrap=sleep 60"],
        check=True,
        capture_output=True,
    )
    await_counts(collector, {"alloc": 2})
    (job,) = collector.view().jobs
    assert (job.name, sorted(job.nodes)) == ("llm|70b", [FIRST, SECOND])
    assert job.job.isdigit()


def test_planned_maintenance_is_told_in_utc(collector: SlurmCollector) -> None:
    user = f"users={os.environ.get('USER', 'root')}"
    scontrol(
        "create", "reservation=tide", "starttime=now", "duration=60", user, "flags=maint", f"nodes={SECOND}"
    )
    await_counts(collector, {"idle": 1, "maint": 1})
    (window,) = collector.view().maintenance
    assert (window.name, window.nodes) == ("tide", (SECOND,))
    assert window.end_ns - window.start_ns == 3_600 * 10**9
    assert abs(window.start_ns / 1e9 - time.time()) < WAIT_S + 60


def test_a_machine_without_slurm_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no command sinfo"):
        SlurmCollector(clock=ManualClock()).collect()


def test_a_command_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "sinfo"
    script.write_text(
        "#!/bin/sh\necho 'slurm_load_partitions: no controller' >&2; exit 1\n", encoding="utf-8"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(Unavailable, match=r"sinfo failed: slurm_load_partitions: no controller\."):
        SlurmCollector(clock=ManualClock()).collect()


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ("allocated", "alloc"),
        ("completing", "comp"),
        ("down", "down"),
        ("drained", "drain"),
        ("draining", "drain"),
        ("fail", "fail"),
        ("failing", "fail"),
        ("error", "err"),
        ("idle", "idle"),
        ("maint", "maint"),
        ("mixed", "mix"),
        ("reserved", "resv"),
        ("planned", "resv"),
        ("unknown", "down"),
        ("blocked", ""),
    ],
)
def test_states_have_the_exporters_names(state: str, name: str) -> None:
    assert state_name(state) == name


def test_a_node_of_two_partitions_is_one_node() -> None:
    text = "n1|idle|none\nn1|idle|none\nn2|down*|Not responding\nno bar\n|idle|\n"
    assert parse_nodes(text) == (
        NodeState(node="n1", state="idle", answers=True, reason=""),
        NodeState(node="n2", state="down", answers=False, reason="Not responding"),
    )


def test_jobs_without_nodes_are_left_out() -> None:
    text = "7|n[01-02,5]|a|b\n8||waits\n9|n[|broken\n"
    assert parse_jobs(text) == (JobPlacement(job="7", name="a|b", nodes=("n01", "n02", "n5")),)


def test_only_reservations_for_maintenance_count() -> None:
    line = "ReservationName={} StartTime=2026-01-01T00:00:00 EndTime={} Nodes=n[1-2] Flags={}"
    text = "\n".join(
        [
            line.format("weekly", "2026-01-01T01:00:00", "MAINT,SPEC_NODES"),
            line.format("team", "2026-01-01T01:00:00", "SPEC_NODES"),
            line.format("odd", "Unknown", "MAINT"),
            "No reservations in the system",
        ]
    )
    start_ns = 1_767_225_600 * 10**9
    window = MaintenanceWindow(
        name="weekly", start_ns=start_ns, end_ns=start_ns + 3_600 * 10**9, nodes=("n1", "n2")
    )
    assert parse_reservations(text) == (window,)


@settings(max_examples=examples(100))
@given(st.text(alphabet=st.sampled_from("n1[]-,|= \nMAINTFlagsStartTimeEnd:T0"), max_size=200))
def test_no_output_raises(text: str) -> None:
    parse_nodes(text)
    parse_jobs(text)
    parse_reservations(text)
