"""A run's steps from its own files: a log with a line a step, or the files of TensorBoard or W&B.

Only the times and numbers of steps are read. The file may grow: each part is read once. TensorBoard's event
files are read without TensorBoard: each record begins with a time and a step.
"""

import csv
import os
import re
import struct
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from holdfast.record.errors import InputError
from holdfast.record.importers.intake import ends_of, time_ns
from holdfast.record.untrusted import UNDECODABLE, decoded
from holdfast.signals import wandb_file
from holdfast.signals.frame import Frame
from holdfast.signals.source import Source
from holdfast.signals.stepped import Shown, WithSteps, between_counts, step_frame
from holdfast.wording.units import SECOND_NS

TIME_KEYS = ("time", "timestamp", "_timestamp", "wall_time", "ts")
STEP_KEYS = ("step", "_step", "global_step", "iteration", "iter", "total_steps")
STEP_MAX = 2**53
"""Beyond that a float does not tell two steps apart."""
STEPS_MAX = 1_000_000
"""Steps whose times are kept; older ones go."""
READ_BYTES_MAX = 64 << 20
"""At one look; the rest at the next."""
RECORD_BYTES_MAX = 16 << 20
EVENT_FILES, WANDB_FILES = "events.out.tfevents.*", "run-*.wandb"
WANDB_SUFFIX = ".wandb"
AHEAD_S = 60.0
"""A step farther ahead of now than clocks differ: its time is misread."""
FORMATS = (
    f"A step has a time ({', '.join(TIME_KEYS)}) and a number ({', '.join(STEP_KEYS)}), as JSON lines or CSV "
    "with a header; or it is a line of Megatron's log; or TensorBoard or Weights & Biases wrote it."
)
_MEGATRON = re.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\].*\biteration\s+(?P<step>\d+)/"
)
"""A line of Megatron's log: `[2026-03-02 09:00:00] iteration 10/ 500 | ...`."""
_object = msgspec.json.Decoder(dict[str, object])
_HEAD = struct.Struct("<QI")
_DOUBLE = struct.Struct("<d")


class Made:
    """The steps that were made, including those repeated after a return to a checkpoint. in_order: by time.

    Several values of one step have a time each: the step is done when the first is written. A lower number
    later on may be a late value; two rising numbers, both below the highest, are repeated steps.
    """

    def __init__(self) -> None:
        self.in_order: list[Shown] = []
        self._before: list[Shown] = []
        self._since_ns = 0
        self._shown: dict[int, int] = {}
        self._top: Shown = (-1, -1)
        self._lower: Shown | None = None

    def take(self, grown: list[Shown]) -> None:
        for at_ns, step in grown:
            if at_ns >= self._since_ns:
                self._take(at_ns, step)
        while len(self._shown) > STEPS_MAX:
            del self._shown[next(iter(self._shown))]
        del self._before[: max(0, len(self._before) + len(self._shown) - STEPS_MAX)]
        self.in_order = sorted((*self._before, *((at_ns, step) for step, at_ns in self._shown.items())))

    def _take(self, at_ns: int, step: int) -> None:
        top_ns, top = self._top
        if step > top:
            self._top, self._lower = (at_ns, step), None
        elif at_ns > top_ns and step < top:
            if self._lower is not None and step > self._lower[1]:
                self._go_back(self._lower)
                self._top = (at_ns, step)
            elif self._lower is None or step < self._lower[1]:
                self._lower = (at_ns, step)
        self._shown.setdefault(step, at_ns)

    def _go_back(self, first: Shown) -> None:
        """Keep the earlier steps; from here on known numbers count anew."""
        self._before += ((at_ns, step) for step, at_ns in self._shown.items() if at_ns < first[0])
        self._since_ns, self._lower = first[0], None
        self._shown = {first[1]: first[0]}


