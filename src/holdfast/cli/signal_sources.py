"""How the verbs get signals: from a Prometheus-compatible server, or from the embedded store's directory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from holdfast.cli.flags import option, together
from holdfast.cli.record import home
from holdfast.cli.values import some_seconds
from holdfast.record.errors import InputError, complaint, nearest
from holdfast.record.files import is_directory

if TYPE_CHECKING:
    from holdfast.signals.source import Source

Given = TypeVar("Given", str, tuple[str, ...], None)

SIGNALS_DIRECTORY = "signals"


def url_option(context: click.Context, parameter: click.Parameter, given: Given) -> Given:
    """The callback of an option that takes one URL or several, each of them possibly in a file."""
    if not given:
        return given
    from holdfast.signals.credentials import spelled_out  # a verb that asks no server need not load a client

    what = parameter.opts[0]
    if isinstance(given, str):
        return spelled_out(given, what=what)
    if isinstance(given, tuple):
        return tuple(spelled_out(one, what=what) for one in given)
    return given


class SignalFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Where signals are, and what tells the steps of runs beside them."""

    prometheus_url: str | None = option(
        "--prometheus",
        "Signals of a Prometheus-compatible server.  [default: $HOLDFAST_PROMETHEUS]",
        envvar="HOLDFAST_PROMETHEUS",
        callback=url_option,
        metavar="URL",
    )
    signals_path: Path | None = option(
        "--signals",
        "Signals of the embedded store.  [default: $HOLDFAST_SIGNALS, or signals in $HOLDFAST_HOME]",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="HOLDFAST_SIGNALS",
        metavar="DIR",
    )
    step_s: float = option(
        "--step",
        "How far apart the server's samples are.",
        type=some_seconds,
        default="10s",
        show_default=True,
        metavar="TIME",
    )
    step_metric: str | None = option(
        "A metric that counts the steps of runs, or has their time.  [default: $HOLDFAST_STEP_METRIC]",
        envvar="HOLDFAST_STEP_METRIC",
        metavar="NAME",
    )
    step_log: tuple[str, ...] = option(
        "A run's own log of steps, or its TensorBoard or W&B files. May be repeated.",
        multiple=True,
        metavar="[RUN=]PATH",
    )

    @property
    def logs(self) -> list[tuple[str, str]]:
        """The run and the path of each step log."""
        parts = (text.rpartition("=") for text in self.step_log)
        return [(run or Path(path).stem, path) for run, _, path in parts]

    @property
    def logged_runs(self) -> tuple[str, ...]:
        """The runs whose step logs were named: they are watched, whether or not they have made a step yet."""
        return tuple(run for run, _ in self.logs)


signals_options = together(SignalFlags, "signals")


@contextmanager
def open_signals(
    asked: SignalFlags, at_ns: int | None = None, *, is_again: bool = False
) -> Iterator["Source"]:
    """The source that was named; a directory on the command line goes before a server in the environment.

    at_ns: the moment to look at, where that is not now. is_again: it will be looked at again and again.
    Steps of runs are taken from where the command line says as well.
    """
    with _opened(asked, at_ns) as source:
        yield _stepped(_growing(source) if is_again else source, asked)


def _growing(source: "Source") -> "Source":
    from holdfast.signals.incremental import IncrementalSource
    from holdfast.signals.prometheus import Prometheus

    return IncrementalSource(source) if isinstance(source, Prometheus) else source


def _stepped(source: "Source", asked: SignalFlags) -> "Source":
    from holdfast.signals.step_files import StepFiles, StepLogSource
    from holdfast.signals.stepped import SteppedSource

    for run, path in asked.logs:
        files = StepFiles(Path(path))
        _remark_on_log(path, files.steps())  # a mistake is told now, and not at every look
        source = StepLogSource(source, files, run, step_s=asked.step_s)
    if not asked.step_metric:
        return source
    _remark_on_metric(asked.step_metric, source.metrics())
    return SteppedSource(source, asked.step_metric)


def _remark_on_metric(metric: str, there: Sequence[str]) -> None:
    """That there is no such metric, on stderr: it may still come."""
    from holdfast.cli.terminal import printable

    if metric in there or f"{metric}_count" in there:
        return
    hint = nearest(metric, there, "The signals have no metric that is called nearly so.")
    sentence = f"The step metric {metric} is not in the signals: no step can be taken from it."
    click.echo(complaint(printable(sentence), printable(hint)), err=True)


def _remark_on_log(path: str, steps: Sequence[tuple[int, int]]) -> None:
    """That a log has no step, or steps that were not made yet, on stderr: it may still grow."""
    from holdfast.cli.terminal import printable
    from holdfast.record.clock import SystemClock
    from holdfast.signals.step_files import AHEAD_S, FORMATS
    from holdfast.wording import lasting

    if not steps:
        click.echo(complaint(f"No step can be read from {printable(path)} so far.", FORMATS), err=True)
        return
    ahead_s = (steps[-1][0] - SystemClock().now_ns()) / 1e9
    if ahead_s > AHEAD_S:
        click.echo(
            complaint(
                f"The last step in {printable(path)} is {lasting(ahead_s)} ahead of now.",
                "Times without a zone are read as UTC: have the log written in UTC, or with its zone.",
            ),
            err=True,
        )


@contextmanager
def _opened(asked: SignalFlags, at_ns: int | None) -> Iterator["Source"]:
    if (url := asked.prometheus_url) is not None and not _is_named("signals_path"):
        from holdfast.signals.credentials import access
        from holdfast.signals.prometheus import Prometheus

        given = access("PROMETHEUS")
        with Prometheus(url, access=given, step_s=asked.step_s, as_of_ns=at_ns) as server:
            yield server
        return
    from holdfast.signals.store import SignalStore

    with _directory(asked) as directory, SignalStore(directory, step_s=asked.step_s) as store:
        yield store


@contextmanager
def _directory(asked: SignalFlags) -> Iterator[Path]:
    """That of the signals. Where none is named and none is there, a step log is enough: then it is empty."""
    directory = asked.signals_path or home() / SIGNALS_DIRECTORY
    if is_directory(directory):
        yield directory
        return
    if asked.signals_path is not None or not asked.step_log:
        raise InputError(
            f"There are no signals in {directory}.",
            hint="Name a server with --prometheus URL, fill a directory with `holdfast collect`, or name a "
            "run's own log with --step-log PATH.",
        )
    with TemporaryDirectory(prefix="holdfast-") as empty:
        yield Path(empty)


def _is_named(parameter: str) -> bool:
    """Whether the option stands on the command line itself."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE
