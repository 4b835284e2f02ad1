"""`holdfast run` as a process: its output, how it ends, and that it leaves nothing behind."""

import asyncio
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from launching import JOINS, TOKEN, Launched, Start, children, is_a
from quantity import sampled
from waiting import free_port, is_alive

from holdfast.record.events import ActionTaken, GenerationOpened, MemberLost, RunEndangered, RunEnded
from holdfast.record.spool import SHARED_MEMORY, journal_digest
from holdfast.run.agent import Assignment
from holdfast.run.endpoint import find_endpoint
from holdfast.run.launcher import AWAY_S
from holdfast.run.nodes import LineOutlet, NodeAgent
from holdfast.run.waits import LEASE_S_MIN
from holdfast.run.worker import GROUP_GRACE_S

pytestmark = pytest.mark.slow

ATTEMPTS_MAX = 10
STOP_S_MAX = 60.0
"""How long a signal may take to end a run of scripts that end when asked."""
GRACE = ("--shutdown-timeout", "300")
"""Far longer than any of them may take to end, even on a busy machine."""

# Members are unbuffered: print() writes a line in pieces, mixed with those of processes they have started.
SLEEPS = "import os, time; os.write(1, b'pid %d\\n' % os.getpid()); time.sleep(600)"
DEAF = "import signal; signal.signal(15, signal.SIG_IGN); " + SLEEPS


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    starts = Start(tmp_path)
    yield starts
    for launched in starts.launched:
        launched.close()


@pytest.fixture(name="free_port")
def give_free_port() -> int:
    return free_port()


def port_of(launched: Launched) -> int:
    launched.until_said("coordinator at")
    return int(next(line for line in launched.err if "coordinator at" in line).rpartition(":")[2])


def is_refused(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def complaint(launched: Launched) -> str:
    """The sentence of a refusal, after checking that it is one."""
    assert launched.wait() == 2
    assert launched.out == []
    sentence, *hints = launched.err
    assert sentence.startswith("holdfast: ")
    assert sentence.endswith(".")
    assert len(hints) == 1
    assert hints[0].startswith("  hint: ")
    return sentence


# ---- output ----------------------------------------------------------------------------------------------


def test_the_scripts_streams_are_its_own_and_ours_is_stderr(start: Start) -> None:
    script = "import sys; print('for stdout'); print('for stderr', file=sys.stderr)"
    launched = start("--nproc-per-node", "2", script=script)
    assert launched.wait() == 0
    assert sorted(launched.out) == ["[n0.0] for stdout", "[n0.1] for stdout"]
    assert {"[n0.0] for stderr", "[n0.1] for stderr"} <= {*launched.err}
    rest = [line for line in launched.err if not line.endswith("for stderr")]
    assert rest
    assert all(line.startswith("holdfast: ") for line in rest)


def test_a_script_that_raises_has_its_traceback_printed_once(start: Start) -> None:
    flags = ("--nproc-per-node", "2", "--nodes", "2", "--nnodes", "2", "--max-restarts", "0")
    launched = start(*flags, script="raise ValueError('the same on all four')")
    assert launched.wait() == 1
    assert launched.err.count("Traceback (most recent call last):") == 1
    assert launched.err.count("ValueError: the same on all four") == 1
    assert launched.out == []


# ---- the end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, 143, id="SIGTERM"),
        pytest.param(signal.SIGINT, 130, id="SIGINT", marks=pytest.mark.soak),
    ],
)
def test_a_signal_ends_everything(start: Start, number: signal.Signals, code: int) -> None:
    launched = start(
        "--nproc-per-node", "2", "--nodes", "2", "--nnodes", "2", "--run", "stopped", *GRACE, script=SLEEPS
    )
    launched.until_printed("pid", 4)
    agents, port = launched.agents(), port_of(launched)
    assert len(agents) == 2
    assert [*SHARED_MEMORY.glob(f"*{journal_digest(start.home / 'journal')}*")] != []
    assert (start.home / "runs" / "stopped" / "endpoint.json").stat().st_mode & 0o777 == 0o600
    begun_s = time.monotonic()
    launched.process.send_signal(number)
    assert launched.wait() == code
    assert time.monotonic() - begun_s < STOP_S_MAX
    assert not [pid for pid in (*agents, *launched.pids()) if is_alive(pid)]
    assert is_refused(port)
    assert start.left("stopped") == ["started.json"]
    assert [*SHARED_MEMORY.glob(f"*{journal_digest(start.home / 'journal')}*")] == []
    assert [event.outcome for event in start.events(RunEnded)] == ["stopped"]


