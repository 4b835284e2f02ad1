"""Proves that a run can resume from its newest checkpoint, in a directory or in object storage."""

import shlex
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from holdfast.record.errors import InputError
from holdfast.record.events import CheckpointVerified, StepWitnessed
from holdfast.record.files import make_private_directory
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.record.store import Selection, Store
from holdfast.run.replaying import Recomputed, ReplayOrder, compute
from holdfast.train.chunks import Unsound
from holdfast.train.copying import steps_in
from holdfast.train.fetched import fetch_steps, passing, troubles_told
from holdfast.train.holds import held
from holdfast.train.kept import ACCESS_HINT, fault_of, kept_steps, manifest_path
from holdfast.train.place import Storage
from holdfast.train.proving import (
    CheckpointProof,
    FarCheckpoints,
    ProofPlan,
    ProvableStep,
    judge_proof,
    plan_among,
    plan_proof,
    refuted,
)

LOOKS_MAX = 8
"""How often a directory is listed again because a checkpoint in it was gone before it was held."""


class ProofRequest(NamedTuple):
    """The user's command."""

    run_or_path: str
    words: tuple[str, ...]
    run: str | None
    steps_max: int

    def command(self, *flags: str, words: tuple[str, ...] | None = None) -> str:
        """The same command with other flags or words."""
        named = ("--run", self.run) if self.run else ()
        given = self.words if words is None else words
        return shlex.join(("holdfast", "checkpoint", "prove", *named, *flags, self.run_or_path, *given))


class ProofRecord(NamedTuple):
    """What the record has of the run; name: empty if it has nothing."""

    store: Store
    name: str
    witnessed: Mapping[int, StepWitnessed]

    @classmethod
    def of(cls, store: Store, name: str) -> "ProofRecord":
        """The record of a run. If a step was done again, the last time counts."""
        found = store.select(Selection(run=name, kinds=("step.witnessed",))) if name else ()
        return cls(
            store, name, {one.step: one for one in found if isinstance(one, StepWitnessed) and one.print}
        )


def proven_in(root: Path, known: ProofRecord, asked: ProofRequest) -> CheckpointProof:
    """Prove the newest checkpoint of a directory. Meanwhile the run does not remove the
    checkpoints it uses.
    """
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
                break  # else the run has already removed one as old
        try:
            proof = _computed(plan, root, known, asked)
        except InputError:
            # A script that finds nothing to load fails like one with wrong arguments.
            fault = _fault_in(root, plan)
            if not fault:
                raise
            proof = refuted(plan, fault)
    if not proof.is_proven and not all(manifest_path(root, step).exists() for step in plan.steps):
        raise _removed(plan, asked)
    return proof


def _fault_in(root: Path, plan: ProofPlan) -> str:
    """The fault of a checkpoint that the proof uses; empty if there is none."""
    for kept in kept_steps(root):
        is_taken = kept.step in plan.steps and kept.ranks == 1
        if is_taken and (fault := fault_of(kept, is_thorough=True)):
            return f"step {kept.step} could not be loaded: {fault}"
    return ""


def _removed(plan: ProofPlan, asked: ProofRequest) -> InputError:
    return InputError(
        f"A checkpoint that the proof of step {plan.step} uses was removed meanwhile: there are newer ones.",
        hint=f"Try again: {asked.command()}",
    )


def proven_at(place: Storage, known: ProofRecord, asked: ProofRequest, home: Path) -> CheckpointProof:
    """Prove the newest checkpoint of a place. Checkpoints are fetched into the home, and
    removed on return.
    """
    with troubles_told(place):
        there = [kept for kept in steps_in(place.listed()) if kept.is_complete]
    provable = [ProvableStep(one.step, len(one.keys), f"{place.name}/{one.pattern}") for one in there]
    try:
        plan = plan_among(provable, place.name, known.witnessed, asked.steps_max)
    except FarCheckpoints as error:
        raise _nearer(error, asked) from None
    wanted = [kept for kept in there if kept.step in plan.steps and len(kept.keys) == 1]
    make_private_directory(home)
    with passing(home) as directory:
        with troubles_told(place):
            try:
                fetch_steps(place, wanted, directory)
            except (Unsound, FileNotFoundError) as error:
                there_now = {key for kept in steps_in(place.listed()) for key in kept.present}
                if not there_now.issuperset(key for kept in wanted for key in kept.keys):
                    raise _removed(plan, asked) from None
                if not isinstance(error, Unsound):
                    raise
                return refuted(plan, str(error))
        return _computed(plan, directory, known, asked)


def _computed(plan: ProofPlan, root: Path, known: ProofRecord, asked: ProofRequest) -> CheckpointProof:
    """Compute with the script, from the checkpoints in this directory. Raises `InputError`."""
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


def _nearer(far: FarCheckpoints, asked: ProofRequest) -> InputError:
    more = far.hint
    if far.steps is not None:
        more += f" Or: {asked.command('--steps-max', str(far.steps))}"
    return InputError(far.sentence, hint=more)


def write_down(run: str, proof: CheckpointProof, home: Path) -> None:
    with Recorder(home / JOURNAL_DIRECTORY, run=run) as recorder:
        recorder.record(
            CheckpointVerified,
            step=proof.step,
            sound=proof.is_proven,
            reason=proof.reason,
            place=proof.place,
        )
