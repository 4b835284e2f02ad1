"""The coordinator is killed, and the run continues: real processes, and SIGKILL."""

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from launching import JOINS, TOKEN, Launched, Start, descendants, is_a
from waiting import WAIT_S, free_port, is_alive, until

from holdfast.record.events import (
    ActionTaken,
    GenerationOpened,
    MemberLost,
    RunEndangered,
    RunEnded,
    RunStarted,
    StepCommitted,
)
from holdfast.run.endpoint import find_endpoint
from holdfast.run.estate import OUTLIVES

pytestmark = pytest.mark.slow

TAKEN_OVER = "the coordinator was lost; its successor has taken over"
KILLS = 2


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    starts = Start(tmp_path)
    yield starts
    for run in starts.home.glob("runs/*/endpoint.json"):  # a run may outlive its launcher
        with suppress(Exception):
            endpoint = find_endpoint(starts.home, run.parent.name)
            for pid in (endpoint.successor, endpoint.pid):
                os.kill(pid, signal.SIGKILL)
    for launched in starts.launched:
        launched.close()


def kill_coordinator(start: Start, run: str) -> int:
    """Kill the coordinator once it has a successor, which becomes the coordinator and gets one of its own."""
    endpoint = start.endpoint(run)
    os.kill(endpoint.pid, signal.SIGKILL)
    until(lambda: start.endpoint(run).pid == endpoint.successor)
    return endpoint.successor


def until_said(launched: Launched, text: str, count: int) -> None:
    launched.until(lambda: len([line for line in tuple(launched.err) if text in line]) >= count)


def assert_nothing_happened(start: Start, members: int) -> None:
    """Check the record of a run in which no member and no step was lost. On a busy machine it may begin with
    the first members, and grow as the others come.
    """
    assert start.events(MemberLost) == []
    sizes = [len(generation.members) for generation in start.events(GenerationOpened)]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == members
    assert len(start.events(RunStarted)) == 1
    assert [event.outcome for event in start.events(RunEnded)] == ["completed"]
    steps = sorted(event.step for event in start.events(StepCommitted))
    assert steps == [*range(1, len(steps) + 1)]  # each once, although several coordinators recorded them


def test_members_notice_nothing_of_coordinators_that_are_killed(start: Start, tmp_path: Path) -> None:
    launched = start("--nproc-per-node", "4", "--warm", "0", "--run", "r", script=JOINS)
    launched.until_printed(r"generation n0.0 n0.1 n0.2 n0.3$", 4)
    pids = launched.pids()
    for kills in range(1, KILLS + 1):
        kill_coordinator(start, "r")
        until_said(launched, TAKEN_OVER, kills)
    assert start.verb("chaos", "r", "kill", "n9").returncode == 2  # operators find the successor
    endpoint = start.endpoint("r")
    assert (is_a("hub", endpoint.pid), is_a("standby", endpoint.pid)) == (True, False)  # and `ps` shows it
    assert is_a("standby", endpoint.successor)
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    assert launched.pids() == pids
    assert_nothing_happened(start, 4)
    told = [(event.action, event.subject, event.reason) for event in start.events(ActionTaken)]
    assert told == [("take over", "coordinator", "the coordinator was lost")] * KILLS
    assert f"{KILLS} takeovers" in " ".join(start.verb("report", "r").stdout.split())
    assert start.left("r") == ["started.json"]


def test_a_member_that_dies_with_the_coordinator_is_replaced(start: Start, tmp_path: Path) -> None:
    launched = start("--nproc-per-node", "2", "--run", "r", script=JOINS)
    launched.until_printed("generation n0.0 n0.1$", 2)
    (lost,) = [int(line.split()[2]) for line in launched.out if line.startswith("[n0.1] pid")]
    coordinator = start.endpoint("r").pid
    for pid in (lost, coordinator):
        os.kill(pid, signal.SIGKILL)
    launched.until_printed(r"generation n0.0 n0.[23]$")  # the other one may not be shown yet
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    assert [(event.subject, event.reason) for event in start.events(MemberLost)] == [("n0.1", "SIGKILL")]