def test_a_second_signal_ends_the_run_without_waiting(start: Start) -> None:
    launched = start("--nproc-per-node", "2", *GRACE, script=DEAF)
    launched.until_printed("pid", 2)
    launched.process.terminate()
    launched.until_said("stopping")
    begun_s = time.monotonic()
    launched.process.terminate()
    assert launched.wait() == 143
    assert time.monotonic() - begun_s < STOP_S_MAX
    assert not any(map(is_alive, launched.pids()))


def test_a_signal_that_reaches_the_coordinator_as_well_is_one_signal(start: Start, tmp_path: Path) -> None:
    """As when Slurm cancels a job: members still have their time to leave."""
    leaves = "signal.signal(15, lambda *_: (time.sleep(1), open('left', 'w'), os._exit(0)))"
    launched = start("--run", "r", *GRACE, script=f"import os, signal, time; {leaves}; {SLEEPS}")
    launched.until_printed("pid")
    both = (find_endpoint(start.home, "r").pid, launched.process.pid)
    for pid in both:
        os.kill(pid, signal.SIGTERM)
    assert launched.wait() == 143
    assert (tmp_path / "left").exists()


def test_a_stopped_script_that_does_not_join_is_promised_no_checkpoint(start: Start) -> None:
    launched = start("--run", "r", script=SLEEPS)
    launched.until_printed("pid")
    launched.process.send_signal(signal.SIGINT)
    assert launched.wait() == 128 + signal.SIGINT
    launched.until_said(
        "run r stopped; Holdfast saves no checkpoints of this script: started again, it goes on"
    )


@pytest.mark.parametrize("number", sampled([signal.SIGTERM, signal.SIGINT], [signal.SIGINT]))
def test_a_signal_before_the_coordinator_is_up_leaves_none_behind(
    start: Start, number: signal.Signals
) -> None:
    launched = start("--detachable", "--run", "r", script=SLEEPS)
    hubs: list[int] = []
    while not hubs and launched.process.poll() is None:
        hubs = [pid for pid in children(launched.process.pid) if is_a("hub", pid)]
    launched.process.send_signal(number)
    assert launched.wait() == 128 + number
    assert hubs
    assert not any(map(is_alive, hubs))
    assert start.left("r") == ["started.json"]


def test_a_killed_launcher_takes_everything_with_it(start: Start) -> None:
    launched = start("--nproc-per-node", "2", "--nodes", "2", "--nnodes", "2", "--run", "killed", script=DEAF)
    launched.until_printed("pid", 4)
    everything = [*launched.agents(), *launched.pids()]
    launched.process.kill()
    launched.wait()
    launched.until(lambda: not any(map(is_alive, everything)))
    # The file that was left behind neither names a running run nor blocks its name.
    struck = start.chaos("killed", "kill")
    assert struck.returncode == 2
    assert "No run 'killed' is running" in struck.stderr
    assert start("--run", "killed", script="print('again')").wait() == 0
    assert start.left("killed") == ["started.json"]


def test_a_killed_launcher_leaves_nothing_that_its_members_have_started(start: Start) -> None:
    code = """
import os, subprocess, time
plain = subprocess.Popen(["sleep", "1000"])
apart = subprocess.Popen(["bash", "-c", "sleep 1000 & echo pid $!; wait"], start_new_session=True)
os.write(1, b"pid %d\\n" % plain.pid)
os.write(1, b"pid %d\\n" % apart.pid)
"""
    launched = start("--nproc-per-node", "2", script=code + SLEEPS)
    launched.until_printed("pid", 8)
    everything = [*launched.agents(), *launched.pids()]
    assert all(map(is_alive, everything))
    os.kill(launched.agents()[0], signal.SIGSTOP)  # one that is stopped is woken
    launched.process.kill()
    begun_s = time.monotonic()
    launched.wait()
    launched.until(lambda: not any(map(is_alive, everything)))
    assert time.monotonic() - begun_s < STOP_S_MAX


@pytest.mark.soak  # children of children are below
def test_a_child_of_a_killed_node_does_not_outlive_the_run(start: Start) -> None:
    code = "import subprocess; print('pid', subprocess.Popen(['sleep', '600']).pid); " + SLEEPS
    launched = start(script=code)
    launched.until_printed("pid", 2)
    (agent,) = launched.agents()
    os.kill(agent, signal.SIGKILL)
    launched.until(lambda: not is_alive(launched.pids()[1]))
    assert is_alive(launched.pids()[0])
    launched.process.terminate()
    assert launched.wait() == 143
    assert not is_alive(launched.pids()[0])


def test_what_a_worker_leaves_behind_is_waited_for_only_as_long_as_it_is_there(start: Start) -> None:
    ends = "import os, time; print('at', time.monotonic())"
    leaves = """
import os, time
if os.fork() == 0:
    os.setsid() if os.environ["LOCAL_RANK"] == "1" else None
    time.sleep(0.2)
    os._exit(0)
"""

    def ended_after_s(script: str) -> float:
        launched = start("--nproc-per-node", "2", script=script)
        assert launched.wait() == 0
        return time.monotonic() - max(float(line.split()[-1]) for line in launched.out)

    # On a busy machine any end may take a while, but not every time if it only waits as long as it must.
    assert any(
        ended_after_s(leaves + ends) < ended_after_s(ends) + GROUP_GRACE_S for _ in range(ATTEMPTS_MAX)
    )


def test_children_of_children_of_a_killed_node_do_not_outlive_the_run(start: Start) -> None:
    code = "import subprocess; subprocess.run(['bash', '-c', 'sleep 600 & echo pid $!; wait'])"
    launched = start(script=code)
    launched.until_printed("pid")
    (agent,) = launched.agents()
    os.kill(agent, signal.SIGKILL)
    launched.until_printed("pid", 2)
    launched.process.terminate()
    assert launched.wait() == 143
    launched.until(lambda: not any(map(is_alive, launched.pids())))


def test_an_agent_that_is_just_being_started_hears_a_signal_as_well(tmp_path: Path) -> None:
    async def keep() -> int:
        assignment = Assignment(
            launcher=os.getpid(), host="127.0.0.1", port=1, token=TOKEN, node="n0", slots=1,
            command=("true",), checkpoints=str(tmp_path),
        )  # fmt: skip
        node = NodeAgent(assignment, LineOutlet(), lambda: asyncio.sleep(0, 0.0))
        node.finish()
        node.send_signal(signal.SIGTERM)
        return await node.keep()

    assert asyncio.run(keep()) == -signal.SIGTERM


def test_no_two_runs_of_one_name(start: Start) -> None:
    launched = start("--run", "only", script=SLEEPS)
    launched.until_printed("pid")
    assert "A run 'only' is already running" in complaint(start("--run", "only", script=SLEEPS))
    assert start.events(RunEnded) == []


# ---- restarts and chaos ----------------------------------------------------------------------------------


