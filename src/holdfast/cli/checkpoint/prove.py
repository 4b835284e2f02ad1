"""`holdfast checkpoint prove`: whether a run can really go on from its newest checkpoint."""

import os
import shlex
import tempfile
from pathlib import Path

import click

from holdfast.cli.checkpoint.place import located, run_of
from holdfast.cli.record import home, json_option, open_record
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import InputError
from holdfast.record.events import CheckpointVerified, StepWitnessed
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.record.runs import find_run
from holdfast.record.store import Selection, Store
from holdfast.run.replaying import PROOF_STEPS_MAX, Recomputed, ReplayOrder, compute

SAME = "script, arguments, data, versions or chip may also not be those of the run"


@click.command("prove", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("run_or_path")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--run", help="The run in the record, where a path does not tell.")
@click.option(
    "--steps-max",
    type=click.IntRange(min=1),
    default=PROOF_STEPS_MAX,
    show_default=True,
    help="How many steps may be computed if the run has not gone on from it yet.",
)
@json_option
def command(
    run_or_path: str,
    script: str,
    arguments: tuple[str, ...],
    run: str | None,
    steps_max: int,
    as_json: bool,
) -> int:
    """Load the newest checkpoint of RUN_OR_PATH into a fresh process, with the run's SCRIPT and ARGUMENTS,
    compute the step after it, and compare the result with the run's. If the run has not gone on from it, the
    steps that led to it are computed again. Exit code 0: the same bits; 1: others.

    The record says what was found.
    """
    path = located(run_or_path)
    from holdfast.train.opening import ACCESS_HINT, root_of
    from holdfast.train.proving import FarCheckpoints, judge_proof, plan_proof

    root = root_of(path if path.is_dir() else path.parent)
    again = ("holdfast", "checkpoint", "prove", *(("--run", run) if run else ()))
    given = (run_or_path, script, *arguments)
    name = run or run_of(root.absolute())
    with (
        open_record(os.environ.get("HOLDFAST_STORE")) as store,
        tempfile.TemporaryDirectory(prefix="holdfast-prove-") as directory,
    ):
        name = find_run(store, name) if name else ""
        witnessed = _witnessed(store, name) if name else {}
        try:
            plan = plan_proof(root, witnessed, steps_max)
        except FarCheckpoints as error:
            more = error.hint
            if error.steps is not None:
                more += f" Or: {shlex.join((*again, '--steps-max', str(error.steps), *given))}"
            raise InputError(error.sentence, hint=more) from None
        except OSError as error:
            raise InputError(f"Cannot read {root}: {error.strerror}.", hint=ACCESS_HINT) from None
        order = ReplayOrder(
            step=plan.computed, lane=None, result=f"{directory}/result.json", begins=plan.begun
        )
        order = order.told_of(store, name) if name else order
        try:
            found = compute(order, root, (script, *arguments), Recomputed)
        except InputError as error:
            whole = f"{shlex.join((*again, run_or_path, script))} ARGUMENTS"
            raise InputError(error.sentence, hint=f"With the run's own arguments: {whole}") from None
    proof = judge_proof(plan, found, witnessed.get(plan.computed))
    if not proof.is_proven and not Path(plan.place).exists():
        raise InputError(
            f"The checkpoint of step {plan.step} was removed while it was proven: there are newer ones.",
            hint=f"Try again: {shlex.join((*again, *given))}",
        )
    if name:
        _record(name, proof.step, proof.place, proof.is_proven, proof.reason)
    if as_json:
        print_json(proof)
    else:
        verdict = "proven" if proof.is_proven else "NOT proven"
        click.echo(f"checkpoint of step {proof.step} in {printable(str(root))}: {verdict}")
        click.echo(f"{proof.reason[0].upper()}{proof.reason[1:]}{'' if proof.is_proven else f' ({SAME})'}.")
    return 0 if proof.is_proven else 1


def _witnessed(store: Store, run: str) -> dict[int, StepWitnessed]:
    """By step; of a step that was done again, the last."""
    found = store.select(Selection(run=run, kinds=("step.witnessed",)))
    return {event.step: event for event in found if isinstance(event, StepWitnessed)}


def _record(run: str, step: int, place: str, is_proven: bool, reason: str) -> None:
    with Recorder(home() / JOURNAL_DIRECTORY, run=run) as recorder:
        recorder.record(CheckpointVerified, step=step, sound=is_proven, reason=reason, place=str(Path(place)))
