"""One run of the nanoGPT port under `holdfast run`: started, watched through its record, and ended."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

import msgspec
from unruly import STRUCK, Plan

from holdfast.record.events import AnyEvent, GenerationOpened, MemberLost, StepCommitted
from holdfast.record.journal import JOURNAL_DIRECTORY, events_of

ROOT = Path(__file__).parents[1]
PORT = ROOT / "examples" / "nanogpt"
TEXT = ROOT / "examples" / "char_gpt" / "text.txt"
UNRULY = ROOT / "testbed" / "unruly.py"
NAME = "faults"
CHECKPOINT_EVERY = 25
START_S_MAX = 120.0
END_S_MAX = 300.0
"""With `torch.compile` on a busy machine a run takes minutes."""
POLL_INTERVAL_S = 0.05
KILL_WAIT_S = 10.0
SETTINGS: dict[str, object] = {
    "dataset": "play",
    "eval_interval": 30,
    "eval_iters": 4,
    "log_interval": 20,
    "gradient_accumulation_steps": 8,
    "block_size": 32,
    "n_head": 2,
    "dropout": 0.1,
    "warmup_iters": 10,
    "compile": False,
}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """members: of one node. strike_step: when faults are made; by then the warm process should be ready, for
    which a step must not be too short. model: its size.
    """

    members: int
    steps: int
    strike_step: int
    model: dict[str, object]

    @property
    def one_node(self) -> tuple[object, ...]:
        return ("--nproc-per-node", self.members)


USUAL = Scale(members=3, steps=100, strike_step=60, model={"n_layer": 2, "n_embd": 64, "batch_size": 4})
"""A step takes 50 to 100 ms on two cores that have nothing else to do."""
BRIEF = Scale(members=2, steps=60, strike_step=30, model={"n_layer": 1, "n_embd": 32, "batch_size": 2})


class Late(Exception):
    """The run did not reach the expected state in time."""


@dataclass(frozen=True)
class Line:
    """Something Holdfast said, and when by the wall clock."""

    at_ns: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run that is over."""

    code: int
    digest: str
    said: tuple[Line, ...]
    output: str
    events: tuple[AnyEvent, ...]


