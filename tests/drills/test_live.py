"""`holdfast drill live` on real runs: faults are made, end by themselves, and are judged by the record."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from launching import JOINS, Start
from networks import NetworkedRun, network
from waiting import WAIT_S, is_alive, until

from holdfast.drills.live.keeping import (
    Continue,
    DrillNote,
    KnownProcess,
    Remove,
    abort,
    note_path,
    process,
    read_note,
    write_note,
)
from holdfast.drills.live.scene import seen
from holdfast.record.journal import events_of
from holdfast.run.endpoint import find_endpoint
from holdfast.run.whereabouts import is_stopped

pytestmark = pytest.mark.slow

RUN = "drilled"
SCRIPT = Path(__file__).parents[2] / "bench" / "workers" / "drilled.py"
STEPS = 1_500
END_S = 900.0
"""Until a run of so many steps is over, on a busy machine."""
KEYS = {
    *("scenario", "recovered", "bits_equal", "detect_s", "cause_right", "action_right", "cost", "forecast"),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """A run of two nodes with a member each, which steps until the module is through."""
    starts = Start(tmp_path_factory.mktemp("live"))
    launched = starts("--nodes", "2", "--nproc-per-node", "1", "--run", RUN, script=JOINS)
    launched.until_printed("generation n0.0 n1.0$", 2)
    yield starts
    (starts.directory / "enough").touch()
    for one in starts.launched:
        one.close()


def drill(start: Start, *words: str, code: int = 0) -> Any:
    done = start.verb("drill", "live", RUN, *words, "--json")
    assert done.returncode == code, done.stderr
    return msgspec.json.decode(done.stdout) if done.stdout else done.stderr


def test_processes_of_a_run_of_the_same_name_are_not_touched(start: Start) -> None:
    endpoint, recorded = start.endpoint(RUN), events_of(start.home)
    ours = seen(RUN, endpoint, recorded)
    assert all(member.pid and member.agent for member in ours.members)
    another = seen(RUN, msgspec.structs.replace(endpoint, token="another's"), recorded)
    assert not any(member.pid or member.agent for member in another.members)


@pytest.mark.parametrize(
    "scenario",
    [
        "worker-killed",
        "coordinator-killed",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("node-lost", "two-at-once", "bad-node")),
    ],
)
def test_a_run_gets_through_and_the_record_says_so(start: Start, scenario: str, tmp_path: Path) -> None:
    start.endpoint(RUN)  # until it has a successor
    page = tmp_path / "page.html"
    done = start.verb("drill", "live", RUN, scenario, "--json", "--html", str(page))
    found = msgspec.json.decode(done.stdout)
    assert done.returncode == (found["score"] != found["judged"]), done.stderr
    assert (" are struck;" in done.stderr) == (scenario == "two-at-once")
    assert found.keys() >= KEYS
    assert (found["recovered"], found["cause_right"], found["action_right"]) == (True, True, True)
    assert found["bits_equal"] is None
    assert found["detect_s"] < found["recover_s"]
    assert found["judged"] == 5  # whether it cost what was forecast depends on how busy the machine is
    assert f"{scenario} in {RUN}" in page.read_text(encoding="utf-8")
    told = start.verb("events", RUN, "--kind", "action.taken").stdout
    assert scenario in told


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("slow-link",), "shares its network with this whole machine"),
        (("worker-kill",), "Did you mean worker-killed?"),
        (("worker-killed", "--reference", "abc"), "is not a digest"),
    ],
)
def test_what_cannot_be_is_one_sentence(start: Start, words: tuple[str, ...], why: str) -> None:
    if words[0] == "slow-link" and os.geteuid():
        why = "needs root"
    assert why in drill(start, *words, code=2)


def test_an_agent_goes_on_when_the_drill_is_aborted_though_the_drill_itself_was_killed(start: Start) -> None:
    command = [sys.executable, "-m", "holdfast", "drill", "live", RUN, "agent-frozen"]
    told = start.directory / "told"
    with (
        told.open("wb") as stderr,
        subprocess.Popen(
            [*command, "--target", "n1", "--for", "200s"],
            env={**os.environ, "HOLDFAST_HOME": str(start.home)},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        ) as playing,
    ):

        def is_struck() -> bool:
            assert playing.poll() is None, told.read_text()
            return "is struck" in told.read_text()

        until(is_struck, told.read_text)
        note = read_note(note_path(start.home, RUN))
        playing.kill()
    assert note is not None
    (frozen,) = (one.process.pid for one in note.put_back if isinstance(one, Continue))
    assert drill_again_is_refused(start)
    done = start.verb("drill", "live", RUN, "--abort")
    assert "all changes are undone" in done.stdout
    assert not is_alive(frozen) or not is_stopped(frozen)
    assert note.keeper is not None
    until(lambda: note.keeper is not None and not is_alive(note.keeper.pid))
    assert "No drill" in start.verb("drill", "live", RUN, "--abort").stderr


@contextlib.contextmanager
def half_speed(start: Start, **environment: str) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
    """A drill that lasts, and the file with what it says."""
    told = start.directory / "told"
    command = [sys.executable, "-m", "holdfast", "drill", "live", RUN, "half-speed", "--for", "200s"]
    with (
        told.open("wb") as said,
        subprocess.Popen(
            command,
            env={**os.environ, "HOLDFAST_HOME": str(start.home), **environment},
            stdout=said,
            stderr=said,
        ) as playing,
    ):
        yield playing, told


def test_a_drill_that_is_aborted_ends_with_a_sentence_and_no_verdict(start: Start) -> None:
    with half_speed(start) as (playing, told):
        until(lambda: "is struck" in told.read_text(), told.read_text)
        assert "all changes are undone" in start.verb("drill", "live", RUN, "--abort").stdout
        assert playing.wait(WAIT_S) == 3, told.read_text()
    assert re.search(r"half-speed of n\S+ was aborted after \d+ s; it is not judged\.", told.read_text())
    assert "verdict" not in told.read_text()


LATE_KEEPER = """
import sys, time
from pathlib import Path
while "holdfast.drills.live.keeper" in sys.orig_argv and Path(sys.orig_argv[-1]).exists():
    time.sleep(0.01)