def test_an_agent_that_dies_with_the_coordinator_comes_back(start: Start, tmp_path: Path) -> None:
    flags = ("--nodes", "2", "--nnodes", "1:2", "--warm", "0", "--run", "r")
    launched = start(*flags, script=JOINS)
    launched.until_printed("generation n0.0 n1.0$", 2)
    agents, coordinator = launched.agents(), start.endpoint("r").pid
    for pid in (agents[-1], coordinator):
        os.kill(pid, signal.SIGKILL)
    launched.until_printed(r"generation n0.0 n1.0\+1$", 2)
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    assert len(start.events(RunEnded)) == 1


@pytest.mark.parametrize(
    "tls", [pytest.param((), id="plain", marks=pytest.mark.soak), pytest.param(("--tls",), id="tls")]
)
def test_the_nodes_of_other_launchers_go_on_as_well(
    start: Start, tmp_path: Path, tls: tuple[str, ...]
) -> None:
    flags = (*tls, "--nnodes", "3", "--warm", "0", "--coordinator", f"127.0.0.1:{free_port()}", "--run", "r")
    first = start(*flags, "--node-rank", "0", script=JOINS, token=TOKEN)
    first.until_said("coordinator at")
    others = [start(*flags, "--node-rank", rank, script=JOINS, token=TOKEN) for rank in "12"]
    for launched in (first, *others):
        launched.until_printed("generation n0.0 n1.0 n2.0$")
    kill_coordinator(start, "r")
    first.until_said(TAKEN_OVER)
    (tmp_path / "enough").touch()
    assert [launched.wait() for launched in (first, *others)] == [0, 0, 0]
    assert_nothing_happened(start, 3)


def test_a_killed_successor_is_replaced(start: Start, tmp_path: Path) -> None:
    launched = start("--warm", "0", "--run", "r", script=JOINS)
    launched.until_printed("generation n0.0$")
    before = start.endpoint("r")
    os.kill(before.successor, signal.SIGKILL)
    until(lambda: start.endpoint("r").successor != before.successor)
    kill_coordinator(start, "r")
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    assert_nothing_happened(start, 1)


