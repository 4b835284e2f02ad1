"""`holdfast run` as a process, for tests of several folders: started, read from, and ended."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from waiting import WAIT_S, until

from holdfast.record.events import Event
from holdfast.record.journal import Damage, read_directory
from holdfast.run.endpoint import Endpoint, find_endpoint

TOKEN = "a token for tests"

Kind = TypeVar("Kind", bound=Event)

JOINS = '''
"""A script that is protected, without torch: it steps by itself until the file `enough` is there."""
import os, pathlib, queue, sys, time
from holdfast.run.link import Link
from holdfast.run.wire import *

link = Link.connect(os.environ)
inbox = queue.SimpleQueue()
link.on_message = inbox.put
member = link.member
setup = Setup(lanes=64, seed=1, threads=1, torch="", device="", deterministic=True, model="", parts={})
link.send(WorkerJoined(member=member, pid=os.getpid()))
step, generation, is_finished = 0, None, False
while True:
    try:
        match inbox.get(timeout=0.02):
            case Admitted():
                link.send(WorkerReady(member=member, setup=setup, took_s=0.01))
            case Announced(members=members) as announced:
                if member not in members:
                    continue  # it is to be replaced
                generation = announced
                print("pid", os.getpid(), "generation", *generation.members, flush=True)
                link.send(Regrouped(member=member, generation=generation.number, version=step, lanes=(0,),
                                    steps_total=0, parts_s={}))
            case Released() | None:
                link.close()
                sys.exit()
    except queue.Empty:
        if generation is None or is_finished:
            continue
        step += 1
        link.send(Committed(member=member, generation=generation.number, step=step, loss=None))
        if is_finished := pathlib.Path("enough").exists():
            link.send(Finished(member=member, step=0, digest="same"))
'''


class Launched:
    """A launcher that runs, and what it has printed so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=pair)
            for pair in ((process.stdout, self.out), (process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Iterator[bytes], lines: list[str]) -> None:
        lines.extend(line.decode().rstrip("\n") for line in stream)

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, lambda: "\n".join((*self.out, *self.err)))

    def until_printed(self, pattern: str, count: int = 1) -> list[str]:
        """The lines of the members' stdout that match, once there are this many."""

        def found() -> list[str]:
            return [line for line in tuple(self.out) if re.search(pattern, line)]

        self.until(lambda: len(found()) >= count)
        return found()

    def until_said(self, text: str) -> None:
        self.until(lambda: any(text in line for line in tuple(self.err)))

    def pids(self) -> list[int]:
        """The script's processes, as they printed themselves."""
        return [int(match[1]) for line in tuple(self.out) if (match := re.search(r"pid (\d+)", line))]

    def agents(self) -> list[int]:
        return [pid for pid in children(self.process.pid) if is_a("agent", pid)]

    def wait(self) -> int:
        """Its exit code, once it has ended and all its output is here."""
        code = self.process.wait(WAIT_S)
        for reader in self._readers:
            reader.join(WAIT_S)
        return code

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Start:
    """Starts `holdfast run` in a directory of its own, with a home of its own; keeps what must be ended.
    prefix: a command that runs another one elsewhere.
    """

    def __init__(self, directory: Path, prefix: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.prefix = prefix
        self.home = directory / "home"
        self.launched: list[Launched] = []

    def __call__(self, *arguments: str, script: str = "", token: str = "") -> Launched:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
        variables = {"HOLDFAST_HOME": str(self.home), **({"HOLDFAST_TOKEN": token} if token else {})}
        (self.directory / "script.py").write_text(script, encoding="utf-8")
        return self._started({**kept, **variables}, "run", *arguments, "script.py")

    def attached(self, run: str, token: str = "") -> Launched:
        """Another view of a run, with `holdfast attach`."""
        variables = {"HOLDFAST_HOME": str(self.home), "HOLDFAST_TOKEN": token}
        return self._started({**os.environ, **variables}, "attach", run)

    def _started(self, environment: dict[str, str], *arguments: str) -> Launched:
        process = subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "holdfast", *arguments],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.launched.append(Launched(process))
        return self.launched[-1]

    def left(self, run: str) -> list[str]:
        """What is left in the run's directory: what it was started with, and nothing else."""
        return sorted(path.name for path in (self.home / "runs" / run).iterdir())

    def events(self, kind: type[Kind]) -> list[Kind]:
        read = [item for item in read_directory(self.home / "journal", {}) if not isinstance(item, Damage)]
        return [event for event in read if isinstance(event, kind)]

    def endpoint(self, run: str) -> Endpoint:
        """The endpoint of the run's coordinator, once it has a successor."""

        until(lambda: find_endpoint(self.home, run).successor)
        return find_endpoint(self.home, run)

    def chaos(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.verb("chaos", *arguments)

    def verb(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *arguments],
            env={**os.environ, "HOLDFAST_HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in text.split()]


def descendants(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    with suppress(FileNotFoundError, ProcessLookupError):
        for child in children(pid):
            found += descendants(child)
    return found


def is_a(what: str, pid: int) -> bool:
    """Whether the process is Holdfast's agent, hub or standby."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return f"holdfast.run.{what}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
