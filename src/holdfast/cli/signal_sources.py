"""Opens signals for the verbs: from a Prometheus-compatible server, or from the embedded store."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from holdfast.cli.flags import is_typed, option, together
from holdfast.cli.record import home
from holdfast.cli.terminal import tell
from holdfast.wording.parsing import some_seconds

if TYPE_CHECKING:
    from holdfast.signals.source import Source

Given = TypeVar("Given", str, tuple[str, ...], None)


def url_option(context: click.Context, parameter: click.Parameter, given: Given) -> Given:
    """The callback of an option that takes URLs, each of which may be in a file (@FILE)."""
    if not given:
        return given
    from holdfast.signals.credentials import spelled_out  # loads an HTTP client

    what = parameter.opts[0]
    if isinstance(given, str):
        return spelled_out(given, what=what)
    if isinstance(given, tuple):
        return tuple(spelled_out(one, what=what) for one in given)
    return given


class SignalFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags for the source of signals, and for the steps of runs."""

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
    step_s: float | None = option(
        "--step",
        "Look at samples about this far apart.  [default: as they were taken, or 10s]",
        type=some_seconds,
        metavar="TIME",
    )
    step_metric: str | None = option(
        "A metric with the number or the time of runs' steps.  [default: $HOLDFAST_STEP_METRIC]",
        envvar="HOLDFAST_STEP_METRIC",
        metavar="NAME",
    )
    step_log: tuple[str, ...] = option(
        "A run's own log of steps, or its TensorBoard or W&B files. May be repeated.", metavar="[RUN=]PATH"
    )

    @property
    def logs(self) -> tuple[tuple[str, str], ...]:
        """The run and the path of each step log."""
        parts = (text.rpartition("=") for text in self.step_log)
        return tuple((run or Path(path).stem, path) for run, _, path in parts)

    @property
    def logged_runs(self) -> tuple[str, ...]:
        """The runs with a step log: they are watched even before their first step."""
        return tuple(run for run, _ in self.logs)

    @property
    def is_named(self) -> bool:
        """Whether any source is named; otherwise there may be none."""
        return bool(self.prometheus_url or self.signals_path or self.step_log)


signals_options = together(SignalFlags, "signals")


@contextmanager
def open_signals(
    asked: SignalFlags,
    at_ns: int | None = None,
    *,
    window_s: float,
    is_again: bool = False,
    may_lack: bool = False,
) -> Iterator["Source"]:
    """Open the source; a directory on the command line takes precedence over a server in the environment.

    at_ns: the moment to look at; None: now. window_s: how far back it is looked. is_again: the source will be
    read repeatedly. may_lack: if no signals are named or stored, the source is empty.
    """
    from holdfast.signals.opening import SIGNALS_DIRECTORY, SignalPlace, opened
    from holdfast.signals.source import fine_step_s

    place = SignalPlace(
        url=None if is_typed("signals_path") else asked.prometheus_url,
        directory=asked.signals_path or home() / SIGNALS_DIRECTORY,
        is_named=asked.signals_path is not None,
        step_s=fine_step_s(window_s) if asked.step_s is None else asked.step_s,
        may_lack=may_lack,
        step_metric=asked.step_metric,
        logs=asked.logs,
    )
    with opened(place, tell, at_ns, is_again=is_again) as source:
        yield source