def test_a_run_without_a_successor_for_a_while_has_that_in_its_record(start: Start, tmp_path: Path) -> None:
    launched = start("--run", "r", script=JOINS)
    launched.until_said("generation 1")
    before = start.endpoint("r")
    _, most = resource.prlimit(before.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(before.pid, resource.RLIMIT_NOFILE, (3, most))
    os.kill(before.successor, signal.SIGKILL)
    launched.until_said("the coordinator has no successor at the moment: Too many open files")
    resource.prlimit(before.pid, resource.RLIMIT_NOFILE, (most, most))
    until(lambda: start.endpoint("r").successor not in (0, before.successor))
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    found = [(one.what, one.reason, one.over) for one in start.events(RunEndangered)]
    assert [one for one in found if one[0] == "successor"] == [
        ("successor", "Too many open files", False),
        ("successor", "", True),
    ]


def test_a_successor_that_is_stopped_is_told_and_replaced(start: Start, tmp_path: Path) -> None:
    """It must not take over when it is continued."""
    launched = start("--nproc-per-node", "4", "--warm", "0", "--run", "r", script=JOINS)
    launched.until_printed("generation", 4)
    before = start.endpoint("r")
    os.kill(before.successor, signal.SIGSTOP)
    until(lambda: start.endpoint("r").successor != before.successor)
    assert not is_alive(before.successor)
    launched.until_said("the coordinator's successor was stopped for 5 s: it is killed and replaced")
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    assert_nothing_happened(start, 4)


def test_a_run_without_coordinator_and_successor_ends_everywhere(start: Start) -> None:
    flags = ("--nnodes", "2", "--coordinator", f"127.0.0.1:{free_port()}", "--run", "r")
    first = start(*flags, script=JOINS, token=TOKEN)
    first.until_said("coordinator at")
    second = start(*flags, script=JOINS, token=TOKEN)
    second.until_printed("generation")
    endpoint = start.endpoint("r")
    for pid in (endpoint.successor, endpoint.pid):
        os.kill(pid, signal.SIGKILL)
    assert [first.wait(), second.wait()] == [1, 1]
    for launched in (first, second):
        assert any("the coordinator at" in line and "is gone" in line for line in launched.err)
        again = (
            "start it again as before, with `--run r`: it goes on from its newest checkpoint, if it has one"
        )
        assert f"holdfast: the run r is over; {again}" in launched.err
    assert not any(map(is_alive, (*first.pids(), *second.pids())))
    seen_ns = (start.home / "runs" / "r" / "endpoint.json").stat().st_mtime_ns
    gone = start.verb("attach", "r")
    assert gone.returncode == 2
    assert "it was lost with its coordinator, whose last sign of life was at" in gone.stderr
    assert "hint: Start it again under its name" in gone.stderr
    (listed,) = json.loads(start.verb("runs", "--json").stdout)
    assert listed["ended"]["outcome"] == "failed"
    (ended,) = start.events(RunEnded)
    assert ended.reason == "lost: its coordinator died, and no successor took its place"
    assert ended.occurred_ns >= max(event.occurred_ns for event in start.events(RunStarted))
    assert abs(ended.occurred_ns - seen_ns) < 60 * 10**9
    assert not (start.home / "runs" / "r" / "endpoint.json").exists()
    assert start.verb("report", "r").stdout.count("Failed: lost: its coordinator died") == 1
    assert len(start.events(RunEnded)) == 1  # it is recorded once


def test_a_run_that_is_started_again_after_it_was_lost_does_not_pay_for_the_time_between(
    start: Start, tmp_path: Path
) -> None:
    first = start("--run", "r", "--warm", "0", script=JOINS)
    first.until_printed("generation")
    first.process.kill()
    first.wait()
    until(lambda: not any(map(is_alive, first.pids())))
    (tmp_path / "enough").touch()
    second = start("--run", "r", "--warm", "0", script=JOINS)
    assert second.wait() == 0
    lost, completed = sorted(start.events(RunEnded), key=lambda event: event.occurred_ns)
    assert (lost.outcome, completed.outcome) == ("failed", "completed")
    assert lost.occurred_ns < max(event.occurred_ns for event in start.events(RunStarted))


def test_steps_are_stamped_when_they_happen_and_not_when_a_stopped_coordinator_hears_of_them(
    start: Start, tmp_path: Path
) -> None:
    commit = "generation=generation.number, step=step, loss=None"
    script = JOINS.replace(commit, f"{commit}, at_ns=time.monotonic_ns()")
    script = script.replace(
        "        step += 1\n", "        step += 1\n        print('at', step, flush=True)\n"
    )
    launched = start("--warm", "0", "--run", "r", script=script)
    launched.until_printed("at ", 20)
    coordinator = start.endpoint("r").pid
    os.kill(coordinator, signal.SIGSTOP)
    stopped_ns, steps = time.time_ns(), len(launched.until_printed("at "))
    launched.until_printed("at ", steps + 50)
    continued_ns = time.time_ns()
    os.kill(coordinator, signal.SIGCONT)
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    stamps = [event.occurred_ns for event in start.events(StepCommitted)]
    assert stamps == sorted(stamps)
    assert len([at_ns for at_ns in stamps if stopped_ns < at_ns < continued_ns]) > 40


def test_a_signal_also_ends_a_run_whose_coordinator_is_stopped(start: Start) -> None:
    launched = start("--nproc-per-node", "1", "--run", "r", script=JOINS)
    launched.until_printed("generation n0.0$", 1)
    os.kill(start.endpoint("r").pid, signal.SIGSTOP)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_coordinator_and_its_successor_end_with_a_killed_launcher(
    start: Start, *, is_stopped: bool
) -> None:
    launched = start("--run", "r", script=JOINS)
    launched.until_printed("generation")
    endpoint = start.endpoint("r")
    if is_stopped:
        os.kill(endpoint.pid, signal.SIGSTOP)
    launched.process.kill()
    everything = (endpoint.pid, endpoint.successor, *launched.pids())
    until(lambda: not any(map(is_alive, everything)))


# ---- a run that outlives its launcher --------------------------------------------------------------------


def test_a_detachable_run_outlives_its_launcher_and_can_be_seen_and_stopped(start: Start) -> None:
    launched = start("--detachable", "--run", "r", "--warm", "0", script=JOINS)
    launched.until_printed("generation n0.0$")
    start.endpoint("r")
    launched.process.kill()
    assert launched.process.wait() == -signal.SIGKILL
    kill_coordinator(start, "r")
    stopped = start.verb("stop", "r")
    assert stopped.returncode == 0, stopped.stderr
    until(lambda: not any(map(is_alive, launched.pids())))
    until(lambda: start.left("r") == ["started.json"])
    assert [event.outcome for event in start.events(RunEnded)] == ["stopped"]


def test_attaching_shows_the_lines_so_far_and_those_that_follow(start: Start, tmp_path: Path) -> None:
    launched = start("--detachable", "--run", "r", "--warm", "0", script=JOINS)
    launched.until_printed("generation n0.0$")
    launched.process.send_signal(signal.SIGHUP)  # its terminal has gone
    kill_coordinator(start, "r")
    attached = start.attached("r")
    attached.until_printed(r"^\[n0.0\] pid \d+ generation n0.0$")
    attached.until_said(TAKEN_OVER)
    (tmp_path / "enough").touch()
    assert attached.wait() == 0
    assert attached.err[0].startswith("holdfast: run r, coordinator at")
    assert attached.err[-1].startswith("holdfast: run r completed")
    assert launched.wait() == 0
    assert attached.out == launched.out


def test_an_interrupt_ends_the_view_and_not_the_run(start: Start, tmp_path: Path) -> None:
    launched = start("--run", "r", "--warm", "0", script=JOINS)
    launched.until_printed("generation n0.0$")
    attached = start.attached("r")
    attached.until_printed("generation n0.0$")
    attached.process.send_signal(signal.SIGINT)
    assert attached.wait() == 130
    assert attached.err[-1] == "holdfast: run r goes on; `holdfast attach r` shows it again"
    (tmp_path / "enough").touch()
    assert launched.wait() == 0


def test_ctrl_c_leaves_a_detachable_run(start: Start, tmp_path: Path) -> None:
    """The terminal sends SIGINT to the whole process group, as here."""
    start.prefix = ("setsid",)
    late = "    except queue.Empty:\n        if pathlib.Path('late').exists(): print('late', flush=True)\n"
    script = JOINS.replace("    except queue.Empty:\n", late)
    launched = start("--detachable", "--run", "r", "--warm", "0", script=script)
    launched.until_printed("generation n0.0$")
    start.endpoint("r")
    os.killpg(launched.process.pid, signal.SIGINT)
    assert launched.process.wait(WAIT_S) == 130
    launched.until_said("holdfast: run r goes on; `holdfast attach r` shows it, `holdfast stop r` ends it")
    attached = start.attached("r")
    attached.until_printed("generation n0.0$")
    assert all(map(is_alive, launched.pids()))
    (tmp_path / "late").touch()
    attached.until_printed("late")
    (tmp_path / "enough").touch()
    assert attached.wait() == 0
    assert launched.wait() == 130
    assert not [line for line in launched.out if "late" in line]  # its terminal has been left
    assert [event.outcome for event in start.events(RunEnded)] == ["completed"]


def test_ctrl_c_leaves_this_machine_in_a_detachable_run(start: Start, tmp_path: Path) -> None:
    start.prefix = ("setsid",)
    flags = ("--nnodes", "2", "--coordinator", f"127.0.0.1:{free_port()}", "--run", "r", "--warm", "0")
    first = start(*flags, "--node-rank", "0", script=JOINS, token=TOKEN)
    first.until_said("coordinator at")
    second = start("--detachable", *flags, "--node-rank", "1", script=JOINS, token=TOKEN)
    second.until_printed("generation n0.0 n1.0$")
    second.until_said("holdfast: 1 node of this machine for run r, coordinated at 127.0.0.1:")
    os.killpg(second.process.pid, signal.SIGINT)
    assert second.process.wait(WAIT_S) == 130
    assert all(map(is_alive, second.pids()))
    (tmp_path / "enough").touch()
    assert first.wait() == 0
    assert start.events(MemberLost) == []


def test_a_second_launcher_tells_the_end_and_where_the_record_is(start: Start, tmp_path: Path) -> None:
    flags = ("--nnodes", "2", "--coordinator", f"127.0.0.1:{free_port()}", "--run", "r", "--warm", "0")
    first = start(*flags, "--node-rank", "0", script=JOINS, token=TOKEN)
    first.until_said("coordinator at")
    elsewhere = Start(tmp_path / "elsewhere")
    elsewhere.directory.mkdir()
    start.launched.append(second := elsewhere(*flags, "--node-rank", "1", script=JOINS, token=TOKEN))
    second.until_printed("generation n0.0 n1.0$")
    assert start.verb("stop", "r").returncode == 0
    assert (first.wait(), second.wait()) == (143, 143)
    again = "started again with `--run r`, it goes on from its newest checkpoint, if it has one"
    report = "`holdfast report r` shows where its time went"
    assert first.err[-1] == f"holdfast: run r stopped; {again}; {report}"
    assert second.err[-1] == (
        f"holdfast: run r stopped; {again}; its record is on 127.0.0.1: there, {report}"
    )


def test_attaching_to_no_run_is_a_mistake(start: Start) -> None:
    for verb in ("attach", "stop"):
        done = start.verb(verb, "unknown")
        assert done.returncode == 2
        assert "No run 'unknown' is running" in done.stderr


# ---- a run on two machines, which have an arbiter ---------------------------------------------------------


def test_of_two_machines_the_other_takes_over_if_the_arbiter_says_so(
    tmp_path: Path, postgres_database: Callable[[], str]
) -> None:
    """Both launchers are on this one, as if each were on a machine of its own."""
    place, enough = f"127.0.0.1:{free_port()}", tmp_path / "enough"
    flags = ("--nnodes", "1:2", "--warm", "0", "--coordinator", place, "--run", "r", "--wait", "60")
    launched = []
    try:
        for rank, database in enumerate([postgres_database()] * 2):
            folder = tmp_path / str(rank)
            folder.mkdir()
            script = JOINS.replace('"enough"', repr(str(enough)))
            rest = ("--node-rank", str(rank), "--arbiter", database)
            launched.append(Start(folder)(*flags, *rest, script=script, token=TOKEN))
            launched[0].until_said("coordinator at")
        for one in launched:
            one.until_printed("generation n0.0 n1.0$")
        launched[0].until_said(OUTLIVES)
        for pid in descendants(launched[0].process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launched[1].until_printed("generation n1.0$")
        enough.touch()
        assert launched[1].wait() == 0
        assert any("coordinates the run now" in line for line in launched[1].err)
        assert len({*launched[1].pids()}) == 1  # the same process
    finally:
        for one in launched:
            for pid in descendants(one.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            one.close()


def test_an_invalid_arbiter_is_a_mistake(start: Start) -> None:
    launched = start("--arbiter", "redis://here", "--run", "r", script=JOINS)
    assert launched.wait() == 2
    assert launched.err[0] == "holdfast: The arbiter is not a PostgreSQL database."


def test_a_move_goes_on_while_another_coordinator_is_chosen(start: Start, tmp_path: Path) -> None:
    """With heirs, a successor has to be elected first."""
    flags = ("--nnodes", "2:3", "--warm", "0", "--coordinator", f"127.0.0.1:{free_port()}", "--run", "r")
    first = start(*flags, "--node-rank", "0", script=JOINS, token=TOKEN)
    first.until_said("coordinator at")
    others = [start(*flags, "--node-rank", rank, script=JOINS, token=TOKEN) for rank in "12"]
    for launched in (first, *others):
        launched.until_printed("generation n0.0 n1.0 n2.0$")
    first.until_said(OUTLIVES)
    pid = others[0].pids()[-1]
    os.kill(pid, signal.SIGSTOP)  # so that the drain takes until it goes on
    with ThreadPoolExecutor() as pool:
        drain = pool.submit(start.verb, "drain", "r", "n2")
        first.until_said("n2 is to be drained")
        kill_coordinator(start, "r")
        first.until_said(TAKEN_OVER)
        os.kill(pid, signal.SIGCONT)
        moved = drain.result()
    assert (moved.returncode, moved.stdout) == (0, "n2 no longer has members\n"), moved.stderr
    (tmp_path / "enough").touch()
    assert [launched.wait() for launched in (first, *others)] == [0, 0, 0]
