"""Whether a run can really resume from a checkpoint: a fresh process loads it, computes what the run has
computed, and must come to the same result.

Hashes tell whether bytes are what was written. They do not tell whether what was written was right.
"""

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, assert_never

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import StepWitnessed
from holdfast.run.replaying import Recomputed
from holdfast.train.kept import kept_steps

Way = Literal["after", "before"]
"""after: compute the step after the checkpoint, whose result is in the record. before: compute again the
steps that led to it, from the previous checkpoint or from the run's beginning.
"""


class ProvableStep(NamedTuple):
    """A checkpoint, as this many ranks kept it. place: for messages."""

    step: int
    ranks: int
    place: str


class ProofPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint is proven. computed: the last step that is computed. begun: the step that the
    computation begins from; 0: the run's beginning.
    """

    step: int
    place: str
    way: Way
    begun: int
    computed: int

    @property
    def steps(self) -> frozenset[int]:
        """The checkpoints that the proof uses."""
        return frozenset({self.step, self.begun} - {0})


class CheckpointProof(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a proof. reason: a sentence, also if it is proven."""

    step: int
    place: str
    way: Way
    is_proven: bool
    reason: str


class FarCheckpoints(InputError):
    """No checkpoint can be proven in this few steps. steps: how many would suffice for one; None: no number
    does.
    """

    def __init__(self, sentence: str, steps: int | None) -> None:
        super().__init__(sentence, hint="Wait for the run's next step.")
        self.steps = steps


def plan_proof(root: Path, witnessed: Mapping[int, StepWitnessed], steps_max: int) -> ProofPlan:
    """Plan the proof of the newest checkpoint that can be proven in this many steps. Raises `InputError` or
    `OSError`.
    """
    found = [(one.step, one.ranks, one.place) for one in kept_steps(root) if one.is_complete]
    return plan_among([ProvableStep(*one) for one in found], str(root), witnessed, steps_max)


def plan_among(
    kept: Sequence[ProvableStep], root: str, witnessed: Mapping[int, StepWitnessed], steps_max: int
) -> ProofPlan:
    """Plan among complete checkpoints in any place, given oldest first."""
    if not kept:
        raise InputError(
            f"There is no checkpoint in {root}.",
            hint="Name the run's --checkpoints: holdfast checkpoint prove DIR SCRIPT ARGUMENTS",
        )
    if kept[-1].ranks > 1:
        raise InputError(
            "The checkpoint of a sharded model cannot be proven.",
            hint=f"Compare its bytes with their hashes: holdfast checkpoint verify {shlex.quote(root)}",
        )
    whole = [one for one in kept if one.ranks == 1]
    plans = (_plan(number, whole, witnessed, steps_max) for number in range(len(whole) - 1, -1, -1))
    found = next((plan for plan in plans if plan is not None), None)
    if found is None:
        ends = [0, *(one.step for one in whole)]
        raise FarCheckpoints(
            f"The record has no step computed from the checkpoints in {root}, and the previous one is "
            f"more than {steps_max} steps away.",
            min((step - before for before, step in pairwise(ends) if step > before), default=None),
        )
    return found


def _plan(
    number: int, kept: list[ProvableStep], witnessed: Mapping[int, StepWitnessed], steps_max: int
) -> ProofPlan | None:
    step, place = kept[number].step, kept[number].place
    if step + 1 in witnessed:
        return ProofPlan(step=step, place=place, way="after", begun=step, computed=step + 1)
    before = kept[number - 1].step if number else 0
    if 0 < step - before <= steps_max:
        return ProofPlan(step=step, place=place, way="before", begun=before, computed=step)
    return None


def refuted(plan: ProofPlan, reason: str) -> CheckpointProof:
    return CheckpointProof(step=plan.step, place=plan.place, way=plan.way, is_proven=False, reason=reason)


def judge_proof(plan: ProofPlan, found: Recomputed, witness: StepWitnessed | None) -> CheckpointProof:
    """witness: the record's entry of the step that was computed."""
    reason = _difference(plan, found, witness)
    if not reason:
        match plan.way:
            case "after":
                said = f"step {plan.computed}, computed from it, has the loss and the state that the run had"
            case "before":
                origin = f"step {plan.begun}" if plan.begun else "the beginning"
                said = f"the steps from {origin} up to it, computed again, lead to the state that it holds"
            case _:
                assert_never(plan.way)
    return CheckpointProof(
        step=plan.step, place=plan.place, way=plan.way, is_proven=not reason, reason=reason or said
    )


def _difference(plan: ProofPlan, found: Recomputed, witness: StepWitnessed | None) -> str:
    """What differs from the run; empty if nothing does."""
    if found.begun != plan.begun:
        what = f"step {plan.begun} could not be loaded" if plan.begun else "it did not begin at step 0"
        return f"{what}: the script resumed from step {found.begun}"
    match plan.way:
        case "after":
            assert witness is not None
            if found.loss != witness.loss:
                return (
                    f"step {plan.computed}, computed from it, has the loss {found.loss}; the run had "
                    f"{witness.loss}"
                )
            if found.print != witness.print:
                return (
                    f"step {plan.computed}, computed from it, leads to another state (print {found.print}) "
                    f"than the run had ({witness.print})"
                )
        case "before":
            if not found.kept:
                return "it could not be loaded: it is damaged, or was removed meanwhile"
            if found.kept != found.digest:
                origin = f"step {plan.begun}" if plan.begun else "the beginning"
                return f"the steps from {origin} up to it, computed again, lead to another state"
        case _:
            assert_never(plan.way)
    return ""
