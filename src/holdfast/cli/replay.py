"""`holdfast replay`: compute one lane of one step of a run again, and compare it with the record."""

import os
import sys
from pathlib import Path

import click

from holdfast import wording
from holdfast.cli.record import home, json_option, open_record
from holdfast.cli.terminal import print_json, say
from holdfast.record.errors import InputError
from holdfast.record.runs import find_run
from holdfast.run.endpoint import run_directory
from holdfast.run.lane_replay import LONG_S, RecordedLane, ReplayEstimate, ReplayResult
from holdfast.run.launcher import CHECKPOINTS_DIRECTORY


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
    help="The run's checkpoints.  [default: $HOLDFAST_HOME/runs/RUN/checkpoints]",
)
@click.option(
    "--long", "is_long_wanted", is_flag=True, help=f"Compute it even if that takes more than {LONG_S:g} s."
)
@json_option
def command(
    run: str,
    step: int,
    lane: int,
    script: str,
    arguments: tuple[str, ...],
    checkpoints: Path | None,
    is_long_wanted: bool,
    as_json: bool,
) -> int:
    """Compute LANE of STEP of RUN again, with its SCRIPT and ARGUMENTS, and compare it with the record.

    The script trains alone from the newest checkpoint before the step. How long that takes is said
    first, and asked about if it is long. Exit code 0: the same bits, or the record has none to compare
    with; 1: other bits.
    """
    with open_record(os.environ.get("HOLDFAST_STORE")) as store:
        run = find_run(store, run)
        lane_of = RecordedLane.read(store, run, step, lane)
    place = checkpoints or run_directory(home(), run) / CHECKPOINTS_DIRECTORY
    estimate = lane_of.estimated(_kept(place))
    if estimate.is_long and not is_long_wanted:
        _ask(lane_of, estimate)
    else:
        say(f"{_begun(estimate.begun)}, {_effort(lane_of, estimate)}")
    result = lane_of.replayed(place, (script, *arguments))
    if as_json:
        print_json(result)
    else:
        click.echo(_text(result))
    return 0 if result.is_good else 1


def _kept(place: Path) -> list[int]:
    """The steps of the checkpoints there."""
    from holdfast.train.kept import ACCESS_HINT, kept_steps

    try:
        return [one.step for one in kept_steps(place) if one.is_complete]
    except OSError as error:
        raise InputError(f"Cannot read {place}: {error.strerror}.", hint=ACCESS_HINT) from None


def _ask(lane_of: RecordedLane, estimate: ReplayEstimate) -> None:
    """Ask whether a long replay is wanted. Raise `InputError` if it is not, or the user cannot be asked."""
    nearest = estimate.nearest
    told = (
        f"A replay of step {lane_of.order.step} begins {_begun(estimate.begun)}: "
        f"{_effort(lane_of, estimate)}."
    )
    other = ""
    if nearest is not None:
        other = f"The nearest checkpoint is of step {nearest}: from step {nearest + 1} on a replay is short. "
    if sys.stdin.isatty() and sys.stderr.isatty():
        say(f"{told} {other}".rstrip())
        if click.confirm("Compute it?", err=True):
            return
        raise InputError("Nothing was computed.", hint="--checkpoints names others of this run.")
    raise InputError(
        told, hint=f"{other}--checkpoints names others of this run; --long before the run computes it anyway."
    )


def _begun(begun: int) -> str:
    return f"from the checkpoint of step {begun}" if begun else "from the run's beginning"


def _effort(lane_of: RecordedLane, estimate: ReplayEstimate) -> str:
    """How many steps, and how long."""
    steps = wording.many(estimate.steps, "step")
    if estimate.seconds is None or lane_of.step_ns is None:
        return f"{steps} to compute, at a pace that the record does not tell"
    alone = f", by one member instead of {lane_of.members}" if lane_of.members > 1 else ""
    took, pace = wording.lasting(estimate.seconds), wording.duration(round(lane_of.step_ns))
    return f"{steps} to compute, about {took} at the recorded pace ({pace} a step{alone})"


def _text(result: ReplayResult) -> str:
    lines = [
        f"lane {result.lane} of step {result.step} of {result.run}, {_begun(result.begun)}",
        f"loss      {result.loss}",
        f"gradient  norm {result.norm}, print {result.print}",
    ]
    if not result.is_steady:
        lines.append("Computed twice here, it had different bits: a kernel is not deterministic.")
    elif result.is_same is None:
        lines.append(
            "Computed twice here, it had the same bits. The record has no print of this lane to compare."
        )
    elif result.is_same:
        lines.append(f"The same bits as recorded ({result.recorded_print}).")
    else:
        lines.append(
            f"Other bits than recorded ({result.recorded_print}): the run's were corrupted, in this step or "
            "before; or script, data, versions or chip are not the same."
        )
    return "\n".join(lines)
