"""The contestants of `holdfast bench recovery`: the processes that each one starts, and how they are ended.

All train the same model with the same number of members and threads. Each peer has the configuration with
which it recovered fastest and still recovered every time: its script says which and why.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

NODES = 2
UNBOUNDED_STEPS = 1_000_000
"""Peers are ended by the harness, not by their last step."""
END_GRACE_S = 5.0
KILL_S_MAX = 30.0
OUTPUT = "output"
"""The file in a contestant's folder with its output."""
LAST_WORDS_LINES = 20
POLL_INTERVAL_S = 0.05
RESTARTS_MAX = 5
"""Of torchrun's workers, in one run."""
SCRIPTS = Path(__file__).parent / "workers"
"""A training script for each contestant, run as a file, so that a peer's restart does not import Holdfast."""
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
    "RUST_LOG": "error",
}


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A process to start. supervised: start it again at once whenever it dies. spared: never kill it."""

    arguments: tuple[str, ...]
    environment: dict[str, str] = {}
    supervised: bool = False
    spared: bool = False


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The task of every contestant: its interpreter, folder, number of steps and members."""

    python: str
    folder: Path
    steps: int = UNBOUNDED_STEPS
    members: int


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """A system that takes part.

    needs: the module that it requires. launches: the processes of a task. spares: how many processes commit
    each step beside the members while none is killed.
    """

    name: str
    needs: str
    launches: Callable[[Task], tuple[Launch, ...]]
    spares: int = 0


def _script(name: str, task: Task, *, spares: int = 0) -> tuple[str, ...]:
    told = {"--steps": task.steps, "--members": task.members, "--spares": spares, "--folder": task.folder}
    return script_words(name, told)


def script_words(name: str, told: Mapping[str, object]) -> tuple[str, ...]:
    """One of our scripts, and its flags with their values."""
    return (str(SCRIPTS / name), *(str(word) for pair in told.items() for word in pair))


def holdfast_run(home: str, options: Iterable[str], script: Iterable[str], limit_s: float) -> str:
    """Run to the end and return the output; raises RuntimeError if the run failed, or took longer."""
    environment = {"HOLDFAST_HOME": home, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        (sys.executable, "-m", "holdfast", "run", *options, *script),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output = process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            process.terminate()
            output = process.communicate(timeout=4 * END_GRACE_S)[0]
    if process.returncode != 0:
        raise RuntimeError(f"holdfast run ended with {process.returncode}:\n{output}")
    return output


def torchrun(
    task: Task, *, script: str = "torchrun_ddp.py", more: tuple[str, ...] = ()
) -> tuple[Launch, ...]:
    """more: further arguments of the script.

    Without the variable the workers of a restart find stale addresses in its store, and gloo fails.
    """
    elastic = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
    members = ("--nproc-per-node", str(task.members))
    limits = ("--max-restarts", str(RESTARTS_MAX), "--monitor-interval", "0.1")
    return (
        Launch(
            arguments=(task.python, *elastic, *members, *limits, *_script(script, task), *more),
            environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        ),
    )


def nvrx(task: Task) -> tuple[Launch, ...]:
    """One reserve rank. Rank 0 holds the store, without which no rank recovers: it is never killed."""
    ranks = task.members + 1
    ports = _free_ports(2)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0], "BENCH_STORE_PORT": ports[1]}
    return tuple(
        Launch(
            arguments=(task.python, *_script("nvrx_inprocess.py", task, spares=1)),
            environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)},
            spared=rank == 0,
        )
        for rank in range(ranks)
    )