"""


def test_a_drill_that_is_aborted_before_its_keeper_is_there_says_so(start: Start, tmp_path: Path) -> None:
    """As happens on a busy machine: a keeper that is started after the abort finds no note."""
    (tmp_path / "sitecustomize.py").write_text(LATE_KEEPER, encoding="utf-8")
    with half_speed(start, PYTHONPATH=str(tmp_path)) as (playing, told):
        until(lambda: read_note(note_path(start.home, RUN)), told.read_text)
        assert "all changes are undone" in start.verb("drill", "live", RUN, "--abort").stdout
        assert playing.wait(WAIT_S) == 3, told.read_text()
    assert re.search(r"half-speed of n\S+ was aborted before it struck; it is not judged\.", told.read_text())
    assert "is struck" not in told.read_text()


def test_chaos_does_not_take_a_member_for_its_node(start: Start) -> None:
    name = seen(RUN, start.endpoint(RUN), events_of(start.home)).members[0].name
    done = start.verb("chaos", RUN, "node", name)
    assert done.returncode == 2
    node = name.partition(".")[0]
    assert f"Nothing was struck: {name} is a member; its node is {node}.\n  hint: " in done.stderr


def drill_again_is_refused(start: Start) -> bool:
    return "is under way" in str(drill(start, "worker-killed", code=2))


# ---- the keeper ------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as sleeping:
        yield sleeping
        sleeping.kill()


def note_of(sleeper: "subprocess.Popen[bytes]", file: Path, lasts_s: float) -> DrillNote:
    target = process(sleeper.pid)
    return DrillNote(
        id="one",
        run=RUN,
        scenario="half-speed",
        target="n0.0",
        due_ns=time.time_ns() + round(lasts_s * 1e9),
        put_back=(Continue(process=target), Remove(path=str(file))),
        slowed=target,
    )


KEPT = """
import os, signal, sys, time
from pathlib import Path
import msgspec
from holdfast.drills.live.keeping import kept, read_note
path = Path(sys.argv[1])
kept(path, msgspec.structs.replace(read_note(path), due_ns=time.time_ns() + 15 * 10**9))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_fault_ends_by_itself_after_whoever_made_it_was_killed(
    sleeper: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    file, path = tmp_path / "fills", note_path(tmp_path, RUN)
    file.write_text("the disk", encoding="ascii")
    write_note(path, note_of(sleeper, file, 0.0))
    done = subprocess.run([sys.executable, "-c", KEPT, str(path)], check=False, timeout=WAIT_S)
    assert done.returncode == -signal.SIGKILL
    until(lambda: is_stopped(sleeper.pid))
    until(lambda: not is_stopped(sleeper.pid))
    until(lambda: not path.exists())
    assert not file.exists()
    assert not is_stopped(sleeper.pid)


def test_what_is_put_back_is_not_another_process_of_the_same_number(
    sleeper: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)
    until(lambda: is_stopped(sleeper.pid))
    other = KnownProcess(pid=sleeper.pid, started=process(sleeper.pid).started + 1)
    note = msgspec.structs.replace(
        note_of(sleeper, tmp_path / "none", 60.0), put_back=(Continue(process=other),), slowed=None
    )
    write_note(note_path(tmp_path, RUN), note)
    assert abort(tmp_path, RUN) == note
    assert is_stopped(sleeper.pid)
    assert abort(tmp_path, RUN) is None


# ---- what takes minutes, or root -------------------------------------------------------------------------


def reference(folder: Path) -> str:
    """What an undisturbed run ends with: by one member alone."""
    alone = folder / "alone"
    alone.mkdir()
    told = ("--folder", str(alone), "--steps", str(STEPS), "--lane-s", "0")
    environment = {**os.environ, "HOLDFAST_HOME": str(alone / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), *told]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=WAIT_S)
    (digest,) = (path.read_text(encoding="ascii") for path in alone.glob("*.digest"))
    return digest


