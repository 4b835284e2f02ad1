"""A member's gradients of the step under way: from a lane's backward pass to the sum over all lanes.

Parameters' gradients are views of a sheet, so backward writes where the fold and the reduction read. In the
last lane, buckets are added up and sent as backward completes them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from holdfast.record.errors import InputError
from holdfast.train import tree
from holdfast.train.group import GroupBroken
from holdfast.train.protected import Protected
from holdfast.train.reduction import Reduction
from holdfast.train.sheets import Fold, Layout, Sheet


@dataclass(frozen=True, kw_only=True)
class Sum:
    """What the whole run computed in a step, beside the gradients: each lane's loss, and the generation its
    member knew of.
    """

    losses: tuple[float, ...]
    pending: tuple[int, ...]

    @property
    def loss(self) -> float:
        """The mean, added along the tree: the same on every member."""
        losses = self.losses
        while len(losses) > 1:
            losses = tuple(left + right for left, right in zip(losses[0::2], losses[1::2], strict=True))
        return losses[0] / len(self.losses)


class Gradients:
    """What one member holds of a step. `lanes` and `accumulate` as `protect` was told."""

    def __init__(self, state: Protected, lanes: int, accumulate: int) -> None:
        self.layout = Layout(state.parameters, list(state.moving.values()), lanes)
        self._state = state
        self._lanes = lanes
        self._accumulate = accumulate
        self._fold = Fold(self.layout)
        self._lane = _NoLane
        self._reduction: Reduction | None = None
        self._total: Sheet | None = None
        self._failure: GroupBroken | None = None
        self._still = [tensor.detach().clone() for tensor in state.moving.values()]
        self._versions: dict[str, int] = {}
        self._note_buffers()
        for index, parameter in enumerate(state.parameters):
            hook = self._hook(index, self.layout.gradients[index].bucket)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @property
    def held(self) -> frozenset[int]:
        """The lanes that need not be computed again, whoever dies."""
        return self._fold.lanes

    # ---- a lane --------------------------------------------------------------------------------------

    def begin(self, index: int, reduction: Reduction | None, *, last: bool) -> None:
        """A lane begins. last: the reduction can follow it."""
        sheet = self._fold.take()
        sheet.clear()
        for parameter, gradient in zip(self._state.parameters, sheet.gradients, strict=True):
            parameter.grad = gradient
        self._lane = _OpenLane(index, sheet, self.layout.waits_for)
        self._reduction = reduction if last else None
        self._last = last

    def backward(self, loss: torch.Tensor) -> None:
        lane = self._lane
        lane.backwards += 1
        if lane.sheet is None or lane.backwards > self._accumulate:
            raise InputError(
                f"lane.backward() was called for the {lane.backwards}. time in a lane, or after it.",
                hint="Tell protect(accumulate=N) how often every lane calls it.",
            )
        if loss.numel() != 1 or not loss.requires_grad:
            raise InputError(
                "lane.backward() needs a loss of one element that requires a gradient.",
                hint="Give it the mean loss of the lane's samples.",
            )
        lane.sheet.losses[lane.index] += loss.detach().reshape(())
        if self._last and lane.backwards == self._accumulate:
            self._arm()
        scaled = self._state.scaler.scale(loss) if self._state.scaler is not None else loss
        # The mean over lanes: a power of two, so that it is exact wherever it is multiplied.
        torch.autograd.backward(scaled, torch.full_like(scaled, 1 / self._lanes))

    def _arm(self) -> None:
        """From here on buckets are added up and sent as backward completes them."""
        lane = self._lane
        assert lane.sheet is not None
        target = self._fold.open(lane.index, lane.sheet)
        lane.armed = True
        if self._reduction is not None:
            # Once a bucket is added to what was held, its place in the lane's own sheet is free.
            self._total = lane.sheet if target is not lane.sheet else self._fold.take()
            self._reduction.begin({**self._fold.held, self._fold.target: target}, self._total)

    def _hook(self, index: int, bucket: int) -> Callable[[torch.Tensor], None]:
        def accumulated(parameter: torch.Tensor) -> None:
            lane = self._lane
            if lane.sheet is None:
                return  # a backward outside the lanes is the script's own business
            if parameter.grad is not lane.sheet.gradients[index]:  # zero_grad() was called
                assert parameter.grad is not None
                lane.sheet.gradients[index].add_(parameter.grad)
                parameter.grad = lane.sheet.gradients[index]
            lane.used.add(index)
            if lane.armed:
                lane.waits_for[bucket] -= 1
                while lane.bucket in self.layout.early and lane.waits_for[lane.bucket] == 0:
                    self._complete(lane.bucket)
                    lane.bucket += 1

        return accumulated

    def _complete(self, bucket: int) -> None:
        self._fold.merge(bucket)
        if self._reduction is not None and self._failure is None:
            try:
                self._reduction.launch(bucket)
            except GroupBroken as broken:  # the fold goes on: what is held stays good
                self._failure = broken.with_traceback(None)

    def end(self, pending: int) -> None:
        """The lane is through. pending: the generation this member knows to be waiting, or 0."""
        lane = self._lane
        if lane.sheet is None or lane.backwards != self._accumulate:
            raise InputError(
                f"Lane {lane.index} had {lane.backwards} calls of lane.backward(), not {self._accumulate}.",
                hint="Call lane.backward(loss) in every lane; protect(accumulate=N) sets how often.",
            )
        lane.sheet.pending[lane.index] = pending
        self._write_used(lane.sheet, lane.used)
        self._write_buffers(lane.sheet, lane.index)
        if not lane.armed:
            self._fold.open(lane.index, lane.sheet)
        for bucket in range(lane.bucket, self.layout.buckets):
            self._complete(bucket)
        self._fold.close(keep=self._total)
        self._lane = _NoLane

    def _write_used(self, sheet: Sheet, used: set[int]) -> None:
        if len(used) == len(sheet.gradients):
            sheet.used.fill_(1)
            return
        flags = torch.zeros(len(sheet.gradients))
        flags[sorted(used)] = 1
        sheet.used.copy_(flags)

    # ---- buffers ---------------------------------------------------------------------------------------

    def _write_buffers(self, sheet: Sheet, index: int) -> None:
        """Moving buffers go into the sheet, and back to what they were when the step began."""
        for name, version in self._versions.items():
            if self._state.buffers[name]._version != version:
                raise InputError(
                    f"The buffer {name!r} was changed in a lane: it would depend on the deal of lanes.",
                    hint=f"Name it in protect(moving=[{name!r}]) to have it averaged over lanes.",
                )
        moving = zip(self._state.moving.values(), self._still, sheet.moving, strict=True)
        for tensor, still, contribution in moving:
            if tensor.dtype.is_floating_point:
                contribution.copy_(tensor).mul_(1 / self._lanes)
            elif index == 0:
                contribution.copy_(tensor)  # a count; every lane counts the same
            tensor.copy_(still)

    def move_buffers(self) -> None:
        """The step is kept: the mean over lanes is what the buffers are now."""
        assert self._total is not None
        with torch.no_grad():
            moved = zip(self._state.moving.values(), self._still, self._total.moving, strict=True)
            for tensor, still, value in moved:
                tensor.copy_(value)
                still.copy_(value)

    def _note_buffers(self) -> None:
        still = (name for name in self._state.buffers if name not in self._state.moving)
        self._versions = {name: self._state.buffers[name]._version for name in still}

    # ---- the step --------------------------------------------------------------------------------------

    def reduce(self, reduction: Reduction | None) -> Sum:
        """Sum over all members; parameters then have the mean gradient. Raises `GroupBroken`."""
        try:
            total = self._reduce(reduction)
        except GroupBroken:
            self._drop_total()
            raise
        self._total = total
        used = total.used.tolist()  # the one moment in a step when the host waits for the device
        for parameter, gradient, count in zip(self._state.parameters, total.gradients, used, strict=True):
            parameter.grad = gradient if count else None
        return Sum(
            losses=tuple(total.losses.tolist()),
            pending=tuple(int(number) for number in total.pending.tolist()),
        )

    def _reduce(self, reduction: Reduction | None) -> Sheet:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if reduction is None:
            return self._fold.held[tree.root(self._lanes)]
        if self._total is None:  # nothing was computed here in this generation: what is held was before
            self._total = self._fold.take()
            reduction.begin(self._fold.held, self._total)
            for bucket in range(self.layout.buckets):
                reduction.launch(bucket)
        reduction.finish()
        return self._total

    def _drop_total(self) -> None:
        if self._total is not None:
            self._fold.give(self._total)
        self._total = None

    def forget(self) -> None:
        """The step is over, by commit or because another state was taken over."""
        total, self._total = self._total, None
        self._failure = None
        self._fold.clear(keep=total)
        if total is not None:
            self._fold.give(total)
        self._note_buffers()

    def adopt(self) -> None:
        """Another state was put in place."""
        self.forget()
        for tensor, still in zip(self._state.moving.values(), self._still, strict=True):
            still.copy_(tensor)


class _OpenLane:
    """What is known of the lane that is being computed."""

    def __init__(self, index: int, sheet: Sheet | None, waits_for: list[int]) -> None:
        self.index = index
        self.sheet = sheet
        self.waits_for = list(waits_for)
        self.backwards = 0
        self.used: set[int] = set()
        self.armed = False
        self.bucket = 0


_NoLane = _OpenLane(-1, None, [])