class StepFiles:
    """The steps in a file, or in all event files of a directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[Path, int] = {}
        self._heads: dict[Path, list[str]] = {}
        self._made = Made()

    def steps(self) -> list[Shown]:
        """All known steps, in order of time."""
        if grown := sorted(shown for path in self._files() for shown in self._grown(path)):
            self._made.take(grown)
        return self._made.in_order

    def shows_steps(self) -> bool:
        """Whether the head or the tail has a step, if it is a text: a long one is not read in vain."""
        path = self._path
        if not path.is_file() or path.match(EVENT_FILES) or path.suffix == WANDB_SUFFIX:
            return True
        lines = ends_of(path).decode("utf-8", "replace").splitlines()
        return bool(self._lines(path, lines, is_first=True))

    def _files(self) -> list[Path]:
        if self._path.is_dir():
            if found := sorted((*self._path.rglob(EVENT_FILES), *self._path.rglob(WANDB_FILES))):
                return found
            raise InputError(
                f"There is no file of TensorBoard or of Weights & Biases in {self._path}.",
                hint=f"They are called {EVENT_FILES} and {WANDB_FILES}.",
            )
        if not self._path.is_file():  # reading a pipe would block
            raise InputError(f"There is no step log {self._path}.", hint="Give a file or a directory.")
        return [self._path]

    def _grown(self, path: Path) -> Iterator[Shown]:
        place = self._places.get(path, 0)
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < place:
                place = 0  # the file was started anew
            file.seek(place)
            data = file.read(READ_BYTES_MAX)
        if path.match(EVENT_FILES):
            found, used = _events(data)
        elif path.suffix == WANDB_SUFFIX:
            told, used = wandb_file.told(data, place)
            found = [shown for when, step in told if (shown := _shown(when, step)) is not None]
        else:
            used = data.rfind(b"\n") + 1
            found = self._lines(path, data[:used].decode("utf-8", "replace").splitlines(), is_first=not place)
        self._places[path] = place + used
        yield from found

    def _lines(self, path: Path, lines: list[str], *, is_first: bool) -> list[Shown]:
        if is_first and lines and not lines[0].lstrip().startswith("{") and _MEGATRON.match(lines[0]) is None:
            heads = _cells(lines[0])
            if {*heads} & {*TIME_KEYS} and {*heads} & {*STEP_KEYS}:
                self._heads[path] = heads
        return [shown for line in lines if (shown := _line(line, self._heads.get(path))) is not None]


def _line(line: str, heads: list[str] | None) -> Shown | None:
    """The step in a line; None if it has none, in which case only that line is lost."""
    if found := _MEGATRON.search(line):
        said: dict[str, object] = {"time": found["time"], "step": found["step"]}
    elif heads is not None:
        said = dict(zip(heads, _cells(line), strict=False))
    else:
        try:
            said = decoded(_object, line.encode())
        except UNDECODABLE:
            return None
    when = next((said[key] for key in TIME_KEYS if key in said), None)
    step = next((said[key] for key in STEP_KEYS if key in said), None)
    return _shown(when, step)


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _shown(when: object, step: object) -> Shown | None:
    """None if these are not a time and the number of a step."""
    try:
        at_ns, number = time_ns(str(when)), int(float(str(step)))
    except (ValueError, OverflowError):
        return None
    return (at_ns, number) if 0 <= number <= STEP_MAX else None


def _events(data: bytes) -> tuple[list[Shown], int]:
    """The complete records, and their bytes. Each has its length and checksums around it."""
    found: list[Shown] = []
    place = 0
    while place + _HEAD.size <= len(data):
        length, _ = _HEAD.unpack_from(data, place)
        end = place + _HEAD.size + length + 4
        if length > RECORD_BYTES_MAX or end > len(data):
            break
        if shown := _event(data[place + _HEAD.size : end - 4]):
            found.append(shown)
        place = end
    return found, place


def _event(record: bytes) -> Shown | None:
    """From a protobuf `Event`: `wall_time` is field 1, a double, and `step` field 2, a varint."""
    said = dict(islice(wandb_file.fields(record), 2))
    when, step = said.get(1), said.get(2)  # step 0, which the first record has too, is not written
    if not isinstance(when, bytes) or len(when) != _DOUBLE.size or not isinstance(step, int):
        return None
    return _shown(_DOUBLE.unpack(when)[0], step)


class StepLogSource(WithSteps):
    """Another source, with the steps of one run from its own files, or from its record."""

    def __init__(self, source: Source, steps: Callable[[], list[Shown]], run: str, *, step_s: float) -> None:
        super().__init__(source)
        self._shown = steps
        self._run = run
        self._step_ns = round(step_s * SECOND_NS)

    def _has_steps(self, there: Collection[str]) -> bool:
        return bool(self._shown())

    def last_step_ns(self, run: str, at_ns: int) -> int | None:
        if run != self._run:
            return super().last_step_ns(run, at_ns)
        return max((shown_ns for shown_ns, _ in self._shown() if shown_ns <= at_ns), default=None)

    def logged_steps(self, run: str, at_ns: int) -> list[Shown]:
        if run != self._run:
            return super().logged_steps(run, at_ns)
        return [shown for shown in self._shown() if shown[0] <= at_ns]

    def _steps(self, window_ns: tuple[int, int]) -> Frame | None:
        """The steps as if the run were scraped: at each time those that it had written by then."""
        shown = np.array(self._shown(), np.int64).reshape(-1, 2)
        cells = max(1, -(-(window_ns[1] - window_ns[0]) // self._step_ns))
        times_ns = window_ns[1] + np.arange(-cells, 0, dtype=np.int64) * self._step_ns
        before = np.searchsorted(shown[:, 0], times_ns, side="right")
        if not len(shown) or not before[-1]:
            return None
        latest = shown[np.maximum(before, 1) - 1]
        counts = np.where(before > 0, latest[:, 1], np.nan)
        # The time of a step is that between two entries, not between two looks at them.
        values = between_counts(latest[:, 0], counts)
        return step_frame((self._run,), times_ns, [values])


def steps_in(path: Path) -> list[Shown]:
    """The steps in a log, or in the files of TensorBoard or W&B; empty for any other file."""
    files, count = StepFiles(path), -1
    try:
        if not files.shows_steps():
            return []
        while len(shown := files.steps()) > count:  # a large file is read in parts
            count = len(shown)
    except (InputError, OSError):
        return []
    return shown