class Training:
    """A run of real steps on this machine."""

    def __init__(self, folder: Path, *flags: str, steps: int = STEPS, nodes: int = 2, slots: int = 2) -> None:
        self.start = Start(folder)
        script = SCRIPT.read_text(encoding="utf-8")
        (folder / "stuck.py").write_text(
            SCRIPT.with_name("stuck.py").read_text(encoding="utf-8"), encoding="utf-8"
        )
        self.told = ("--folder", str(folder), "--steps", str(steps))
        (folder / "script.py").write_text(script, encoding="utf-8")
        self.members = nodes * slots
        shape = ("--nodes", str(nodes), "--nproc-per-node", str(slots))
        self.launched = self.start._started(
            {**os.environ, "HOLDFAST_HOME": str(self.start.home)},
            *("run", "--run", RUN, *shape, *flags, "script.py", *self.told),
        )

    def until_steps(self) -> None:
        self.launched.until_said(f"generation 1: {self.members} members")
        until(lambda: "checkpoint.saved" in self.start.verb("events", RUN).stdout, wait_s=WAIT_S)

    def drill(self, *words: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "drill", "live", RUN, *words, "--json"],
            env={**os.environ, "HOLDFAST_HOME": str(self.start.home)},
            capture_output=True,
            text=True,
            timeout=END_S,
            check=False,
        )
        assert done.returncode < 2, done.stderr  # what it cost depends on how busy the machine is
        return msgspec.json.decode(done.stdout)

    def close(self) -> None:
        self.launched.close()


@pytest.mark.soak
def test_half_the_speed_moves_lanes_and_the_bits_are_the_same(tmp_path: Path) -> None:
    digest = reference(tmp_path)
    training = Training(tmp_path, "--checkpoint-every", "20")
    try:
        training.until_steps()
        found = training.drill("half-speed", "--for", "15s", "--reference", digest)
        assert training.launched.wait() == 0
    finally:
        training.close()
    assert (found["bits_equal"], found["recovered"], found["cause_right"]) == (True, True, True)
    assert any(action.startswith("rebalance") for action in found["actions"])


