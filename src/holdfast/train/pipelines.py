"""Takes a lane through the stages of a pipeline, with one of torch's schedules.

The schedule cuts the lane into microbatches, sends them from stage to stage, and calls backward on each. Two
tasks are left to this module: gradients and losses become the lane's share of the step's mean, and each stage
knows by itself what it will receive. torch's stages exchange that before their first microbatch; but if a
process replaces a lost one, its first microbatch is not the others' first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
    _utils,
)

from holdfast.record.errors import InputError
from holdfast.train.mesh import MeshGroup

_ON_A_DEVICE = (ScheduleGPipe, Schedule1F1B)
"""Other schedules post receives long before they need them, and such an exchange would block
those behind it.
"""
_SCHEDULES = (*_ON_A_DEVICE, ScheduleInterleaved1F1B, ScheduleLoopedBFS)
"""Schedules whose backward passes are whole. Others compute the gradients of weights later, without calling
the hooks that notice them.
"""
_HAS_MODES = hasattr(_utils, "InferenceMode")
"""Before torch 2.13, a stage that had its shapes did not ask for them, but still greeted its neighbours
before the first microbatch.
"""
_KEPT = "_holdfast_pipeline"
"""The attribute in which a schedule keeps its pipeline."""
_SHAPES_HINT = (
    'Give PipelineStage input_args and output_args, torch.empty(..., device="meta") in the shape of '
)
_SHAPES_HINT += "a microbatch's, with requires_grad=True between two stages."


class Pipeline:
    """A schedule, and this process's stages of it."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule
        self._stages: list[Any] = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
        is_cpu = torch.device(getattr(self._stages[0], "device", "cpu")).type == "cpu"
        kinds = _SCHEDULES if is_cpu else _ON_A_DEVICE
        if type(schedule) not in kinds:
            raise InputError(
                f"lane.pipeline() was given a {type(schedule).__name__}.",
                hint=f"It takes {', '.join(kind.__name__ for kind in kinds)}.",
            )
        self.result: Any = None
        if schedule._loss_fn is None:
            raise InputError("The schedule has no loss.", hint="Give it loss_fn=..., on every stage.")
        for stage in self._stages:
            _check(stage)
            _settle(stage)
        schedule._warmup_p2p = _skip_warmup

    @classmethod
    def of(cls, schedule: Any) -> Self:
        """The pipeline of a schedule, made and checked at its first lane."""
        found: Self | None = getattr(schedule, _KEPT, None)
        if found is None:
            found = cls(schedule)
            setattr(schedule, _KEPT, found)
        return found

    @property
    def rank(self) -> int:
        """This process's place along the pipeline."""
        rank: int = self._stages[0].group_rank
        return rank

    def step(
        self, share: float, inputs: Sequence[Any], target: Any, told: Mapping[str, Any]
    ) -> list[torch.Tensor]:
        """Run one lane. share: the factor for its gradients. Returns losses whose sum is the lane's; only the
        last stage has any.
        """
        is_first, is_last = (
            any(getattr(stage, place) for stage in self._stages) for place in ("is_first", "is_last")
        )
        if is_last and target is None:
            raise InputError(
                "The last stage has no target.", hint="Call lane.pipeline(schedule, x, target=y)."
            )
        parts = self._schedule._n_microbatches if self._schedule.scale_grads else 1
        losses: list[torch.Tensor] = told.get("losses", [])
        with ExitStack() as stack:
            stack.enter_context(_scaled(self._schedule, share / parts))
            for stage in self._stages:
                stack.callback(stage.submod.register_forward_hook(_checked(stage)).remove)
            try:
                self.result = self._schedule.step(
                    *(inputs if is_first else ()),
                    target=target if is_last else None,
                    **{**told, "losses": losses},
                )
            except RuntimeError as error:
                if error.__cause__ is None:
                    raise
                raise error.__cause__ from None  # torch wraps the error that a stage raised
        return [loss.detach() / parts for loss in losses]


def _check(stage: Any) -> None:
    number = stage.stage_index
    if not isinstance(stage.group, MeshGroup):
        raise InputError(
            f"Stage {number} of the pipeline has a process group that the run does not know.",
            hint='Give PipelineStage group=run.mesh.get_group("pp").',
        )
    borders_told = _told(stage) if isinstance(stage, PipelineStage) else None
    if borders_told is None:
        raise InputError(
            f"Stage {number} of the pipeline was not told what it takes and gives.", hint=_SHAPES_HINT
        )
    inputs, outputs = borders_told
    for borders, is_outside in ((inputs, stage.is_first), (outputs, stage.is_last)):
        if not is_outside and not any(border.requires_grad for border in borders):
            raise InputError(
                f"No gradient would flow through the stages of the pipeline: stage {number} was told so.",
                hint=_SHAPES_HINT,
            )


def _told(stage: Any) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """The stage's inputs and outputs, as the script declared them; None if torch would find out by itself."""
    if _HAS_MODES:
        meta = stage._user_meta
        is_told = not _utils.InferenceMode.needs_dynamic(meta, True)  # type: ignore[attr-defined, unused-ignore]
        return (meta.inputs or (), meta.outputs or ()) if is_told else None
    return None if stage.inputs_meta is None else (stage.inputs_meta, stage.get_outputs_meta())


def _settle(stage: Any) -> None:
    """Make the stage use its declared shapes without asking other stages."""
    if _HAS_MODES:
        stage._inference_mode = _utils.InferenceMode.STATIC  # type: ignore[attr-defined, unused-ignore]
    else:
        stage._get_init_p2p_neighbors_ops = list


def _checked(stage: Any) -> Callable[..., None]:
    """A hook that checks that the stage's outputs are what the next stage waits for."""
    _, outputs_told = _told(stage) or ((), ())
    told = [(tuple(meta.shape), meta.dtype) for meta in outputs_told]

    def check(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        outputs = output if isinstance(output, tuple | list) else (output,)
        given = [(tuple(one.shape), one.dtype) for one in outputs if isinstance(one, torch.Tensor)]
        if not stage.is_last and given != told:
            raise InputError(
                f"Stage {stage.stage_index} of the pipeline gives {given}, but was told {told}.",
                hint=_SHAPES_HINT,
            )

    return check


def _skip_warmup(*_: Any) -> None:
    """Replaces torch's exchange between stages before the first microbatch; does nothing."""


@contextmanager
def _scaled(schedule: Any, factor: float) -> Iterator[None]:
    """Multiply gradients at the loss instead of dividing at the end: for powers of two that is the same."""
    loss_fn, scale_grads = schedule._loss_fn, schedule.scale_grads
    schedule._loss_fn, schedule.scale_grads = _with_scaled_gradient(loss_fn, factor), False
    try:
        yield
    finally:
        schedule._loss_fn, schedule.scale_grads = loss_fn, scale_grads


def _with_scaled_gradient(loss_fn: Callable[..., Any], factor: float) -> Callable[..., torch.Tensor]:
    def loss_of(*args: Any, **told: Any) -> torch.Tensor:
        loss = loss_fn(*args, **told)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise InputError(
                "A pipeline needs a loss of one element that requires a gradient.",
                hint="Have loss_fn return the mean over the microbatch's samples.",
            )
        loss.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]
        return loss

    return loss_of
