"""What a trainer logs of its steps where nothing else reads it: W&B's CSV export, and logs without times.

W&B's export of a chart has a column for its x axis (`Step`, `Relative Time (Process)`, ...), and for each run
one named `RUN - METRIC`, with its least and most values beside it. Other logs are CSV or JSON lines with a
step, or lines such as `step 50: loss 0.12`. Without a time, a step's event is at `UNTIMED_NS`: its number
gives the order, and nothing gives a duration. Times since the start are counted from there.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import NamedTuple

import msgspec

from holdfast import wording
from holdfast.record import events
from holdfast.record.errors import InputError
from holdfast.record.importers import intake
from holdfast.record.untrusted import UNDECODABLE, decoded, printable
from holdfast.wording.units import SECOND_NS

SOURCE = events.UNTIMED
UNTIMED_NS = 0
STEP_NAMES = ("_step", "step", "steps", "global_step", "total_steps", "iteration", "iter")
TIME_NAMES = (
    *("_timestamp", "timestamp", "@timestamp", "wall time", "wall_time", "time", "ts"),
    *("created_at", "logged_at", "datetime", "asctime"),
)
SINCE_NAMES = ("_runtime", "relative time (process)", "relative time (wall)")
OTHER_LOSSES = re.compile(r"val|eval|test")
RUN_MARK = " - "
ENDS_OF_RANGES = ("__min", "__max")
STEP_MAX = 2**53
SINCE_S_MAX = 10**9
RUNS_NAMED_MAX = 5
HINT = "With a time in each line (`_timestamp` in W&B's history) both would be."

_STEP = re.compile(
    r"(?:\b(?P<kind>[a-z]+)\W{1,3})?\b(?:step|iter|iteration)\b\W{0,12}"
    r"(?P<step>\d{1,3}(?:,\d{3})+|\d{1,16})\b",
    re.IGNORECASE,
)
_LOSS = re.compile(
    r"(?:(?P<kind>[a-z]+)[ _/.-]{1,2})?(?<![a-z])loss\b\W{0,4}?"
    r"(?P<loss>[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))",
    re.IGNORECASE,
)
"""`step 50: loss 0.12`, `iteration 10/ 500 | ... lm loss: 1.0E+01 |`."""
_STAMP = re.compile(r"\d{4}[-/]\d\d[-/]\d\d[Tt ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|[+-]\d\d:?\d\d)\b)?")
_EPOCH = re.compile(r"\bepoch\b\W{0,4}(\d{1,9})\b", re.IGNORECASE)
STEPS_MIN = 2
"""A text with fewer steps is no log but mentions one."""
_row: msgspec.json.Decoder[dict[str, object]] = msgspec.json.Decoder(dict[str, object])


class _Logged(NamedTuple):
    """A step of a run. loss: as text; empty if the log has none."""

    run: str
    step: int
    at_ns: int
    loss: str


class LoggedRun(msgspec.Struct, kw_only=True):
    """What a log has of one run."""

    steps: int = 0
    first: int = 0
    last: int = 0
    loss_first: str = ""
    loss_last: str = ""
    latest: int = 0
    epoch: float = 0.0
    is_timed: bool = False
    is_dated: bool = False

    def take(self, one: _Logged, *, is_dated: bool) -> None:
        self.first = one.step if not self.steps else min(self.first, one.step)
        self.last, self.latest = max(self.last, one.step), one.step
        self.loss_first, self.loss_last = self.loss_first or one.loss, one.loss or self.loss_last
        self.steps += 1
        self.is_timed, self.is_dated = self.is_timed or one.at_ns > UNTIMED_NS, self.is_dated or is_dated

    @property
    def sentence(self) -> str:
        loss = f"; loss {_said(self.loss_first)} to {_said(self.loss_last)}" if self.loss_first else ""
        said = f"{wording.many(self.steps, 'step')} logged, from {self.first:,} to {self.last:,}{loss}."
        if not self.is_timed:
            return f"{said} The log has no times: how long steps took and what they cost is not known. {HINT}"
        if not self.is_dated:
            return (
                f"{said} Times are since the start, and dates are not known: they count from 1 January 1970."
            )
        return said


class TrainerReading(intake.FileReading):
    """The events of such a log; what it has of each run is complete once the last event has been drawn."""

    def __init__(self, lines: intake.Lines, options: intake.Options) -> None:
        self._options = options
        self.found: dict[str, LoggedRun] = {}
        self._default = intake.named_after(lines.name)
        super().__init__("trainer log", lines, self._drawn(lines))

    @property
    def sentences(self) -> dict[str, str]:
        """What the log has of each run, and what it cannot tell."""
        return {run: f"{run}: {one.sentence}" for run, one in self.found.items()}

    def _drawn(self, lines: intake.Lines) -> Iterator[events.KnownEvent]:
        first_ns: dict[str, int] = {}
        for rows in _rows(lines, self._options.run):
            for row in rows:
                if (one := self._logged(row)) is None:
                    continue
                first_ns[one.run] = min(first_ns.get(one.run, one.at_ns), one.at_ns)
                yield from _as_events(one)
        for run, at_ns in first_ns.items():
            yield from intake.declarations(
                run, at_ns, self._options, SOURCE, gpus=self._options.gpus, held=True
            )

    def _logged(self, row: Mapping[str, object]) -> _Logged | None:
        """The step in these values; None if they have none."""
        step = _step(row)
        said = self._options.run or str(row.get("run", ""))
        run = said or self._default
        if step is None or not run:
            return None
        self._lines.run_named = self._lines.run_named or ("" if said else run)
        intake.require_name("run", run)
        when, is_dated = _when(row)
        one = _Logged(run, step, UNTIMED_NS if when is None else when, _loss(row))
        known, epoch = self.found.setdefault(run, LoggedRun()), _epoch(row)
        if step < known.latest and (when is None or epoch > known.epoch):
            raise InputError(
                f"The steps in {self._lines.name} go back from {known.latest:,} to {step:,}: they count anew "
                "in each epoch or attempt.",
                hint="Log a step that counts on through all epochs, and a time in each line.",
            )
        known.take(one, is_dated=is_dated)
        known.epoch = epoch
        return one


def _said(loss: str) -> str:
    return wording.number(float(loss)) if math.isfinite(float(loss)) else loss


def _as_events(one: _Logged) -> Iterator[events.KnownEvent]:
    facts = intake.said(one.run, one.step)
    first, second = (intake.event_id(SOURCE, one.at_ns, facts, rank=rank, step=one.step) for rank in (1, 3))
    yield events.StepCommitted(id=first, occurred_ns=one.at_ns, source=SOURCE, run=one.run, step=one.step)
    if one.loss:
        yield events.StepWitnessed(
            id=second, occurred_ns=one.at_ns, source=SOURCE, run=one.run, step=one.step, loss=one.loss
        )


def _rows(lines: intake.Lines, given_run: str | None) -> Iterator[Iterable[Mapping[str, object]]]:
    """The values of each line, by their names in lower case; one for each run in it."""
    heads: list[str] | None = None
    for number, content in lines:
        text = content.decode("utf-8", "replace")
        if heads is None and number == 1 and not text.lstrip().startswith("{"):
            heads = _heads(text)
            if heads:
                lines.count -= 1
                _require_one_run(heads, lines.name, given_run)
                continue
        if heads:
            cells = _cells(text)
            if len(cells) != len(heads):
                lines.skip(number, f"it has {len(cells)} cells and the header {len(heads)}")
                continue
            yield _by_run(heads, cells)
        elif row := _json_values(content) or _text_row(text):
            yield [row]


def _json_values(content: bytes) -> dict[str, object]:
    """The values in a line of JSON; empty for any other line."""
    if not content.lstrip().startswith(b"{"):
        return {}
    try:
        row = decoded(_row, content)
    except UNDECODABLE:
        return {}
    return {name.lower(): value for name, value in row.items() if value is not None}


def _text_row(text: str) -> dict[str, object] | None:
    """The values in a line of text; None if it does not tell of a step of training and its loss."""
    step = _STEP.search(text)
    if step is None or _is_other(step["kind"]):
        return None
    losses = (found["loss"] for found in _LOSS.finditer(text, step.end()) if not _is_other(found["kind"]))
    loss = next(losses, None)
    if loss is None:
        return None
    row: dict[str, object] = {"step": step["step"].replace(",", ""), "loss": loss}
    if stamp := _STAMP.search(text, 0, step.start()):
        row["time"] = stamp[0].replace("/", "-")
    if epoch := _EPOCH.search(text):
        row["epoch"] = epoch[1]
    return row


def _is_other(kind: str | None) -> bool:
    """Whether this word before a step or a loss says that it is not of training."""
    return kind is not None and OTHER_LOSSES.match(kind.lower()) is not None


def _heads(text: str) -> list[str]:
    """The header of a table of steps; empty if this is none. The names of runs keep their case."""
    heads = [cell.strip() for cell in _cells(text)]
    names = {head.rpartition(RUN_MARK)[2].lower().rpartition("/")[2] for head in heads}
    has_steps = bool(names & {*STEP_NAMES})
    return heads if has_steps and len(heads) > 1 and "kind" not in names else []


def _require_one_run(heads: list[str], name: str, given_run: str | None) -> None:
    runs = {head.rpartition(RUN_MARK)[0].strip() for head in heads if RUN_MARK in head}
    if given_run is not None and len(runs) > 1:
        named = ", ".join(sorted(map(printable, runs))[:RUNS_NAMED_MAX])
        raise InputError(
            f"{name} has {len(runs)} runs ({named}), which cannot become the one run {given_run!r}.",
            hint="Leave out `--run`: they are named as in the file.",
        )


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _by_run(heads: list[str], cells: list[str]) -> list[dict[str, object]]:
    shared: dict[str, object] = {}
    of_run: dict[str, dict[str, object]] = {}
    for head, cell in zip(heads, cells, strict=True):
        run, mark, metric = head.rpartition(RUN_MARK)
        if not cell.strip() or metric.lower().endswith(ENDS_OF_RANGES):
            continue
        values = of_run.setdefault(run.strip(), {"run": run.strip()}) if mark else shared
        values[metric.strip().lower()] = cell.strip()
    if any(RUN_MARK in head for head in heads):
        return [{**shared, **values} for values in of_run.values()]
    return [shared]


def _step(row: Mapping[str, object]) -> int | None:
    by_end = {name.rpartition("/")[2]: value for name, value in row.items()}
    for name in STEP_NAMES:
        if name in by_end:
            try:
                step = float(str(by_end[name]))
            except ValueError:
                return None
            return int(step) if 0 <= step <= STEP_MAX and step.is_integer() else None
    return None


def _epoch(row: Mapping[str, object]) -> float:
    try:
        return float(str(row.get("epoch", "")))
    except ValueError:
        return 0.0


def _when(row: Mapping[str, object]) -> tuple[int | None, bool]:
    """The step's time, or that since the start; and whether its date is known."""
    for name in TIME_NAMES:
        if name in row:
            try:
                return intake.time_ns(str(row[name])), True
            except ValueError:
                continue
    for name in SINCE_NAMES:
        try:
            since_s = float(str(row.get(name, "")))
        except ValueError:
            continue
        if 0 <= since_s <= SINCE_S_MAX:
            return max(UNTIMED_NS + 1, round(since_s * SECOND_NS)), False
    return None, False


def _loss(row: Mapping[str, object]) -> str:
    """The training loss, whose name says so in one way or another."""
    named = [name for name in row if "loss" in name and not OTHER_LOSSES.search(name)]
    for name in sorted(named, key=lambda one: (one.rpartition("/")[2] != "loss", len(one))):
        try:
            return str(float(str(row[name])))
        except ValueError:
            continue
    return ""


def read(lines: intake.Lines, options: intake.Options) -> TrainerReading:
    return TrainerReading(lines, options)


def is_log(ends: bytes) -> bool:
    """Whether a file with this head and tail has steps in a form that is read here."""
    texts = [
        line for line in ends.decode("utf-8", "replace").splitlines() if not line.lstrip().startswith("{")
    ]
    mentions = [line for line in texts if _STEP.search(line)]
    if mentions:
        with_loss = sum(_LOSS.search(line) is not None for line in mentions)
        steps = {row["step"] for line in mentions if (row := _text_row(line))}
        return len(steps) >= STEPS_MIN and 2 * with_loss >= len(mentions)
    reading = TrainerReading(intake.Lines(BytesIO(ends), ""), intake.Options(run="-"))
    try:
        return next(iter(reading), None) is not None
    except InputError:
        return True  # and `read` says what is wrong with it