@pytest.mark.soak
def test_a_node_that_is_lost_once_and_then_again_and_again_leaves_no_trace_in_the_bits(
    tmp_path: Path,
) -> None:
    digest = reference(tmp_path)
    training = Training(tmp_path, "--checkpoint-every", "20", nodes=3, slots=1)
    try:
        training.until_steps()
        once = training.drill("node-lost", "--target", "n2")
        often = training.drill("bad-node", "--target", "n1", "--reference", digest)
        assert training.launched.wait() == 0
    finally:
        training.close()
    for found in (once, often):
        assert (found["recovered"], found["cause_right"], found["action_right"]) == (True, True, True)
        assert found["detect_s"] < found["recover_s"]
    assert once["causes"] == ["n2: node lost"]
    assert often["causes"] == ["n1: node lost"]
    assert [row["what"] for row in often["timeline"]].count("again: n1") == 2
    assert often["bits_equal"]


@pytest.mark.soak
@pytest.mark.root
def test_a_full_disk_costs_a_checkpoint_and_no_step(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True, timeout=WAIT_S)
    try:
        training = Training(
            tmp_path, "--checkpoint-every", "20", "--checkpoints", str(disk / "saved"), steps=3_000
        )
        try:
            training.until_steps()
            found = training.drill("full-disk", "--for", "10s")
        finally:
            training.close()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True, timeout=WAIT_S)
    assert (found["recovered"], found["cause_right"], found["action_right"]) == (True, True, True)


@pytest.mark.soak
@pytest.mark.root
def test_slow_storage_holds_nobody_up(tmp_path: Path) -> None:
    disk, image = tmp_path / "disk", tmp_path / "image"
    disk.mkdir()
    image.write_bytes(bytes(64 << 20))
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, timeout=WAIT_S)
    subprocess.run(["mount", "-o", "loop", image, disk], check=True, timeout=WAIT_S)
    try:
        training = Training(
            tmp_path, "--checkpoint-every", "20", "--checkpoints", str(disk / "saved"), steps=3_000
        )
        try:
            training.until_steps()
            found = training.drill("slow-storage", "--for", "10s")
        finally:
            training.close()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True, timeout=WAIT_S)
    assert (found["recovered"], found["action_right"]) == (True, True)
    assert not [*Path("/sys/fs/cgroup/blkio").glob("holdfast-drill-*")]


@pytest.mark.soak
@pytest.mark.root
def test_a_link_is_shaped_and_put_back(tmp_path: Path) -> None:
    with network(2) as machines:
        networked = NetworkedRun(tmp_path, machines)
        networked.start()
        try:
            networked.until_generation("n0.0", "n1.0")
            home = tmp_path / "0" / "home"
            until(lambda: find_endpoint(home, "r"))
            command = [
                *machines[0].prefix,
                sys.executable,
                "-m",
                "holdfast",
                "drill",
                "live",
                "r",
                "slow-link",
            ]
            with subprocess.Popen(
                [*command, "--target", "n1", "--for", "10s", "--json"],
                env={**os.environ, "HOLDFAST_HOME": str(home)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ) as playing:
                until(lambda: "tbf" in queues(machines[1].prefix) or playing.poll() is not None)
                out, err = playing.communicate(timeout=WAIT_S)
            assert playing.returncode == 0, err
        finally:
            networked.close()
        assert "tbf" not in queues(machines[1].prefix)
    found = msgspec.json.decode(out)
    assert (found["recovered"], found["cause_right"], found["action_right"]) == (True, None, True)


def queues(prefix: tuple[str, ...]) -> str:
    done = subprocess.run([*prefix, "tc", "qdisc", "show"], check=True, capture_output=True, timeout=WAIT_S)
    return re.sub(r"\s+", " ", done.stdout.decode())


# ---- at random -------------------------------------------------------------------------------------------


def test_the_monkey_says_what_it_would_do_and_stops_when_told(start: Start) -> None:
    words = ("drill", "monkey", RUN, "--seed", "5", "--weekends")
    told = start.verb(*words, "--list", "--json")
    assert told.returncode == 0, told.stderr
    due = msgspec.json.decode(told.stdout)
    assert len(due) == 20
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        env={**os.environ, "HOLDFAST_HOME": str(start.home)},
        stderr=subprocess.PIPE,
        text=True,
    ) as monkey:
        assert monkey.stderr is not None
        assert "Seed 5" in monkey.stderr.readline()
        until(lambda: is_handling(monkey.pid, signal.SIGTERM))
        monkey.terminate()
        assert "Stopped" in monkey.stderr.read()
    assert monkey.returncode == 0


def is_handling(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (number - 1) & 1)
