"""The runs of `holdfast bench gpu`: each has processes of its own and a bound, and leaves nothing behind."""

import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile, disk_usage
from statistics import median
from typing import Any, TypeVar

import click
import msgspec

from bench import losses
from bench.contestants import OUTPUT, SCRIPTS, UNBOUNDED_STEPS, Launch, Processes
from bench.kills import Failed, awaited
from holdfast.record.journal import events_of

MEMBERS_MAX = 4
RUN_S_MAX = 150.0
WARM_UP_STEPS = 3
MEMORY_BACKED = Path("/dev/shm")
MEMORY_BACKED_BYTES_MIN = 32 << 30
"""Checkpoints of 1.5 GB go to memory if there is room for those of all runs at a time."""
NO_CHECKPOINTS = ("--checkpoint-every", str(UNBOUNDED_STEPS))
"""Only the one at the end."""

Command = TypeVar("Command", bound=Callable[..., Any])

_NCCL = re.compile(r"NCCL version (\S+)")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured.

    size, storm_size: of the models, as the scripts name them. is_tiny: the machine may have no GPU. place:
    where the runs have their folders. tell: prints progress. logs: where to keep what they print.
    members_max: of the largest runs.
    """

    steps: int
    members: int
    kills: int
    repetitions: int
    size: str
    storm_size: str
    is_tiny: bool
    place: Path
    tell: Callable[[str], None]
    logs: Path | None = None
    members_max: int = MEMBERS_MAX

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """One run's own. What the run printed is kept, where that is wanted."""
        with tempfile.TemporaryDirectory(dir=self.place) as place:
            folder = Path(place)
            try:
                yield folder
            finally:
                output = folder / OUTPUT
                if self.logs is not None and output.exists():
                    file = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
                    copyfile(output, self.logs / f"{file}.log")


def measuring_options(parts: Iterable[str], *, repetitions: int) -> Callable[[Command], Command]:
    """The options that benchmarks of several parts share. repetitions: the default."""
    options = (
        click.option(
            "--repetitions",
            default=repetitions,
            show_default=True,
            type=click.IntRange(1, 5),
            help="Of each kill that is timed.",
        ),
        click.option(
            "--part",
            "parts",
            multiple=True,
            type=click.Choice(list(parts)),
            help="Measure this part only; may be given more than once.",
        ),
        click.option(
            "--logs",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="Keep what the runs print there, a file each.",
        ),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def memory_backed() -> Path | None:
    """For the runs' folders; None: wherever temporary files go."""
    try:
        has_room = disk_usage(MEMORY_BACKED).free >= MEMORY_BACKED_BYTES_MIN
    except OSError:
        has_room = False
    return MEMORY_BACKED if has_room else None


def teller(bench: str) -> Callable[[str], None]:
    """Prints progress, with the time since now."""
    begun = time.monotonic()

    def tell(sentence: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - begun), 60)
        click.echo(f"bench {bench}: {minutes}:{seconds:02} {sentence}", err=True)

    return tell


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """A run of members. nodes: as many as members: each poses as a host of its own."""

    name: str
    nodes: int
    steps: int
    size: str
    warm: int = 0
    plan: str = ""
    checkpoint_every: int = UNBOUNDED_STEPS
    pause_s: float = 0.0
    relaxed: bool = False
    limit_s: float = RUN_S_MAX


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. kills: how many planned faults struck. nccl: its version, if it was used."""

    name: str
    step_s: float
    digest: str
    losses: dict[int, float]
    said: list[str]
    kills: int
    steps_lost: int
    checkpoints_loaded: int
    survivors_lost: list[str]
    nccl: str | None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one member writes at its end."""

    times_s: list[float]
    losses: dict[int, float]
    digest: str


def launch(folder: Path, script: str, *run: str, told: tuple[str, ...]) -> Launch:
    """A script under `holdfast run` with these flags. NCCL says its version where it is used."""
    words = ("-m", "holdfast", "run", *run, str(SCRIPTS / script), "--folder", str(folder), *told)
    return Launch(
        arguments=(sys.executable, *words),
        environment={"HOLDFAST_HOME": str(folder / "home"), "NCCL_DEBUG": "VERSION"},
    )


def script(folder: Path, name: str, told: tuple[str, ...]) -> Launch:
    """One without Holdfast."""
    return Launch(arguments=(sys.executable, str(SCRIPTS / name), "--folder", str(folder), *told))


def members(folder: Path, training: Training) -> Launch:
    """The members of such a run."""
    run = ["--nodes", str(training.nodes), "--nproc-per-node", "1", "--warm", str(training.warm)]
    run += ["--checkpoint-every", str(training.checkpoint_every)]
    if training.plan:
        plan = folder / "plan.toml"
        plan.write_text(training.plan, encoding="ascii")
        run += ["--chaos", str(plan)]
    told = {
        "--steps": training.steps,
        "--size": training.size,
        "--members": training.nodes,
        "--pause-s": training.pause_s,
    }
    words = tuple(str(word) for pair in told.items() for word in pair)
    more = ("--relaxed",) if training.relaxed else ()
    return launch(folder, "gpu.py", *run, told=(*words, *more))


def completed(launched: Launch, folder: Path, name: str, limit_s: float) -> str:
    """What it printed, once it has ended well. Raises `Failed`."""
    with Processes((launched,), folder) as processes:
        awaited(processes, lambda: processes.finished() or None, limit_s, f"the end of {name}")
        if not processes.succeeded():
            raise Failed(f"{name}: the training failed; the last words:\n{processes.last_words()}")
        return processes.output()


def train(plan: Plan, training: Training) -> Trained:
    """One run to its end. Raises `Failed`."""
    plan.tell(f"{training.name}: {training.steps} steps")
    with plan.folder(training.name) as folder:
        output = completed(members(folder, training), folder, training.name, training.limit_s)
        seen = [msgspec.json.decode(path.read_bytes(), type=Seen) for path in folder.glob("*.json")]
        events = events_of(folder / "home")
    digests = {each.digest for each in seen}
    if len(digests) != 1:
        raise Failed(f"{training.name}: ended with {len(digests)} digests")
    strikes = losses.planned_strikes(output)
    version = _NCCL.search(output)
    return Trained(
        name=training.name,
        step_s=_usual([each.times_s for each in seen]),
        digest=digests.pop(),
        losses={step: loss for each in seen for step, loss in each.losses.items()},
        said=[line for line in output.splitlines() if line.startswith("holdfast: ")],
        kills=len(strikes),
        steps_lost=losses.steps_redone(events),
        checkpoints_loaded=losses.checkpoints_loaded(events),
        survivors_lost=losses.survivors_lost(events, strikes),
        nccl=version[1] if version else None,
    )


def _usual(times_s: list[list[float]]) -> float:
    """The median step of all members, without the first ones of each, where there are others."""
    later = [time_s for each in times_s for time_s in each[WARM_UP_STEPS:]]
    return median(later or [time_s for each in times_s for time_s in each] or [0.0])