def test_a_plain_script_is_restarted_as_a_whole(start: Start, tmp_path: Path) -> None:
    script = f"""
import os, signal, time
from pathlib import Path
here = Path({str(tmp_path / "first-is-here")!r})
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt, os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if attempt == 0:
    if os.environ["RANK"] == "0":
        here.touch()
        time.sleep(600)
    while not here.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    launched = start("--nproc-per-node", "2", script=script)
    assert launched.wait() == 0
    assert sorted(line.partition(" ")[2] for line in launched.out) == [
        "attempt 0 0 of 2",
        "attempt 0 1 of 2",
        "attempt 1 0 of 2",
        "attempt 1 1 of 2",
    ]
    assert [event.action for event in start.events(ActionTaken)] == ["restart"]
    assert [event.outcome for event in start.events(RunEnded)] == ["failed", "completed"]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param("def broken(:\n    pass\n", "SyntaxError: invalid syntax", marks=pytest.mark.soak),
        ("import os\nimport no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_script_that_cannot_run_is_not_restarted(start: Start, script: str, error: str) -> None:
    launched = start("--nproc-per-node", "2", script=script)
    assert launched.wait() == 1
    assert start.events(ActionTaken) == []
    ending = next(line for line in launched.err if "the run fails" in line)
    assert ending.endswith(f"failed (exit 1): {error}; a restart would not help")
    assert launched.err.count(error) == 1  # and its place


def test_a_module_that_is_missing_later_may_be_there_the_next_time(start: Start) -> None:
    code = "def load():\n    import no_such_module\n\nload()\n"
    launched = start("--max-restarts", "1", script=code)
    assert launched.wait() == 1
    assert [event.action for event in start.events(ActionTaken)] == ["restart"]


def test_a_killed_member_of_a_protected_run_is_replaced(start: Start, tmp_path: Path) -> None:
    launched = start("--tls", "--nproc-per-node", "2", "--run", "protected", script=JOINS)
    launched.until_printed("generation n0.0 n0.1$", 2)
    struck = start.chaos("protected", "kill", "n0.1")
    assert struck.returncode == 0, struck.stderr
    assert "n0.1" in struck.stdout
    launched.until_printed(r"generation n0.0 \S+$", 4)
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    (lost,) = start.events(MemberLost)
    assert (lost.subject, lost.reason) == ("n0.1", "SIGKILL")


def test_a_script_that_joins_and_has_nothing_to_do_is_run_once(start: Start) -> None:
    """It hangs up before it ends, as `with join()` does; the run once took that for repeated losses."""
    script = JOINS.replace(
        "link.send(WorkerReady(member=member, setup=setup, took_s=0.01))",
        "print('nothing to do', flush=True); link.close(); sys.exit()",
    )
    launched = start("--warm", "0", script=script)
    assert launched.wait() == 0
    assert [line for line in launched.out if "nothing to do" in line] == ["[n0.0] nothing to do"]
    assert "holdfast: n0.0 left: its script ended" in launched.err


def test_the_traceback_of_a_survived_failure_is_printed_once(start: Start, tmp_path: Path) -> None:
    """Two members raise one after the other, in the same way; the run continues after both."""
    raises = """
        since += len(generation.members) == 2 and "n0.0" not in generation.members
        if member == "n0.0" and step == 10 or member == "n0.1" and since == 40: raise ValueError("boom")
