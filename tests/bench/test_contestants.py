import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from bench.contestants import (
    PEERS,
    Contestant,
    Launch,
    Processes,
    Task,
    importable,
    node_of,
    torch_version,
)

pytestmark = pytest.mark.slow

SLEEP = "import time; time.sleep(600)"
ORPHAN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}, sys.argv[1]])"


def sleepers(folder: Path) -> list[int]:
    """The living processes with this folder in their command line, the test's own apart."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(folder) in (entry / "cmdline").read_text(encoding="utf-8", errors="replace"):
                    found.append(int(entry.name))
            except OSError:
                continue  # gone meanwhile
    return found


def test_a_supervised_process_is_started_again_and_nothing_is_left(tmp_path: Path) -> None:
    launch = Launch(arguments=(sys.executable, "-c", SLEEP, str(tmp_path)), supervised=True)
    with Processes((launch,), tmp_path) as processes:
        until(lambda: len(sleepers(tmp_path)) == 1)
        (first,) = sleepers(tmp_path)
        os.kill(first, signal.SIGKILL)
        until(lambda: bool(set(sleepers(tmp_path)) - {first}))
        until(lambda: not processes.finished())  # it is known a moment after it is there
    assert sleepers(tmp_path) == []


def test_what_a_contestant_leaves_behind_is_ended(tmp_path: Path) -> None:
    launch = Launch(arguments=(sys.executable, "-c", ORPHAN, str(tmp_path)))
    with Processes((launch,), tmp_path) as processes:
        until(processes.finished)
        assert len(sleepers(tmp_path)) == 1
    until(lambda: sleepers(tmp_path) == [])


def test_last_words_are_kept(tmp_path: Path) -> None:
    launch = Launch(arguments=(sys.executable, "-c", "print('first', flush=True); raise SystemExit('last')"))
    with Processes((launch,), tmp_path) as processes:
        until(processes.finished)
        assert processes.last_words().splitlines() == ["first", "last"]


def test_a_node_is_an_agent_and_what_it_started() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as child:
        try:
            agent, *workers = node_of(child.pid)
            assert agent == os.getpid()
            assert child.pid in workers
        finally:
            child.kill()


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_starts_its_members_with_the_same_task(tmp_path: Path, peer: Contestant) -> None:
    launches = peer.launches(Task(python="python", folder=tmp_path, steps=7, members=4))
    told = [launch.arguments for launch in launches if str(tmp_path) in launch.arguments]
    assert len(told) in (1, 4, 5)
    for arguments in told:
        assert arguments[arguments.index("--steps") + 1] == "7"
        assert arguments[arguments.index("--members") + 1] == "4"
        assert Path(next(word for word in arguments if word.endswith(".py"))).exists()


def test_an_interpreter_is_asked_what_it_has() -> None:
    assert importable(sys.executable, "json")
    assert not importable(sys.executable, "no_such_module")
    assert torch_version(sys.executable)[0].isdigit()