class PortRun:
    """The port in a folder of its own, which has the data already. A context: nothing of it is left behind.

    flags: of `holdfast run`, behind those that every run has. unruly: what goes wrong in the script.
    prefix: a command that starts the command.
    """

    def __init__(
        self,
        folder: Path,
        scale: Scale,
        flags: Sequence[object],
        *,
        settings: dict[str, object] | None = None,
        unruly: Plan | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._scale = scale
        length = {"max_iters": scale.steps, "lr_decay_iters": scale.steps}
        told = {**SETTINGS, **scale.model, **length, "out_dir": folder / "out", **(settings or {})}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
        environment = {**kept, "HOLDFAST_HOME": str(self.home), "OMP_NUM_THREADS": "1"}
        script = [PORT / "train.py"]
        if unruly is not None:
            environment["UNRULY"] = msgspec.json.encode(unruly).decode()
            script.insert(0, UNRULY)
        arguments = [f"--{name}={value}" for name, value in told.items()]
        usual = ["--run", NAME, "--checkpoint-every", CHECKPOINT_EVERY]
        command = [sys.executable, "-m", "holdfast", "run", *usual, *flags, *script, *arguments]
        self.began_ns = time.time_ns()
        self._lines: list[Line] = []
        self.process = subprocess.Popen(
            [*prefix, *map(str, command)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        streams = (self.process.stdout, self.process.stderr)
        self._readers = [threading.Thread(target=self._read, args=(stream,)) for stream in streams]
        for reader in self._readers:
            reader.start()

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def _read(self, stream: IO[str]) -> None:
        for text in stream:
            self._lines.append(Line(time.time_ns(), text.rstrip("\n")))

    def events(self) -> list[AnyEvent]:
        """What is on record of this start of the run."""
        if not (self.home / JOURNAL_DIRECTORY).exists():
            return []
        return [event for event in events_of(self.home) if event.recorded_ns >= self.began_ns]

    @property
    def output(self) -> str:
        return "\n".join(line.text for line in self._lines)

    def awaited(self, what: str, found: Callable[[], T | None], limit_s: float = START_S_MAX) -> T:
        deadline_s = time.monotonic() + limit_s
        while (result := found()) is None:
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise Late(f"waited for {what} in vain; the last words:\n{self.output[-2000:]}")
            time.sleep(POLL_INTERVAL_S)
        return result

    def await_strike(self) -> None:
        """Until it is time for a fault."""
        number = self._scale.strike_step
        self.awaited(f"step {number}", lambda: True if self._step() >= number else None)

    def _step(self) -> int:
        return max((event.step for event in self.events() if isinstance(event, StepCommitted)), default=0)

    def struck_ns(self) -> int | None:
        """When the script went wrong, where it was told to."""
        with suppress(FileNotFoundError, ValueError):
            return int((self.folder / STRUCK).read_text(encoding="ascii"))
        return None

    def members(self) -> tuple[str, ...]:
        """Those of the last generation."""
        opened = [event for event in self.events() if isinstance(event, GenerationOpened)]
        return opened[-1].members if opened else ()

    def pid_of(self, member: str) -> int:
        wanted = {f"HOLDFAST_MEMBER={member}", f"HOLDFAST_HOME={self.home}"}
        for pid in _processes():
            if wanted <= set(_environment(pid)):
                return pid
        raise Late(f"{member} has no process; the last words:\n{self.output[-2000:]}")

    def agent_of(self, member: str) -> int:
        """The process that started the member's."""
        status = Path(f"/proc/{self.pid_of(member)}/status").read_text(encoding="utf-8", errors="replace")
        return int(status.partition("PPid:")[2].split()[0])

    def ended(self, limit_s: float = END_S_MAX) -> Ended:
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Late(
                f"the run did not end in {limit_s:g} s; the last words:\n{self.output[-2000:]}"
            ) from None
        for reader in self._readers:
            reader.join()
        lines = sorted(self._lines, key=lambda line: line.at_ns)
        said = tuple(line for line in lines if line.text.startswith("holdfast: "))
        digests = re.findall(r"\b[0-9a-f]{64}\b", "\n".join(line.text for line in said))
        return Ended(
            code=code,
            digest=digests[-1] if digests else "",
            said=said,
            output=self.output,
            events=tuple(self.events()),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(KILL_WAIT_S)
        # Those whose home is this run's are its own, stopped ones too, which no longer obey.
        for pid in _processes():
            if f"HOLDFAST_HOME={self.home}" in _environment(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def prepare(folder: Path) -> None:
    """Write the data that all runs share."""
    target = folder / "data" / "play"
    subprocess.run([sys.executable, PORT / "prepare.py", TEXT, target], check=True, stdout=subprocess.DEVNULL)


def next_commit_s(events: Sequence[AnyEvent], onset_ns: int) -> float | None:
    """From the fault until all members of the run committed a step again; None: they never did.

    Where the fault cost a member, that is the first step of the generation after it. Where it did not, the
    members waited, and the longest gap between two commits since then is what it cost. Where nothing was
    committed before, as after a new start, it is the first step.
    """
    commits_ns = sorted(event.occurred_ns for event in events if isinstance(event, StepCommitted))
    if commits_ns and commits_ns[0] > onset_ns:
        return (commits_ns[0] - onset_ns) / 1e9
    lost = [event for event in events if isinstance(event, MemberLost) and event.recorded_ns >= onset_ns]
    if lost:
        # Not when it was written down: what a process died of may be known after the next generation.
        first_ns = min(event.occurred_ns for event in lost)
        opened = [event for event in events if isinstance(event, GenerationOpened)]
        formed_ns = [event.recorded_ns for event in opened if event.recorded_ns >= first_ns]
        later_ns = [at_ns for at_ns in commits_ns if formed_ns and at_ns > min(formed_ns)]
        return (later_ns[0] - onset_ns) / 1e9 if later_ns else None
    gaps_ns = [after - max(before, onset_ns) for before, after in pairwise(commits_ns) if after > onset_ns]
    return max(gaps_ns) / 1e9 if gaps_ns else None


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []  # gone meanwhile, or another user's