"""
    script = JOINS.replace("step, ", "since, step, ", 1).replace("= 0, None", "= 0, 0, None")
    script = script.replace("        step += 1\n", f"        step += 1{raises}")
    launched = start("--nproc-per-node", "2", "--warm", "2", script=script)
    launched.until_said("n0.1 lost (exit 1): ValueError: boom")
    launched.until_printed("generation n0.2 n0.3|generation n0.3 n0.2")
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    told = [line for line in launched.err if line.startswith("[n0.")]
    assert [line for line in told if "ValueError: boom" in line] == ["[n0.0] ValueError: boom"]
    assert told[0] == "[n0.0] Traceback (most recent call last):"
    assert any("holdfast: completed with 2 survived errors: step" in line for line in launched.err)
    (ended,) = start.events(RunEnded)
    assert ended.survived_errors == 2


def test_a_run_whose_last_checkpoint_failed_does_not_exit_with_0(start: Start, tmp_path: Path) -> None:
    (tmp_path / "enough").touch()
    what = 'happened="failed", step=step, place="p", reason="the disk is full"'
    failed = f"link.send(Checkpointed(member=member, {what}))"
    script = JOINS.replace(
        "            link.send(Finished", f"            {failed}\n            link.send(Finished"
    )
    launched = start("--warm", "0", script=script)
    assert launched.wait() == 74
    assert any(
        "the last checkpoint failed, and this start saved none: the disk is full" in line
        for line in launched.err
    )
    (ended,) = start.events(RunEnded)
    assert (ended.outcome, ended.reason) == (
        "completed",
        "the last checkpoint failed, and this start saved none",
    )


def test_a_run_that_was_complete_before_says_that_nothing_was_trained(start: Start, tmp_path: Path) -> None:
    (tmp_path / "enough").touch()
    commits = (
        "        step += 1\n"
        "        link.send(Committed(member=member, generation=generation.number, step=step, loss=None))\n"
    )
    loads = "link.send(Checkpointed(member=member, happened='loaded', step=3, place='p'))\n                "
    script = JOINS.replace("is_finished = 0,", "is_finished = 3,").replace("steps_total=0", "steps_total=3")
    assert commits in script
    trained = start("--warm", "0", script=script)
    assert trained.wait() == 0
    assert not any("nothing was trained" in line for line in trained.err)
    script = script.replace(commits, "").replace("link.send(WorkerReady", f"{loads}link.send(WorkerReady")
    again = start("--warm", "0", script=script)
    assert again.wait() == 0, again.err
    assert any("completed: step 3" in line for line in again.err)
    assert any("nothing was trained: the checkpoint already had all steps" in line for line in again.err)


def test_a_full_home_is_told_of_and_the_run_goes_on(start: Start, tmp_path: Path) -> None:
    """No file of the coordinator may grow for a while, as on a full disk."""
    run = start("--run", "crowded", script=JOINS)
    run.until_said("generation 1")
    coordinator = find_endpoint(start.home, "crowded").pid
    resource.prlimit(coordinator, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    home = f"Holdfast's home {start.home}"
    run.until_said(f"{home} is full: the run continues")
    resource.prlimit(coordinator, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    run.until_said(f"{home} takes the record again; nothing was lost")
    (tmp_path / "enough").touch()
    assert run.wait() == 0
    assert [(one.what, one.reason, one.over) for one in start.events(RunEndangered)] == [
        ("record", f"{home} is full", False),
        ("record", "nothing was lost", True),
    ]
    report = start.verb("report", "crowded").stdout
    assert "! The run's record could not be written" in report
    assert "works again since" in report
    assert [event.outcome for event in start.events(RunEnded)] == ["completed"]


def test_a_member_is_replaced_on_request(start: Start, tmp_path: Path) -> None:
    launched = start("--nproc-per-node", "2", "--run", "asked", script=JOINS)
    launched.until_printed("generation n0.0 n0.1$", 2)
    wrong = start.verb("migrate", "asked", "n0.9")
    assert wrong.returncode == 2
    assert "The run 'asked' has no member or node 'n0.9'; members: n0.0, n0.1; nodes: n0." in wrong.stderr
    for words in (
        ("chaos", "asked", "kill", "n0.9"),
        ("chaos", "asked", "node", "n9"),
        ("drain", "asked", "n9"),
        ("restore", "asked", "n9"),
        ("drill", "live", "asked", "worker-killed", "--target", "n0.9"),
    ):
        unknown = start.verb(*words)
        assert (unknown.returncode, unknown.stdout) == (2, ""), unknown.stderr
        assert repr(words[-1]) in unknown.stderr
    for name, sentence in (
        ("n0.1", "--to is for nodes: the member n0.1 stays on n0."),
        ("n0", "n0 cannot take its own place."),
    ):
        mistaken = start.verb("migrate", "asked", name, "--to", "n0")
        assert mistaken.returncode == 2
        assert mistaken.stderr.startswith(f"holdfast: {sentence}\n  hint: ")
    done = start.verb("migrate", "asked", "n0.1")
    assert (done.returncode, done.stdout) == (0, "n0.2 has taken the place of n0.1\n"), done.stderr
    (pid,) = (int(line.split()[2]) for line in launched.out if line.startswith("[n0.1] pid"))
    launched.until(lambda: not is_alive(pid))
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    assert [(one.action, one.subject) for one in start.events(ActionTaken)] == [("migrate", "n0.1")]
    assert start.events(MemberLost) == []


def test_a_refused_move_says_what_to_do_instead(start: Start) -> None:
    launched = start("--run", "lonely", "--warm", "0", script=JOINS)
    launched.until_printed("generation n0.0$")
    words = (("migrate", "lonely", "n0.0"), ("migrate", "lonely", "n0"), ("drain", "lonely", "n0"))
    for refused in [start.verb(*one) for one in words]:
        assert refused.returncode == 1
        sentence, hint = refused.stderr.splitlines()
        assert sentence.startswith("holdfast: ")
        assert hint.startswith("  hint: ")


def test_what_stands_before_join_is_shown_once_for_each_first_member(start: Start, tmp_path: Path) -> None:
    script = "import os, sys; print('before join', os.environ['HOLDFAST_MEMBER'], flush=True)\n" + JOINS
    script = script.replace("link.close()", "print('released', flush=True)\n                link.close()")
    flags = ("--nproc-per-node", "2", "--warm", "1", "--run", "muted", "--log-dir", "logs")
    launched = start(*flags, script=script)
    launched.until_printed("generation n0.0 n0.1$", 2)

    def logged() -> set[str]:
        logs = (tmp_path / "logs" / "muted").glob("*/stdout.log")
        return {log.parent.name for log in logs if "before join" in log.read_text(encoding="utf-8")}

    launched.until(lambda: "n0.2" in logged())
    assert start.chaos("muted", "kill", "n0.1").returncode == 0
    launched.until_printed(r"\[n0\.0\] pid \d+ generation n0.0 n0.2$")
    launched.until(lambda: {"n0.0", "n0.1", "n0.2", "n0.2+1"} <= logged())
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    shown = sorted(line for line in launched.out if "before join" in line)
    assert shown == ["[n0.0] before join n0.0", "[n0.1] before join n0.1"]
    assert "[n0.2] released" in launched.out


def test_a_warm_process_that_fails_before_join_says_why(start: Start, tmp_path: Path) -> None:
    script = "import os\nif os.environ['HOLDFAST_MEMBER'] == 'n0.1': raise OSError('no data here')\n" + JOINS
    launched = start("--run", "one", script=script)
    launched.until_said("n0.1 lost (exit 1): OSError: no data here")
    (tmp_path / "enough").touch()
    assert launched.wait() == 0


def test_a_struck_node_comes_back_under_its_name(start: Start, tmp_path: Path) -> None:
    flags = ("--nproc-per-node", "1", "--nodes", "2", "--warm", "0", "--run", "struck")
    launched = start(*flags, script=JOINS)
    launched.until_printed("generation n0.0 n1.0$", 2)
    away_s = AWAY_S + 1
    assert start.chaos("struck", "node", "n1", "--for", str(away_s)).returncode == 0
    launched.until_printed("generation n0.0$")
    begun_s = time.monotonic()
    # The first process wanted there may have been requested from the agent that was just dying.
    launched.until_printed(r"generation n0.0 n1.0\+[12]$", 2)
    assert time.monotonic() - begun_s > (AWAY_S + away_s) / 2
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    assert len(start.events(GenerationOpened)[-1].members) == 2


@pytest.mark.soak
def test_a_stopped_member_is_replaced(start: Start, tmp_path: Path) -> None:
    launched = start("--nproc-per-node", "2", "--run", "stopped", script=JOINS)
    launched.until_printed("generation n0.0 n0.1$", 2)
    (line,) = launched.until_printed(r"\[n0.1\] pid")[:1]
    os.kill(int(line.split()[2]), signal.SIGSTOP)
    launched.until_said("n0.1 is stopped (SIGSTOP); it is replaced after 5 s unless it continues")
    launched.until_printed(r"generation n0.0 n0.[23]$", 2)
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    assert "holdfast: n0.1 lost (stopped by SIGSTOP)" in launched.err
    assert [event.subject for event in start.events(MemberLost)] == ["n0.1"]


def test_the_stopped_agent_of_the_only_node_is_killed_and_replaced(start: Start, tmp_path: Path) -> None:
    launched = start("--warm", "0", script=JOINS)
    launched.until_printed("generation n0.0$")
    (agent,) = launched.agents()
    os.kill(agent, signal.SIGSTOP)
    launched.until_said("the agent of n0 was stopped for 5 s: it is killed and replaced")
    launched.until_printed(r"generation n0.0\+1$")
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    assert not is_alive(agent)


@pytest.mark.soak
def test_members_that_are_all_stopped_and_continue_are_not_replaced(start: Start, tmp_path: Path) -> None:
    launched = start("--nproc-per-node", "2", script=JOINS)
    launched.until_printed("generation n0.0 n0.1$", 2)
    pids = launched.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    launched.until_said("all 2 members are stopped: waiting for at most 600 s")
    time.sleep(LEASE_S_MIN)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    assert not start.events(MemberLost)
    assert all("generation n0.0 n0.1" in line for line in launched.out if "generation" in line)


def test_a_storm_strikes(start: Start, tmp_path: Path) -> None:
    launched = start("--nproc-per-node", "2", "--chaos", "120", "--seed", "1", script=JOINS)
    launched.until_said("chaos: ")
    (tmp_path / "enough").touch()
    launched.wait()
    assert start.events(RunEnded)[-1].outcome == "completed"


# ---- several launchers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tls", [pytest.param((), id="plain", marks=pytest.mark.soak), pytest.param(("--tls",), id="tls")]
)
def test_two_launchers_make_one_run(start: Start, free_port: int, tls: tuple[str, ...]) -> None:
    script = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    flags = (*tls, "--nnodes", "2", "--nproc-per-node", "2", "--coordinator", f"127.0.0.1:{free_port}")
    both = [start(*flags, script=script, token=TOKEN) for _ in range(2)]
    assert [launched.wait() for launched in both] == [0, 0]
    ranks = sorted(line.partition(" ")[2] for launched in both for line in launched.out)
    assert ranks == [f"rank {rank} of 4" for rank in range(4)]
    assert [len(launched.out) for launched in both] == [2, 2]


def test_a_second_node_is_taken_in_while_the_first_goes_on(
    start: Start, free_port: int, tmp_path: Path
) -> None:
    flags = ("--nnodes", "1:2", "--warm", "0", "--coordinator", f"127.0.0.1:{free_port}")
    first = start(*flags, script=JOINS, token=TOKEN)
    first.until_printed("generation n0.0$")
    second = start(*flags, script=JOINS, token=TOKEN)
    first.until_printed(r"generation n0.0 \S+$")
    (tmp_path / "enough").touch()
    assert (first.wait(), second.wait()) == (0, 0)


def test_a_launcher_that_is_stopped_takes_only_its_own_nodes_out(
    start: Start, free_port: int, tmp_path: Path
) -> None:
    flags = ("--nnodes", "1:2", "--warm", "0", "--coordinator", f"127.0.0.1:{free_port}")
    first = start(*flags, script=JOINS, token=TOKEN)
    first.until_printed("generation n0.0$")
    second = start(*flags, "--node-rank", "1", script=JOINS, token=TOKEN)
    first.until_printed("generation n0.0 n1.0$")
    second.process.terminate()
    assert second.wait() == 143
    assert not any(map(is_alive, second.pids()))
    first.until_printed("generation n0.0$", 2)
    (tmp_path / "enough").touch()
    assert first.wait() == 0


def test_nodes_end_with_their_coordinator(start: Start, free_port: int) -> None:
    flags = ("--nnodes", "2", "--coordinator", f"127.0.0.1:{free_port}")
    first = start(*flags, script=SLEEPS, token=TOKEN)
    first.until_said("coordinator at")
    second = start(*flags, script=SLEEPS, token=TOKEN)
    second.until_printed("pid")
    first.process.kill()
    assert second.wait() == 1
    assert f"holdfast: the coordinator at 127.0.0.1:{free_port} is gone" in second.err
    assert not any(map(is_alive, second.pids()))


def test_a_node_with_tls_joins_no_coordinator_without(start: Start, free_port: int) -> None:
    flags = ("--coordinator", f"127.0.0.1:{free_port}")
    start(*flags, script=SLEEPS, token=TOKEN).until_said("coordinator at")
    sentence = complaint(start(*flags, "--tls", script=SLEEPS, token=TOKEN))
    assert sentence.endswith("was started without --tls, but this node with --tls.")


def test_a_coordinator_with_another_token_refuses_all_nodes(start: Start, free_port: int) -> None:
    flags = ("--coordinator", f"127.0.0.1:{free_port}")
    first = start(*flags, script=SLEEPS, token=TOKEN)
    first.until_said("coordinator at")
    assert "does not have this run's token" in complaint(
        start(*flags, script=SLEEPS, token="some other token")
    )
    assert "does not have this run's token" in complaint(start(*flags, script=SLEEPS))


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(b"", id="silent"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="talking"),
    ],
)
def test_a_port_that_something_else_listens_on(start: Start, says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                client, _address = server.accept()
                with client:
                    client.sendall(says)
                    client.recv(1)  # until the other side has had enough

        answering = threading.Thread(target=answer)
        answering.start()
        port = server.getsockname()[1]
        sentence = complaint(start("--coordinator", f"127.0.0.1:{port}", script=SLEEPS))
        reason = (
            "is not a coordinator of Holdfast"
            if says
            else "accepted the connection, but said nothing within 5 s"
        )
        assert sentence == f"holdfast: The process that listens at 127.0.0.1:{port} {reason}."
        answering.join()


def test_a_coordinator_elsewhere_that_does_not_come(start: Start) -> None:
    # An address of a documentation network, which no machine has.
    launched = start("--coordinator", "192.0.2.7:29400", "--wait", "0", script=SLEEPS, token=TOKEN)
    assert "The coordinator at 192.0.2.7:29400 cannot be reached" in complaint(launched)


@pytest.mark.parametrize(
    "flags",
    [("--coordinator", "192.0.2.7:29400"), ("--nnodes", "2", "--coordinator", "127.0.0.1:29400")],
    ids=["another machine", "another launcher"],
)
def test_nodes_that_have_to_know_each_other_need_a_token(start: Start, flags: tuple[str, ...]) -> None:
    assert "need a token" in complaint(start(*flags, script=SLEEPS))
    assert "HOLDFAST_TOKEN" in start.launched[-1].err[1]


def test_a_token_that_is_too_short(start: Start) -> None:
    assert "HOLDFAST_TOKEN has 5 characters; a token has at least 16." in complaint(
        start(script=SLEEPS, token="short")
    )
