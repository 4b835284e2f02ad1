"""A run's metrics for Prometheus, on a real socket, and that no scraper can hold up the run."""

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from waiting import WAIT_S

from holdfast.record.errors import InputError
from holdfast.record.events import RunStarted
from holdfast.run import membership
from holdfast.run.happenings import Begun, FromMember, FromNode, Record
from holdfast.run.metrics import serving
from holdfast.run.state import RunPolicy
from holdfast.run.status import MemberStatus, NodeStatus, Status
from holdfast.run.wire import AgentJoined, Checkpointed, MemberBeat, Spent

SECOND_NS = 1_000_000_000


def member(name: str, **given: object) -> MemberStatus:
    known = {
        "name": name,
        "node": name.partition(".")[0],
        "slot": 0,
        "role": "active",
        "stage": "forward",
        "step": 8,
        "lanes": (0, 1),
        "alive": True,
    }
    return MemberStatus(**{**known, **given})  # type: ignore[arg-type]


STATUS = Status(
    run="r",
    team="vision",
    started_ns=0,
    generation=2,
    step=7,
    steps_total=100,
    loss=None,
    loss_curve=(),
    rate=2.0,
    step_s=0.5,
    stall_s=0.25,
    write_s=3.0,
    lanes_skipped=2,
    members=(
        member(
            "n0.0",
            spent=(
                Spent(steps=10, compute_s=5.0, wait_s=1.0, collecting_s=0.5, resent=3),
                Spent(steps=8, compute_s=3.0, wait_s=1.0),
            ),
        ),
        member("n1.0"),
        member("n2.0", role="warm", lanes=()),
        member("n3.0", alive=False),
    ),
    nodes=(NodeStatus(name="n0", alive=True), NodeStatus(name="n3", alive=False)),
    happened=(),
    outcome=None,
)


@pytest.fixture
def url() -> Iterator[str]:
    with serving("127.0.0.1", 0, lambda: STATUS) as url:
        yield url


def scraped(url: str) -> dict[tuple[str, str], float]:
    """Values by name and member."""
    with urllib.request.urlopen(url, timeout=WAIT_S) as page:  # on loopback
        text = page.read().decode()
    return {
        (sample.name, sample.labels.get("member", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_page_has_the_run_and_the_members_that_have_measured_something(url: str) -> None:
    found = scraped(url)
    run = {name.removeprefix("holdfast_run_"): value for (name, who), value in found.items() if not who}
    assert run == {
        "info": 1,
        "steps_total": 7,
        "steps_planned": 100,
        "step_seconds": 0.5,
        "checkpoint_seconds": 0.25,
        "checkpoint_write_seconds": 3,
        "generation": 2,
        "members": 2,
        "nodes": 1,
        "lanes": 4,
        "lanes_skipped": 2,
    }
    assert {who for _, who in found if who} == {"n0.0"}
    assert found["holdfast_member_compute_seconds", "n0.0"] == 1.0  # two steps since the report before
    assert found["holdfast_member_compute_seconds_total", "n0.0"] == 5.0
    assert found["holdfast_member_wait_seconds", "n0.0"] == 0.0
    assert found["holdfast_member_gc_seconds_total", "n0.0"] == 0.5
    assert found["holdfast_member_resent_segments_total", "n0.0"] == 3.0


@pytest.mark.parametrize(
    ("stage", "waits", "in_step"),
    [("forward", 0, 1), ("reduce", 1, 1), ("optimizer", 0, 1), ("meeting", 1, 0), ("script", 0, 0)],
)
def test_a_page_tells_who_waits_for_others(stage: str, waits: int, in_step: int) -> None:
    one = member("n0.0", stage=stage, spent=(Spent(steps=2), Spent(steps=1)))
    with serving("127.0.0.1", 0, lambda: msgspec.structs.replace(STATUS, members=(one,))) as url:
        found = scraped(url)
    assert found["holdfast_member_waiting", "n0.0"] == waits
    assert found["holdfast_member_in_step", "n0.0"] == in_step


def test_a_page_says_whose_the_run_is(url: str) -> None:
    with urllib.request.urlopen(url, timeout=WAIT_S) as page:  # on loopback
        assert 'holdfast_run_info{run="r",team="vision",version=' in page.read().decode()


def test_there_is_one_page(url: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(url + "/else", timeout=WAIT_S)
    refused.value.close()


def test_a_status_that_fails_costs_one_scrape_and_nothing_else() -> None:
    def fails() -> Status:
        raise RuntimeError("not now")

    with serving("127.0.0.1", 0, fails) as url:
        for _ in range(2):
            with pytest.raises(urllib.error.HTTPError, match="500") as refused:
                scraped(url)
            refused.value.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_ours_is_told_in_a_sentence(host: str) -> None:
    with pytest.raises(InputError, match=f"cannot be served at {host}:0"), serving(host, 0, lambda: STATUS):
        pass


def test_a_port_in_use_ends_the_command_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('started')", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "run", "--metrics-port", str(port), "script.py"],
            cwd=tmp_path,
            env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    assert done.returncode == 2
    assert f"Metrics cannot be served at 127.0.0.1:{port}: address already in use." in done.stderr
    assert "started" not in done.stdout


# ---- where the values come from --------------------------------------------------------------------------


def begun() -> membership.RunState:
    state = membership.initial(RunPolicy(run="r", team="vision"), 0)
    membership.advance(state, Begun(), 0)
    membership.advance(state, FromNode("n0", AgentJoined(node="n0", slots=1, address="", port=1)), 0)
    return state


def test_the_record_is_told_whose_the_run_is_for_what_and_where() -> None:
    state = membership.initial(RunPolicy(run="r", team="vision", project="p", cluster="c"), 0)
    effects = membership.advance(state, Begun(), 0)
    (started,) = [one.event for one in effects if isinstance(one, Record)]
    assert isinstance(started, RunStarted)
    assert (started.team, started.project, started.cluster) == ("vision", "p", "c")


def test_heartbeats_bring_the_last_two_reports_that_differ() -> None:
    state = begun()
    reports = [
        Spent(steps=3, compute_s=1.0),
        None,
        Spent(steps=3, compute_s=1.0),
        Spent(steps=5, compute_s=2.0),
    ]
    for spent in reports:
        beat = MemberBeat(member="n0.0", step=1, stage="forward", spent=spent)
        membership.advance(state, FromMember("n0.0", beat), SECOND_NS)
    assert state.roster.members["n0.0"].spent == (reports[3], reports[0])


def test_a_checkpoint_has_a_stall_and_a_time_until_it_is_durable() -> None:
    state = begun()

    def tell(happened: str, at_s: int, stall_ns: int | None = None) -> None:
        message = Checkpointed(member="n0.0", happened=happened, step=1, place="p", stall_ns=stall_ns)  # type: ignore[arg-type]
        membership.advance(state, FromMember("n0.0", message), at_s * SECOND_NS)

    tell("begun", 1)
    assert (state.progress.checkpointing.begun_ns, state.progress.checkpointing.write_ns) == (SECOND_NS, None)
    tell("saved", 4, stall_ns=7)
    assert (state.progress.checkpointing.stall_ns, state.progress.checkpointing.write_ns) == (
        7,
        3 * SECOND_NS,
    )
    tell("begun", 9)
    tell("failed", 10)
    assert (state.progress.checkpointing.begun_ns, state.progress.checkpointing.write_ns) == (
        None,
        3 * SECOND_NS,
    )
