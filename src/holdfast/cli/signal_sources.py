"""How the verbs get signals: from a Prometheus-compatible server, or from the embedded store's directory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.durations import some_seconds
from holdfast.cli.record import home
from holdfast.record.errors import InputError, complaint
from holdfast.record.files import is_directory

if TYPE_CHECKING:
    from holdfast.signals.source import Source

Verb = TypeVar("Verb", bound=Callable[..., Any])
Given = TypeVar("Given", str, tuple[str, ...], None)

SIGNALS_DIRECTORY = "signals"
DEFAULT_STEP = "10s"
STEP_KEY = f"{__name__}.step_s"
STEP_METRIC_KEY, STEP_LOG_KEY = f"{__name__}.step_metric", f"{__name__}.step_log"
"""Where options are kept for `open_signals`: the verbs have no other use for them."""


def signals_options(verb: Verb) -> Verb:
    directory = click.option(
        "--signals",
        "signals_path",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="HOLDFAST_SIGNALS",
        metavar="DIR",
        help="Signals of the embedded store.  [default: $HOLDFAST_SIGNALS, or signals in $HOLDFAST_HOME]",
    )
    server = click.option(
        "--prometheus",
        "prometheus_url",
        envvar="HOLDFAST_PROMETHEUS",
        callback=url_option,
        metavar="URL",
        help="Signals of a Prometheus-compatible server.  [default: $HOLDFAST_PROMETHEUS]",
    )
    step = click.option(
        "--step",
        type=some_seconds,
        default=DEFAULT_STEP,
        show_default=True,
        expose_value=False,
        callback=_keep(STEP_KEY),
        metavar="TIME",
        help="How far apart the server's samples are.",
    )
    metric = click.option(
        "--step-metric",
        envvar="HOLDFAST_STEP_METRIC",
        expose_value=False,
        callback=_keep(STEP_METRIC_KEY),
        metavar="NAME",
        help="A metric that counts the steps of runs, or has their time.  [default: $HOLDFAST_STEP_METRIC]",
    )
    log = click.option(
        "--step-log",
        multiple=True,
        expose_value=False,
        callback=_keep(STEP_LOG_KEY),
        metavar="[RUN=]PATH",
        help="A run's own log of steps, or its TensorBoard or W&B files. May be repeated.",
    )
    return server(directory(step(metric(log(verb)))))


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


def _keep(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        context.meta[key] = value

    return callback


def _kept(key: str, default: Any) -> Any:
    context = click.get_current_context(silent=True)
    return default if context is None else context.meta.get(key) or default


@contextmanager
def open_signals(
    prometheus_url: str | None,
    path: Path | None,
    at_ns: int | None = None,
    *,
    is_again: bool = False,
    step_s: float | None = None,
) -> Iterator["Source"]:
    """The source that was named; a directory on the command line goes before a server in the environment.

    at_ns: the moment to look at, where that is not now. is_again: it will be looked at again and again.
    step_s: another grid than that of the command line.
    Steps of runs are taken from where the command line says as well.
    """
    from holdfast.signals.source import STEP_S

    step_s = float(_kept(STEP_KEY, STEP_S)) if step_s is None else step_s
    with _opened(prometheus_url, path, at_ns, step_s) as source:
        yield _stepped(_growing(source) if is_again else source, step_s)


def _growing(source: "Source") -> "Source":
    from holdfast.signals.incremental import IncrementalSource
    from holdfast.signals.prometheus import Prometheus

    return IncrementalSource(source) if isinstance(source, Prometheus) else source


def _stepped(source: "Source", step_s: float) -> "Source":
    from holdfast.signals.step_files import StepFiles, StepLogSource
    from holdfast.signals.stepped import SteppedSource

    for run, path in _logs():
        files = StepFiles(Path(path))
        _remark_on_log(path, files.steps())  # a mistake is told now, and not at every look
        source = StepLogSource(source, files, run, step_s=step_s)
    metric = _kept(STEP_METRIC_KEY, None)
    if not metric:
        return source
    _remark_on_metric(metric, source.metrics())
    return SteppedSource(source, metric)


def _remark_on_metric(metric: str, there: Sequence[str]) -> None:
    """That there is no such metric, on stderr: it may still come."""
    from holdfast.cli.terminal import printable

    if metric in there or f"{metric}_count" in there:
        return
    near = get_close_matches(metric, there, n=1)
    hint = f"Did you mean {near[0]}?" if near else "The signals have no metric that is called nearly so."
    sentence = f"The step metric {metric} is not in the signals: no step can be taken from it."
    click.echo(complaint(printable(sentence), printable(hint)), err=True)


def _logs() -> list[tuple[str, str]]:
    """The run and the path of each step log on the command line."""
    parts = (text.rpartition("=") for text in _kept(STEP_LOG_KEY, ()))
    return [(run or Path(path).stem, path) for run, _, path in parts]


def logged_runs() -> tuple[str, ...]:
    """The runs whose step logs were named: they are watched, whether or not they have made a step yet."""
    return tuple(run for run, _ in _logs())


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
def _opened(
    prometheus_url: str | None, path: Path | None, at_ns: int | None, step_s: float
) -> Iterator["Source"]:
    if prometheus_url is not None and not _is_named("signals_path"):
        from holdfast.signals.credentials import access
        from holdfast.signals.prometheus import Prometheus

        asked = Prometheus(prometheus_url, access=access("PROMETHEUS"), step_s=step_s, as_of_ns=at_ns)
        with asked as server:
            yield server
        return
    from holdfast.signals.store import SignalStore

    with _directory(path) as directory, SignalStore(directory, step_s=step_s) as store:
        yield store


@contextmanager
def _directory(path: Path | None) -> Iterator[Path]:
    """That of the signals. Where none is named and none is there, a step log is enough: then it is empty."""
    directory = home() / SIGNALS_DIRECTORY if path is None else path
    if is_directory(directory):
        yield directory
        return
    if path is not None or not _logs():
        raise InputError(
            f"There are no signals in {directory}.",
            hint="Name a server with --prometheus URL, fill a directory with `holdfast collect`, or name a "
            "run's own log with --step-log PATH.",
        )
    with TemporaryDirectory(prefix="holdfast-") as empty:
        yield Path(empty)


def _is_named(parameter: str) -> bool:
    """Whether the option stands on the command line itself."""
    context = click.get_current_context(silent=True)
    if context is None:
        return False
    return context.get_parameter_source(parameter) is click.core.ParameterSource.COMMANDLINE
