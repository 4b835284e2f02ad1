"""`holdfast diagnose`: why a run is slow, whose problem it is, what it costs and what to do."""

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.incident_text import DiagnoseAnswer, show
from holdfast.cli.prices import load_prices, prices_option
from holdfast.cli.record import home, json_option, open_record, shown_store, store_option
from holdfast.cli.signal_sources import SignalFlags, open_signals, signals_options
from holdfast.cli.standing_text import show_standing
from holdfast.cli.terminal import print_json
from holdfast.cli.topology_sources import known_topology, remark_on_topology, topology_option
from holdfast.cli.values import WINDOW_S_MAX, past_moment_ns, window_seconds
from holdfast.detect.standstill import RanksStanding, standing
from holdfast.diagnose import recorded as diagnosed
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import Casebook, IncidentChange, Taken
from holdfast.diagnose.looking import (
    LookSetting,
    Recalled,
    References,
    look,
    recall,
    sees_machines,
)
from holdfast.diagnose.standing import as_json, is_of, is_open_hang, with_standing
from holdfast.diagnose.weighing import not_measured
from holdfast.diagnose.wording import known_runs
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError, nearest
from holdfast.record.events import RunStarted
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.record.runs import ends_ns, find_run
from holdfast.record.store import Store
from holdfast.signals.flight_dumps import read_dumps
from holdfast.signals.source import Source
from holdfast.signals.stack_files import read_stacks
from holdfast.signals.stepped import last_step_ns, runs_in
from holdfast.topology.discovery.prometheus import labelled_runs
from holdfast.wording import stamp

FRESH_NS_MAX = 600 * 10**9
"""A run of which something was recorded within this time is looked at as it is now, else as it was last; one
that has ended as it was then.
"""
OF_DUMPS = frozenset({"flight_recorder", "check", "as_json"})
"""The options that mean something where dumps are all there is."""


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    run: str | None = argument(required=False)
    at_ns: int | None = option(
        "--at", "As of this time.  [default: now, or its end]", callback=past_moment_ns, metavar="TIME"
    )
    window_s: float = option(
        "--window",
        "How far to look back; where it is not given and the last step is older, so far as that.",
        type=window_seconds,
        default="30m",
        show_default=True,
        metavar="TIME",
    )
    gpus: int | None = option(
        "GPUs of the run, for its cost, where no record says.", type=click.IntRange(1, 10**7)
    )
    flight_recorder: Path | None = option(
        "Dumps of torch's flight recorder of a run that hangs: a folder, or DIR/PREFIX. Without RUN, only "
        "these are looked at.",
        type=click.Path(path_type=Path),
        metavar="DIR",
    )
    check: bool = option("Exit with code 1 if an incident is open, 2 if nothing can be said.", is_flag=True)
    record: bool = option("Write what is found into the record, for `holdfast runbook`.", is_flag=True)
    signals: SignalFlags = shared(signals_options)
    topology_path: Path | None = shared(topology_option)
    prices_path: Path | None = shared(prices_option)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("diagnose")
@takes(_Flags)
def command(given: _Flags) -> int:
    """Say why RUN is slow, whose problem it is, what it costs and what to do; or that nothing is wrong.

    Without RUN it is that of the step log, if one is named, else the one with the newest event.
    """
    told = None if given.flight_recorder is None else _standing(given.flight_recorder)
    if told is not None and given.run is None and not given.signals.logged_runs:
        return _dumps_alone(told, given)
    try:
        answer = _answered(given, told)
        remark_on_topology(given.topology_path)
        is_open = any(incident.ended_ns is None for incident in answer.incidents)
        if given.check and not is_open and not answer.sees_run:
            raise InputError(answer.blindness, hint="Look at another time with --at, or wider with --window.")
    except InputError:
        if told is not None:
            _show_dumps(told, given)
        raise
    if given.as_json:
        print_json(_as_json(answer, told))
    else:
        show(answer)
        if told is not None:
            show_standing(told, remark=_remark(answer, told))
    return int(given.check and is_open)


