"""Open the source that the user names: a server or a directory, with steps from logs or a metric."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError, nearest
from holdfast.record.files import is_directory
from holdfast.signals.credentials import access
from holdfast.signals.incremental import IncrementalSource
from holdfast.signals.prometheus import Prometheus
from holdfast.signals.source import Source, SourceError
from holdfast.signals.step_files import AHEAD_S, FORMATS, StepFiles, StepLogSource
from holdfast.signals.stepped import SteppedSource
from holdfast.signals.store import SignalStore
from holdfast.wording import lasting

SIGNALS_DIRECTORY = "signals"

Remark = Callable[[str, str], None]
"""Called with a sentence and a hint about something that looks wrong but may still come right."""


class SignalPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where signals are, and where the steps of runs come from.

    url          of a server; without one, `directory` has them, in the store's files
    is_named     the user named the directory: it must exist
    may_lack     without any signals there, the source is empty
    logs         the run and the path of each step log
    """

    url: str | None
    directory: Path
    is_named: bool
    step_s: float
    may_lack: bool = False
    step_metric: str | None = None
    logs: tuple[tuple[str, str], ...] = ()


@contextmanager
def opened(
    place: SignalPlace, remark: Remark, at_ns: int | None = None, *, is_again: bool = False
) -> Iterator[Source]:
    """at_ns: the moment to look at, if not now. is_again: it will be read again and again."""
    with _base(place, at_ns) as source:
        if isinstance(source, Prometheus):
            try:
                source.greet()
            except SourceError as error:
                if not is_again:
                    raise
                remark(error.sentence, error.hint)
        if is_again and isinstance(source, Prometheus):
            source = IncrementalSource(source)
        yield _stepped(source, place, remark)


@contextmanager
def _base(place: SignalPlace, at_ns: int | None) -> Iterator[Source]:
    if place.url is not None:
        given = access("PROMETHEUS")
        with Prometheus(place.url, access=given, step_s=place.step_s, as_of_ns=at_ns) as server:
            yield server
        return
    with _directory(place) as directory, SignalStore(directory, step_s=place.step_s) as store:
        yield store


@contextmanager
def _directory(place: SignalPlace) -> Iterator[Path]:
    """The directory of the signals. If none is named and the default is missing, it is an empty one for those
    who have a step log, or can do without.
    """
    if is_directory(place.directory):
        yield place.directory
        return
    if place.is_named or not (place.logs or place.may_lack):
        raise InputError(
            f"There are no signals in {place.directory}.",
            hint="Name a server with --prometheus URL, fill a directory with `holdfast collect`, or name a "
            "run's own log with --step-log PATH.",
        )
    with TemporaryDirectory(prefix="holdfast-") as empty:
        yield Path(empty)


def _stepped(source: Source, place: SignalPlace, remark: Remark) -> Source:
    for run, path in place.logs:
        files = StepFiles(Path(path))
        _remark_on_log(path, files.steps(), remark)  # report a mistake now, and not at every look
        source = StepLogSource(source, files.steps, run, step_s=place.step_s)
    if not place.step_metric:
        return source
    _remark_on_metric(place.step_metric, source.metrics(), remark)
    return SteppedSource(source, place.step_metric)


def _remark_on_metric(metric: str, there: Sequence[str], remark: Remark) -> None:
    """Remark that there is no such metric: it may still appear."""
    if metric in there or f"{metric}_count" in there:
        return
    hint = nearest(metric, there, "The signals have no metric with a similar name.")
    remark(f"The step metric {metric} is not in the signals, so it gives no steps.", hint)


def _remark_on_log(path: str, steps: Sequence[tuple[int, int]], remark: Remark) -> None:
    """Remark that a log has no step, or steps in the future: it may still grow."""
    if not steps:
        remark(f"No step can be read from {path} so far.", FORMATS)
        return
    ahead_s = (steps[-1][0] - SystemClock().now_ns()) / 1e9
    if ahead_s > AHEAD_S:
        remark(
            f"The last step in {path} is {lasting(ahead_s)} ahead of now.",
            "Times without a zone are read as UTC: have the log written in UTC, or with its zone.",
        )