def torchft(task: Task, *, spares: int = 0) -> tuple[Launch, ...]:
    """A lighthouse, and a replica group of one process for each member."""
    (port,) = _free_ports(1)
    lighthouse = (
        *(str(Path(task.python).with_name("torchft_lighthouse")), "--bind", f"127.0.0.1:{port}"),
        *("--min_replicas", str(task.members if spares else 1), "--quorum_tick_ms", "10"),
        *("--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "500"),
    )
    groups = tuple(
        Launch(
            arguments=(task.python, *_script("torchft_ddp.py", task, spares=spares)),
            environment={"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "REPLICA_GROUP_ID": str(group)},
            supervised=True,
            spared=group >= task.members,
        )
        for group in range(task.members + spares)
    )
    return (Launch(arguments=lighthouse), *groups)


def torchft_spare(task: Task) -> tuple[Launch, ...]:
    return torchft(task, spares=1)


def protected(task: Task) -> tuple[Launch, ...]:
    """Two nodes, so that one can be lost; a warm process on each."""
    run = ("run", "--nodes", str(NODES), "--nproc-per-node", str(task.members // NODES), "--warm", "1")
    return (
        Launch(
            arguments=(task.python, "-m", "holdfast", *run, *_script("protected.py", task)),
            environment={"HOLDFAST_HOME": str(task.folder / "home")},
        ),
    )


HOLDFAST = Contestant(name="holdfast", needs="holdfast.train", launches=protected)
PEERS = (
    Contestant(name="torchrun", needs="torch.distributed.run", launches=torchrun),
    Contestant(name="nvrx", needs="nvidia_resiliency_ext.inprocess", launches=nvrx),
    Contestant(name="torchft", needs="torchft", launches=torchft),
    Contestant(name="torchft_spare", needs="torchft", launches=torchft_spare, spares=1),
)


def _free_ports(count: int) -> list[str]:
    """Free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Processes:
    """A contestant's processes, from their start until none of them is left."""

    def __init__(self, launches: tuple[Launch, ...], folder: Path) -> None:
        self._folder = folder
        self._starting = threading.Lock()
        self._ending = False
        self._log = (folder / OUTPUT).open("wb")
        self._started: list[subprocess.Popen[bytes]] = []
        self._supervisors = []
        self._killed: set[int] = set()
        self.spared: set[int] = set()
        for launch in launches:
            process = self._start(launch)
            if launch.spared:
                self.spared.add(process.pid)
            if launch.supervised:
                supervisor = threading.Thread(target=self._supervise, args=(launch, process))
                supervisor.start()
                self._supervisors.append(supervisor)

    def _start(self, launch: Launch) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, **_ENVIRONMENT, **launch.environment}
        process = subprocess.Popen(
            launch.arguments, env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        self._started.append(process)
        return process

    def _supervise(self, launch: Launch, process: "subprocess.Popen[bytes]") -> None:
        while True:
            process.wait()
            with self._starting:
                if self._ending:
                    return
                process = self._start(launch)

    def finished(self) -> bool:
        """Whether everything that was started has ended by itself."""
        return all(process.poll() is not None for process in self._started)

    def succeeded(self) -> bool:
        """Whether all of it ended with code 0, except what was killed on purpose."""
        return all(process.poll() == 0 for process in self._started if process.pid not in self._killed)

    def output(self) -> str:
        """What they have printed so far, on both streams."""
        return (self._folder / OUTPUT).read_text(encoding="utf-8", errors="replace")

    def last_words(self) -> str:
        """The end of what they printed, for a failure's sentence."""
        return "\n".join(self.output().splitlines()[-LAST_WORDS_LINES:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._starting:
            self._ending = True
        for process in self._started:
            process.terminate()
        deadline = time.monotonic() + END_GRACE_S
        while not self.finished() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        for pid in self._left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.kill()
            process.wait()
        for supervisor in self._supervisors:
            supervisor.join()
        self._log.close()

    def kill(self, number: int | None = None) -> None:
        """SIGKILL to all of them, or to one, and to all that they have started, until none is left."""
        began = self._started if number is None else [self._started[number]]
        self._killed |= {process.pid for process in began}
        deadline = time.monotonic() + KILL_S_MAX
        mine = set(_descendants([process.pid for process in began]))
        while alive := [pid for pid in mine | set(self._left() if number is None else ()) if _is_alive(pid)]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {alive} are alive {KILL_S_MAX:.0f} s after SIGKILL")
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in began:
                process.poll()
            time.sleep(POLL_INTERVAL_S)

    def _left(self) -> list[int]:
        """The benchmark's processes that are left: those with its folder in their command line."""
        own = str(self._folder).encode()
        return [pid for pid in _processes() if pid != os.getpid() and own in _command_line(pid)]


def _descendants(pids: Iterable[int]) -> list[int]:
    """These processes, and all that they have started."""
    found = [*pids]
    parents = {pid: parent_of(pid) for pid in _processes()}
    for parent in found:  # grows meanwhile
        found += [pid for pid, of in parents.items() if of == parent and pid not in found]
    return found


def node_of(worker: int) -> tuple[int, ...]:
    """A worker's agent and everything the agent started, the agent first."""
    agent = parent_of(worker)
    return (agent, *(pid for pid in _processes() if parent_of(pid) == agent))


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # gone meanwhile


def _is_alive(pid: int) -> bool:
    """Whether the process is alive; a zombie is not."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2][0]
            != "Z"
        )
    except OSError:
        return False


def parent_of(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(status.partition("PPid:")[2].split()[0])


def importable(python: str, module: str) -> bool:
    """Whether that interpreter has the module."""
    done = subprocess.run(
        [python, "-c", f"import {module}"],
        capture_output=True,
        check=False,
        env={**os.environ, **_ENVIRONMENT},
    )
    return done.returncode == 0


def torch_version(python: str) -> str:
    """That interpreter's torch, as its package names it."""
    program = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run([python, "-c", program], capture_output=True, check=True, text=True).stdout.strip()
