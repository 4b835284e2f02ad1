"""`holdfast runbook`: the runbook of the incident that is meant, and of its seam."""

import contextlib
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import diagnosis
from holdfast.record.events import IncidentDiagnosed, encode
from holdfast.signals.frame import Reading
from holdfast.signals.store import SignalStore

Holdfast = Callable[..., Any]


@pytest.fixture
def recorded(holdfast: Holdfast, data: Path, tmp_path: Path) -> None:
    first = msgspec.json.decode((data / "incident.json").read_bytes(), type=Incident)
    cause = msgspec.structs.replace(first.cause, mechanism="storage-slow", subject="fs-\x1b[31m0")
    second = msgspec.structs.replace(
        first,
        name="pretrain/s2",
        cause=cause,
        runbook="storage-slow",
        seam="none",
        began_ns=first.began_ns + 10**12,
        ended_ns=first.began_ns + 2 * 10**12,
    )
    events = [
        IncidentDiagnosed(
            id=f"e-{number}",
            occurred_ns=one.noticed_ns,
            run=one.run,
            incident=one.name,
            state="open" if one.ended_ns is None else "resolved",
            diagnosis=diagnosis(one),
        )
        for number, one in enumerate((first, second))
    ]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    assert holdfast("import", path).code == 0


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("named", [["pretrain/s1"], ["pretrain"], []])
def test_the_open_incident_is_meant_unless_another_is_named(holdfast: Holdfast, named: list[str]) -> None:
    done = holdfast("runbook", *named)
    assert done.code == 0
    assert done.out.startswith("# Coolant flow has fallen at cdu-0000\n")
    assert "# Across the seam: facilities and training" in done.out


@pytest.mark.usefixtures("recorded")
def test_an_incident_that_is_over_can_be_named_and_cannot_move_the_cursor(holdfast: Holdfast) -> None:
    done = holdfast("runbook", "pretrain/s2")
    assert done.out.startswith("# Storage is slow at fs-\\x1b[31m0\n")
    assert "over since" in done.out
    assert "Across the seam" not in done.out
    told = holdfast("runbook", "pretrain/s2", "--json").json
    assert (told["incident"], told["state"], told["seam_runbook"]) == ("pretrain/s2", "resolved", None)
    assert told["runbook"]["name"] == "storage-slow"


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("named", ["pretrain/s9", "tune", "tune/s1"])
def test_an_incident_that_is_not_there_is_a_mistake(holdfast: Holdfast, named: str) -> None:
    done = holdfast("runbook", named)
    assert done.code == 2
    assert "The record has no incident" in done.err
    assert "holdfast incidents" in done.err


@pytest.mark.usefixtures("recorded")
def test_on_a_terminal_it_is_text_and_elsewhere_markdown(environment: dict[str, str], tmp_path: Path) -> None:
    def printed(*words: str) -> str:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "holdfast", "runbook", "pretrain", *words]
        with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=theirs) as showing:
            os.close(theirs)
            text = b""
            with contextlib.suppress(OSError):  # how a terminal tells that nobody writes to it any more
                while data := os.read(ours, 1 << 16):
                    text += data
        os.close(ours)
        assert showing.returncode == 0
        return click.unstyle(text.decode()).replace("\r\n", "\n")

    assert printed().startswith("Coolant flow has fallen at cdu-0000\n\nincident   `pretrain/s1`")
    assert "```" not in printed()
    assert printed("--markdown").startswith("# Coolant flow has fallen at cdu-0000\n")


@pytest.mark.usefixtures("recorded")
def test_queries_name_hosts_as_the_signals_do(holdfast: Holdfast, data: Path, tmp_path: Path) -> None:
    late = msgspec.json.decode((data / "incident.json").read_bytes(), type=Incident).affected[:16]
    now_ns = time.time_ns()
    with SignalStore(tmp_path / "home" / "signals") as store:
        store.append(
            Reading(
                metric="DCGM_FI_DEV_GPU_TEMP",
                labels={"gpu": "0", "Hostname": f"{host}.site", "instance": f"10.0.0.{number}:9400"},
                at_ns=now_ns,
                value=60.0,
            )
            for number, host in enumerate(late)
        )
    told = holdfast("runbook", "pretrain")
    assert told.err == ""
    assert f'DCGM_FI_DEV_GPU_TEMP{{Hostname=~"{late[0]}\\\\.site|' in told.out
    unreachable = holdfast("runbook", "pretrain", "--prometheus", "http://127.0.0.1:9")
    assert unreachable.code == 0
    assert "cannot be reached" in unreachable.err
    assert f'DCGM_FI_DEV_GPU_TEMP{{Hostname=~"({late[0]}|' in unreachable.out
