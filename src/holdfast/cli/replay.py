"""`holdfast replay`: compute one lane of one step of a run again, and hold it against what was recorded."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from holdfast.cli.record import home, json_option, open_record
from holdfast.cli.terminal import print_json
from holdfast.record.errors import InputError
from holdfast.record.events import LaneExamined, StepCommitted
from holdfast.record.runs import find_run
from holdfast.record.store import Selection, Store
from holdfast.run.endpoint import run_directory
from holdfast.run.launcher import CHECKPOINTS_DIRECTORY
from holdfast.run.replaying import Replayed, ReplayOrder, compute


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """A lane, as it was computed again, and as the record has it, where it does.

    begun         the step of the checkpoint it went on from; 0: the run's beginning
    is_steady     computed twice it had the same bits
    is_same       the same bits as recorded; None: nothing is recorded of this lane
    """

    run: str
    step: int
    lane: int
    begun: int
    loss: str
    norm: str
    print: str
    recorded_loss: str
    recorded_print: str
    is_steady: bool
    is_same: bool | None


@click.command("replay", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("run")
@click.argument("step", type=click.IntRange(min=1))
@click.argument("lane", type=click.IntRange(min=0))
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the run's are.  [default: $HOLDFAST_HOME/runs/RUN/checkpoints]",
)
@json_option
def command(
    run: str,
    step: int,
    lane: int,
    script: str,
    arguments: tuple[str, ...],
    checkpoints: Path | None,
    as_json: bool,
) -> int:
    """Compute LANE of STEP of RUN again, with its SCRIPT and ARGUMENTS, and compare it with the record.

    The script trains alone from the newest checkpoint before the step. Exit code 0: the same bits; 1: others.
    """
    with open_record(os.environ.get("HOLDFAST_STORE")) as store:
        run = find_run(store, run)
        last = max((event.step for event in _committed(store, run)), default=0)
        order = ReplayOrder(step=step, lane=lane, result="").told_of(store, run)
        examined = [
            event
            for event in store.select(Selection(run=run, kinds=("lane.examined",)))
            if isinstance(event, LaneExamined) and (event.step, event.lane) == (step, lane)
        ]
    _check_step(run, step, last)
    place = checkpoints or run_directory(home(), run) / CHECKPOINTS_DIRECTORY
    with tempfile.TemporaryDirectory(prefix="holdfast-replay-") as directory:
        order = msgspec.structs.replace(order, result=f"{directory}/result.json")
        found = compute(order, place, (script, *arguments), Replayed)
    result = _compare(run, order, found, examined[-1] if examined else None)
    if as_json:
        print_json(result)
    else:
        click.echo(_text(result))
    return 0 if result.is_same is not False and result.is_steady else 1


def _committed(store: Store, run: str) -> Iterator[StepCommitted]:
    found = store.select(Selection(run=run, kinds=("step.committed",)))
    return (event for event in found if isinstance(event, StepCommitted))


def _check_step(run: str, step: int, last: int) -> None:
    """The one after the last may have been begun, and be why the run ended."""
    if last and step > last + 1:
        raise InputError(
            f"The run {run} has no step {step}: it came to step {last}.", hint="Name one it has."
        )


def _compare(run: str, order: ReplayOrder, found: Replayed, recorded: LaneExamined | None) -> ReplayResult:
    assert order.lane is not None
    first, second = found.prints
    return ReplayResult(
        run=run,
        step=order.step,
        lane=order.lane,
        begun=found.begun,
        loss=found.loss,
        norm=found.norm,
        print=first,
        recorded_loss="" if recorded is None else recorded.loss,
        recorded_print="" if recorded is None else recorded.print,
        is_steady=first == second,
        is_same=None if recorded is None else recorded.print == first,
    )


def _text(result: ReplayResult) -> str:
    begun = f"from the checkpoint of step {result.begun}" if result.begun else "from the run's beginning"
    lines = [
        f"lane {result.lane} of step {result.step} of {result.run}, {begun}",
        f"loss      {result.loss}",
        f"gradient  norm {result.norm}, print {result.print}",
    ]
    if not result.is_steady:
        lines.append("Computed twice here, it had different bits: a kernel is not deterministic.")
    elif result.is_same is None:
        lines.append(
            "Computed twice here, it had the same bits. The record has none of this lane to compare."
        )
    elif result.is_same:
        lines.append(f"The same bits as recorded ({result.recorded_print}).")
    else:
        lines.append(
            f"Other bits than recorded ({result.recorded_print}): the run's were corrupted, in this step or "
            "before; or script, data, versions or chip are not the same."
        )
    return "\n".join(lines)
