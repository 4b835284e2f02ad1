"""`holdfast checkpoint prove`: whether a run can really go on from its newest checkpoint."""

import os
import shlex
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli.checkpoint.place import located, run_of
from holdfast.cli.checkpoint.remote import is_remote, passing, place_of, troubles_told
from holdfast.cli.record import home, json_option, open_record
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import InputError
from holdfast.record.events import CheckpointVerified, StepWitnessed
from holdfast.record.files import make_private_directory
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.record.runs import find_run
from holdfast.record.store import Selection, Store
from holdfast.run.replaying import PROOF_STEPS_MAX, Recomputed, ReplayOrder, compute

if TYPE_CHECKING:
    from holdfast.train.place import Storage
    from holdfast.train.proving import CheckpointProof, FarCheckpoints, ProofPlan

LOOKS_MAX = 8
"""How often a directory is looked at again because a checkpoint in it was gone before it was held."""
SAME = "script, arguments, data, versions or chip may also not be those of the run"


@click.command("prove", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("run_or_path")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--run", help="The run in the record, where a path or URL does not tell.")
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
    steps that led to it are computed again. RUN_OR_PATH may be s3://BUCKET/PREFIX, too. Exit code 0: the same
    bits; 1: others, or it is damaged.

    The record says what was found.
    """
    remote = place_of(run_or_path) if is_remote(run_or_path) else None
    asked = _Asked(run_or_path, (script, *arguments), run, steps_max)
    root = None if remote is not None else _root(run_or_path)
    name = run or ("" if root is None else run_of(root.absolute()))
    with open_record(os.environ.get("HOLDFAST_STORE")) as store:
        if remote is not None and not name:
            name = _owner(remote, store)
        name = find_run(store, name) if name else ""
        known = _Known(store, name, _witnessed(store, name) if name else {})
        if remote is not None:
            proof = _proven_there(remote, known, asked)
        else:
            assert root is not None
            proof = _proven_here(root, known, asked)
    if name:
        _record(name, proof)
    if as_json:
        print_json(proof)
    else:
        verdict = "proven" if proof.is_proven else "NOT proven"
        where = remote.name if remote is not None else str(root)
        click.echo(f"checkpoint of step {proof.step} in {printable(where)}: {verdict}")
        click.echo(f"{proof.reason[0].upper()}{proof.reason[1:]}{'' if proof.is_proven else f' ({SAME})'}.")
    return 0 if proof.is_proven else 1


class _Asked(NamedTuple):
    """What the user has written."""

    run_or_path: str
    words: tuple[str, ...]
    run: str | None
    steps_max: int

    def command(self, *flags: str, words: tuple[str, ...] | None = None) -> str:
        """The same, with other flags or words."""
        named = ("--run", self.run) if self.run else ()
        given = self.words if words is None else words
        return shlex.join(("holdfast", "checkpoint", "prove", *named, *flags, self.run_or_path, *given))


class _Known(NamedTuple):
    """What the record has of the run; name: empty if it has nothing."""

    store: Store
    name: str
    witnessed: Mapping[int, StepWitnessed]


def _root(run_or_path: str) -> Path:
    from holdfast.train.kept import root_of

    return root_of(located(run_or_path))


def _owner(place: "Storage", store: Store) -> str:
    """The run that the place belongs to, if the record here has it."""
    from holdfast.train.owning import owner_at

    with troubles_told(place):
        owner = owner_at(place)
    return owner if owner in {summary.run for summary in store.runs()} else ""


def _proven_here(root: Path, known: _Known, asked: _Asked) -> "CheckpointProof":
    """While it lasts, the run removes nothing that is computed with."""
    from holdfast.train.holds import held
    from holdfast.train.kept import ACCESS_HINT, fault_of, kept_steps, manifest_path
    from holdfast.train.proving import FarCheckpoints, plan_proof, refuted

    with ExitStack() as holding:
        for _ in range(LOOKS_MAX):
            try:
                plan = plan_proof(root, known.witnessed, asked.steps_max)
            except FarCheckpoints as error:
                raise _nearer(error, asked) from None
            except OSError as error:
                raise InputError(f"Cannot read {root}: {error.strerror}.", hint=ACCESS_HINT) from None
            holding.enter_context(held(root, plan.steps))
            if all(manifest_path(root, step).exists() for step in plan.steps):
                break  # else the run was quicker to remove one as old
        try:
            proof = _computed(plan, root, known, asked)
        except InputError:
            # A script that finds nothing to load ends like one that was given other arguments.
            for kept in kept_steps(root):
                if kept.step in plan.steps and (fault := fault_of(kept, is_thorough=True)):
                    return refuted(plan, f"step {kept.step} could not be loaded: {fault}")
            raise
    if not proof.is_proven and not Path(plan.place).exists():
        raise InputError(
            f"The checkpoint of step {plan.step} was removed while it was proven: there are newer ones.",
            hint=f"Try again: {asked.command()}",
        )
    return proof


def _proven_there(place: "Storage", known: _Known, asked: _Asked) -> "CheckpointProof":
    """What is computed with is fetched into the home, and gone again when this returns."""
    from holdfast.train.chunks import Unsound
    from holdfast.train.copying import steps_in
    from holdfast.train.fetched import fetch_steps
    from holdfast.train.proving import FarCheckpoints, ProvableStep, plan_among, refuted

    with troubles_told(place):
        there = [kept for kept in steps_in(place.listed()) if kept.is_complete]
    provable = [ProvableStep(one.step, len(one.keys), f"{place.name}/{one.pattern}") for one in there]
    try:
        plan = plan_among(provable, place.name, known.witnessed, asked.steps_max)
    except FarCheckpoints as error:
        raise _nearer(error, asked) from None
    wanted = [kept for kept in there if kept.step in plan.steps and len(kept.keys) == 1]
    make_private_directory(home())
    with passing(home()) as directory:
        try:
            with troubles_told(place):
                fetch_steps(place, wanted, directory)
        except Unsound as error:
            return refuted(plan, str(error))
        return _computed(plan, directory, known, asked)


def _computed(plan: "ProofPlan", root: Path, known: _Known, asked: _Asked) -> "CheckpointProof":
    """With the script, from the checkpoints in this directory. Raises `InputError`."""
    from holdfast.train.proving import judge_proof

    with tempfile.TemporaryDirectory(prefix="holdfast-prove-") as directory:
        order = ReplayOrder(
            step=plan.computed, lane=None, result=f"{directory}/result.json", begins=plan.begun
        )
        order = order.told_of(known.store, known.name) if known.name else order
        try:
            found = compute(order, root, asked.words, Recomputed)
        except InputError as error:
            whole = f"{asked.command(words=asked.words[:1])} ARGUMENTS"
            raise InputError(error.sentence, hint=f"With the run's own arguments: {whole}") from None
    return judge_proof(plan, found, known.witnessed.get(plan.computed))


def _nearer(far: "FarCheckpoints", asked: _Asked) -> InputError:
    more = far.hint
    if far.steps is not None:
        more += f" Or: {asked.command('--steps-max', str(far.steps))}"
    return InputError(far.sentence, hint=more)


def _witnessed(store: Store, run: str) -> dict[int, StepWitnessed]:
    """By step; of a step that was done again, the last."""
    found = store.select(Selection(run=run, kinds=("step.witnessed",)))
    return {event.step: event for event in found if isinstance(event, StepWitnessed)}


def _record(run: str, proof: "CheckpointProof") -> None:
    with Recorder(home() / JOURNAL_DIRECTORY, run=run) as recorder:
        recorder.record(
            CheckpointVerified,
            step=proof.step,
            sound=proof.is_proven,
            reason=proof.reason,
            place=proof.place,
        )
