"""`holdfast replay`: compute one lane of one step of a run again, and compare it with the record."""

import os
from pathlib import Path

import click

from holdfast.cli.record import home, json_option, open_record
from holdfast.cli.terminal import print_json
from holdfast.record.runs import find_run
from holdfast.run.endpoint import run_directory
from holdfast.run.lane_replay import RecordedLane, ReplayResult
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

    The script trains alone from the newest checkpoint before the step. Exit code 0: the same bits, or
    the record has none to compare with; 1: other bits.
    """
    with open_record(os.environ.get("HOLDFAST_STORE")) as store:
        run = find_run(store, run)
        lane_of = RecordedLane.read(store, run, step, lane)
    place = checkpoints or run_directory(home(), run) / CHECKPOINTS_DIRECTORY
    result = lane_of.replayed(place, (script, *arguments))
    if as_json:
        print_json(result)
    else:
        click.echo(_text(result))
    return 0 if result.is_good else 1


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