def _standing(place: Path) -> RanksStanding:
    told = standing(read_dumps(place))
    return msgspec.structs.replace(told, stacks=read_stacks(place, told.holding))


def _dumps_alone(told: RanksStanding, given: _Flags) -> int:
    """Without a run: dumps do not say which one they are of."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        is_typed = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if is_typed and name not in OF_DUMPS:
            raise InputError(f"{parameter.opts[0]} is about a run, and none is named.", hint="Name the RUN.")
    _show_dumps(told, given)
    return int(given.check and bool(told.standstills or told.undumped))


def _show_dumps(told: RanksStanding, given: _Flags) -> None:
    if given.as_json:
        print_json({"flight_recorder": as_json(told)})
    else:
        show_standing(told)


def _remark(answer: DiagnoseAnswer, told: RanksStanding) -> str:
    """Why the dumps do not count as evidence of the hang; empty where they do."""
    hangs = list(filter(is_open_hang, answer.incidents))
    if not hangs:
        return f"The signals do not show that {answer.run} stands."
    if told.standstills and not is_of(hangs[0], told, answer.at_ns):
        return f"These dumps are of another time than {hangs[0].name}, and no evidence of it."
    return ""


def _answered(given: _Flags, recorder: RanksStanding | None) -> DiagnoseAnswer:
    with ExitStack() as stack:
        store = stack.enter_context(open_record(given.store_url))
        run, at_ns = _asked_for(store, given)
        source = stack.enter_context(open_signals(given.signals, at_ns))
        ended = ends_ns(store, [run], at_ns)
        setting = LookSetting(
            store=store,
            source=source,
            cluster=known_topology(given.topology_path, given.signals.prometheus_url, source, at_ns),
            prices=load_prices(given.prices_path),
            window_s=given.window_s if run in ended else _wide_enough_s(source, run, at_ns, given.window_s),
            references=References(store),
        )
        seen = runs_in(source, setting.window_ns(at_ns))
        recorded = {summary.run for summary in store.runs() if summary.run}
        told = {*seen, *labelled_runs(setting.cluster.survey), *given.signals.logged_runs}
        if run not in {*told, *recorded}:
            _refuse(run, told, recorded)
        known = diagnosed.changes_of(store, run)
        # The answer is about this window: it neither reaches back to what the record has open, nor is that
        # over because this one look does not show it.
        book = Casebook(known, now_ns=at_ns)
        assessment = look(setting, [run], at_ns, recalled=_recalled(setting, run, at_ns, given.gpus))
        pace = setting.references.pace(run, at_ns)
        last_ns = None if run in seen else last_step_ns(source, run, at_ns)
        is_seen = sees_machines(source)
        incidents = with_standing(assessment.incidents, recorder, at_ns)
        taken = book.take(incidents, at_ns, unseen={run} - seen, ends_ns=ended)
    if given.record:
        _write(taken.changes)
        known += taken.changes
    return DiagnoseAnswer(
        run=run,
        at_ns=at_ns,
        window_s=setting.window_s,
        sees_run=run in seen,
        incidents=taken.incidents,
        unshown=_unshown(book, taken, at_ns),
        recorded=frozenset(change.incident.name for change in known),
        others=tuple(sorted(seen - {run})),
        again=_again(given, run),
        flaws=assessment.flaws,
        pace=pace,
        last_ns=last_ns,
        sees_machines=is_seen,
        unmeasured=tuple(not_measured(assessment.measured)),
    )


def _wide_enough_s(source: Source, run: str, at_ns: int, window_s: float) -> float:
    """So far back that a run that stands still shows when it stopped, unless the window was asked for."""
    context = click.get_current_context()
    if context.get_parameter_source("window_s") is click.core.ParameterSource.COMMANDLINE:
        return window_s
    last_ns = last_step_ns(source, run, at_ns)
    since_s = 0.0 if last_ns is None else (at_ns - last_ns) / 1e9
    return window_s + since_s if window_s / 2 < since_s <= WINDOW_S_MAX - window_s else window_s


def _recalled(setting: LookSetting, run: str, at_ns: int, gpus: int | None) -> Recalled:
    """What the record says; gpus: how many the run has where it says nothing of that."""
    said = recall(setting, [run], at_ns)
    if gpus is None or any(isinstance(event, RunStarted) and event.gpus for event in said.events):
        return said
    given = RunStarted(id="", occurred_ns=at_ns, run=run, gpus=gpus)
    return msgspec.structs.replace(said, events=(*said.events, given))


def _unshown(book: Casebook, taken: Taken, at_ns: int) -> tuple[Incident, ...]:
    shown = {incident.name for incident in taken.incidents}
    return tuple(one for one in book.open if one.name not in shown and one.noticed_ns <= at_ns)


def _asked_for(store: Store, given: _Flags) -> tuple[str, int]:
    """The run and the moment. A run need not be in the record: signals may be all there is of it."""
    run = given.run or _logged(given.signals.logged_runs) or find_run(store, None)
    now_ns = SystemClock().now_ns()
    if given.at_ns is not None:
        return run, given.at_ns
    found = (summary for summary in store.runs() if summary.run == run and summary.events)
    last_ns = next((summary.last_ns for summary in found), now_ns)
    at_ns = now_ns if now_ns - last_ns < FRESH_NS_MAX else last_ns
    return run, ends_ns(store, [run], at_ns).get(run, at_ns)


def _logged(runs: tuple[str, ...]) -> str | None:
    """The run of the step log that was named."""
    if len(runs) > 1:
        raise InputError("Several step logs are given, and no RUN.", hint=f"Name one of {', '.join(runs)}.")
    return next(iter(runs), None)


def _refuse(run: str, seen: Collection[str], recorded: Collection[str]) -> NoReturn:
    listed = f"{known_runs(sorted(seen))} `holdfast runs` lists those of the record.".lstrip()
    hint = nearest(run, sorted({*seen, *recorded}), listed, likeness=0.4, quote="'")
    raise InputError(f"Neither the record nor the signals know a run {run!r}.", hint=hint)


def _again(given: _Flags, run: str) -> tuple[str, ...]:
    """The command that was given, with --record; what the environment says it will say again."""
    from holdfast.signals.prometheus import place

    context, signals = click.get_current_context(), given.signals
    values = {
        "at_ns": None if given.at_ns is None else stamp(given.at_ns).replace(" ", "T"),
        "window_s": f"{given.window_s:g}s",
        "gpus": given.gpus,
        "flight_recorder": given.flight_recorder,
        "step_s": f"{signals.step_s:g}s",
        "step_metric": signals.step_metric,
        "prometheus_url": signals.prometheus_url and place(signals.prometheus_url),
        "signals_path": signals.signals_path,
        "topology_path": given.topology_path,
        "prices_path": given.prices_path,
        "store_url": shown_store(given.store_url or ""),
    }
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    typed = [
        word
        for name, value in values.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        for word in (options[name], str(value))
    ]
    typed += [word for path in signals.step_log for word in ("--step-log", path)]
    return ("holdfast", "diagnose", run, "--record", *typed)


def _write(changes: Iterable[IncidentChange]) -> None:
    with Recorder(home() / JOURNAL_DIRECTORY) as recorder:
        for change in changes:
            diagnosed.write(recorder, change)


def _as_json(answer: DiagnoseAnswer, told: RanksStanding | None) -> dict[str, object]:
    """An incident's cause, domain, owner and so on are its own keys."""
    return {
        "run": answer.run,
        "at": stamp(answer.at_ns),
        "at_ns": answer.at_ns,
        "window_s": answer.window_s,
        "incidents": answer.incidents,
        "unshown": [incident.name for incident in answer.unshown],
        "pace": answer.pace,
        "flight_recorder": None if told is None else as_json(told),
        "quality": {
            "sees_run": answer.sees_run,
            "sees_machines": answer.sees_machines,
            "flaws": answer.flaws,
            "unmeasured": [what for what, _ in answer.unmeasured],
        },
    }
