"""`holdfast diagnose`: why a run is slow, who owns the problem, what it costs and what to do."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

from holdfast import wording
from holdfast.cli.flags import argument, is_typed, option, shared, takes
from holdfast.cli.incident_text import show
from holdfast.cli.prices import load_prices, prices_option
from holdfast.cli.record import home, json_option, open_record, shown_store, store_option
from holdfast.cli.signal_sources import SignalFlags, open_signals, signals_options
from holdfast.cli.standing_text import show_standing
from holdfast.cli.terminal import print_json
from holdfast.cli.topology_sources import known_topology, remark_on_topology, topology_option
from holdfast.cli.values import past_moment_ns, window_seconds
from holdfast.detect.standstill import RanksStanding, standing
from holdfast.diagnose import recorded as diagnosed
from holdfast.diagnose.answering import DiagnoseAnswer, DiagnoseQuestion, answered, asked_for
from holdfast.diagnose.lifecycle import IncidentChange
from holdfast.diagnose.standing import as_json, is_of, is_open_hang
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.record.runs import find_run, known_run, run_names
from holdfast.record.store import Store
from holdfast.signals.flight_dumps import read_dumps
from holdfast.signals.stack_files import read_stacks
from holdfast.wording import stamp

OF_DUMPS = frozenset({"flight_recorder", "check", "as_json"})
"""The options that have a meaning without a run, for dumps alone."""


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    run: str | None = argument(required=False)
    at_ns: int | None = option(
        "--at", "As of this time.  [default: now, or its end]", callback=past_moment_ns, metavar="TIME"
    )
    window_s: float = option(
        "--window",
        "How far to look back. If it is not given and the last step is older, as far as that step.",
        type=window_seconds,
        default="30m",
        show_default=True,
        metavar="TIME",
    )
    gpus: int | None = option(
        "GPUs of the run, for its cost, if the record does not have them.", type=click.IntRange(1, 10**7)
    )
    flight_recorder: Path | None = option(
        "Dumps of torch's flight recorder of a run that hangs: a folder, or DIR/PREFIX. Without RUN, only "
        "these are read.",
        metavar="DIR",
    )
    check: bool = option("Exit with code 1 if an incident is open, 2 if nothing is known.")
    record: bool = option("Write the findings into the record, for `holdfast runbook`.")
    signals: SignalFlags = shared(signals_options)
    topology_path: Path | None = shared(topology_option)
    prices_path: Path | None = shared(prices_option)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("diagnose")
@takes(_Flags)
def command(given: _Flags) -> int:
    """Say why RUN is slow, who owns the problem, what it costs and what to do; or that nothing is wrong.

    Without RUN: the run of the step log, if one is named, else the run with the newest event.
    """
    told = None if given.flight_recorder is None else _standing(given.flight_recorder)
    if told is not None and given.run is None and not given.signals.logged_runs:
        return _dumps_alone(told, given)
    try:
        answer = _answered(given, told)
        if answer.sees_machines:
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
    """Show the dumps without a run: dumps do not name the run that they belong to."""
    for parameter in click.get_current_context().command.params:
        name = parameter.name or ""
        if is_typed(name) and name not in OF_DUMPS:
            raise InputError(f"{parameter.opts[0]} needs a run, and none is named.", hint="Name the RUN.")
    _show_dumps(told, given)
    return int(given.check and bool(told.standstills or told.undumped))


def _show_dumps(told: RanksStanding, given: _Flags) -> None:
    if given.as_json:
        print_json({"flight_recorder": as_json(told)})
    else:
        show_standing(told)


def _remark(answer: DiagnoseAnswer, told: RanksStanding) -> str:
    """Why the dumps do not count as evidence of the hang; empty if they do."""
    hangs = list(filter(is_open_hang, answer.incidents))
    if not hangs:
        return f"The steps of {answer.run} do not show that it stands."
    if told.standstills and not is_of(hangs[0], told, answer.at_ns):
        return f"These dumps are from another time than {hangs[0].name}, so they are not evidence of it."
    return ""


def _answered(given: _Flags, ranks: RanksStanding | None) -> DiagnoseAnswer:
    with ExitStack() as stack:
        store = stack.enter_context(open_record(given.store_url))
        logged = given.signals.logged_runs
        run, at_ns = asked_for(store, _meant(given, store), given.at_ns, logged, SystemClock().now_ns())
        source = stack.enter_context(
            open_signals(given.signals, at_ns, window_s=given.window_s, may_lack=True)
        )
        if not (given.signals.is_named or source.metrics()):
            find_run(store, run)  # without signals only the record can have the run
        cluster = known_topology(given.topology_path, given.signals.prometheus_url, source, at_ns)
        question = DiagnoseQuestion(
            run=run,
            at_ns=at_ns,
            window_s=given.window_s,
            is_exact=is_typed("window_s"),
            logged=logged,
            gpus=given.gpus,
            ranks=ranks,
        )
        answer, changes = answered(question, store, source, cluster, load_prices(given.prices_path))
        name = run_names(store, run).get(run, "")
    recorded = answer.recorded
    if given.record:
        _write(changes)
        recorded |= {change.incident.name for change in changes}
    return msgspec.structs.replace(answer, recorded=recorded, name=name, again=_again(given, run))


def _meant(given: _Flags, store: Store) -> str | None:
    """The id of the run, if the record has it; signals may have others, of which it says nothing."""
    run = given.run
    if run is None or run in given.signals.logged_runs:
        return run
    return known_run(store, run) or run


def _again(given: _Flags, run: str) -> tuple[str, ...]:
    """The command that was given, with --record but without values from the environment."""
    from holdfast.signals.prometheus import place

    signals = given.signals
    values = {
        "at_ns": None if given.at_ns is None else stamp(given.at_ns).replace(" ", "T"),
        "window_s": f"{wording.plain(given.window_s)}s",
        "gpus": given.gpus,
        "flight_recorder": given.flight_recorder,
        "step_s": None if signals.step_s is None else f"{wording.plain(signals.step_s)}s",
        "step_metric": signals.step_metric,
        "prometheus_url": signals.prometheus_url and place(signals.prometheus_url),
        "signals_path": signals.signals_path,
        "topology_path": given.topology_path,
        "prices_path": given.prices_path,
        "store_url": shown_store(given.store_url or ""),
    }
    options = {one.name: one.opts[0] for one in click.get_current_context().command.params}
    named = {options[name]: str(value) for name, value in values.items() if is_typed(name)}
    typed = [word for pair in named.items() for word in pair]
    typed += [word for path in signals.step_log for word in ("--step-log", path)]
    return ("holdfast", "diagnose", run, "--record", *typed)


def _write(changes: Iterable[IncidentChange]) -> None:
    with Recorder(home() / JOURNAL_DIRECTORY) as recorder:
        for change in changes:
            diagnosed.write(recorder, change)


def _as_json(answer: DiagnoseAnswer, told: RanksStanding | None) -> dict[str, object]:
    """The answer as JSON has it. An incident's cause, domain, owner and so on are its own keys."""
    return {
        "run": answer.run,
        "run_name": answer.name,
        "at": stamp(answer.at_ns),
        "at_ns": answer.at_ns,
        "window_s": answer.window_s,
        "incidents": answer.incidents,
        "unshown": [incident.name for incident in answer.unshown],
        "pace": answer.pace,
        "past": answer.past,
        "members": answer.members,
        "flight_recorder": None if told is None else as_json(told),
        "quality": {
            "sees_run": answer.sees_run,
            "steps_from": "nowhere" if answer.reading is None else answer.reading.steps_from,
            "sees_signals": answer.sees_signals,
            "sees_machines": answer.sees_machines,
            "flaws": answer.flaws,
            "unmeasured": [what for what, _ in answer.unmeasured],
        },
    }
