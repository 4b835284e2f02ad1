"""A member's gradients of the step under way: from a lane's backward pass to the sum over all lanes.

Parameters' gradients are views of a sheet, so backward writes where the fold and the reduction read. In the
last lane, buckets are added up and sent as backward completes them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch

from holdfast.record.errors import InputError
from holdfast.train import shards, tree
from holdfast.train.group import GroupBroken
from holdfast.train.prints import PARTS, parts_of, print_of, weighed
from holdfast.train.protected import Buffer, Protected, fingerprint
from holdfast.train.reduction import Reduction, add_up
from holdfast.train.sharding import Sharding
from holdfast.train.sheets import BucketLayout, LaneFold, Sheet, Tail


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The results of a step over all lanes, besides the gradients: each lane's loss, the generations that
    members knew of, and, by figure, the times that each member sent in its last lane. prints: what audits
    compare. skipped: lanes that no member computed.
    """

    losses: tuple[float, ...]
    pending: tuple[int, ...]
    told: tuple[tuple[float, ...], ...]
    prints: torch.Tensor
    skipped: tuple[int, ...] = ()

    @property
    def latest(self) -> tuple[float, float]:
        """The largest of the members' times of completion, and the largest of their sending times."""
        return max(self.told[0]), max(self.told[1])

    @property
    def loss(self) -> float:
        """The mean loss, summed along the tree: the same on every member."""
        losses = self.losses
        while len(losses) > 1:
            losses = tuple(left + right for left, right in zip(losses[0::2], losses[1::2], strict=True))
        return losses[0] / (len(self.losses) - len(self.skipped))


class Computed(NamedTuple):
    """A lane that was computed for comparison. Both tensors are on the device, which may still
    be computing.
    """

    print: torch.Tensor
    loss: torch.Tensor


Telling = tuple[slice, int, torch.Tensor]
"""Rows of the prints, a lane, and the values to write there."""


class Gradients:
    """The gradients that one member holds of a step. `lanes` and `accumulate` are those of `protect`."""

    def __init__(
        self, state: Protected, lanes: int, accumulate: int, sharding: Sharding | None = None
    ) -> None:
        self._moving = [(buffer, tensor) for buffer in state.moving if (tensor := buffer.tensor) is not None]
        self._sharding = sharding
        self._slices = 1 if sharding is None else sharding.shape.slices
        shared = [
            index
            for index, parameter in enumerate(state.parameters)
            if self._slices > 1 and not shards.is_cut_along(parameter, "shard")
        ]
        self.layout = BucketLayout(
            state.parameters,
            [tensor for _, tensor in self._moving],
            lanes // self._slices,
            slices=self._slices,
            shared=shared,
        )
        self._state = state
        self._lanes = lanes
        self._accumulate = accumulate
        self._fold = LaneFold(self.layout)
        self._counted = [] if sharding is None else self._counted_here(sharding)
        self._lane: _OpenLane | None = None
        self._reduction: Reduction | None = None
        self._total: Sheet | None = None
        self._failure: GroupBroken | None = None
        self._last = False
        self.in_backward = False
        """Read by other threads to report what this member does: a plain store, twice a lane."""
        self._still = [tensor.detach().clone() for _, tensor in self._moving]
        self._still_versions: list[int] = []
        self._keep_buffers()
        moving = {buffer.name for buffer in state.moving}
        self._constant = [buffer for buffer in state.buffers if buffer.name not in moving]
        self._constant_seen: list[_Seen] = []
        self._contents: list[int] | None = None
        self._contents_checked = False
        for index, parameter in enumerate(state.parameters):
            hook = self._hook(index, self.layout.gradients[index].bucket)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @property
    def held(self) -> frozenset[int]:
        """The lanes held here, which need not be computed again if another member dies."""
        return self._fold.lanes

    # ---- a lane --------------------------------------------------------------------------------------

    def begin(
        self, index: int, leaf: int, reduction: Reduction | None, *, last: bool, is_audited: bool = False
    ) -> None:
        """Begin a lane. leaf: the slice of the step that this rank computes of it. last: the reduction may
        follow it. is_audited: another member computes it, too.
        """
        if self._sharding is not None:
            self._sharding.line.begin()
        sheet = self._fold.take()
        sheet.clear()
        for parameter, gradient in zip(self._state.parameters, sheet.gradients, strict=True):
            parameter.grad = gradient
        self._note_buffers()
        self._lane = _OpenLane(index, leaf, sheet, self.layout.waits_for)
        self.in_backward = False  # in case the last lane raised
        self._lane.prints = [] if is_audited else None
        self._reduction = reduction if last else None
        self._last = last

    def backward(self, loss: torch.Tensor) -> None:
        if self._sharding is not None and self._sharding.shape.size("pp") > 1:
            raise InputError(
                "lane.backward() was called where the model is cut into stages.",
                hint="Call lane.pipeline(schedule, x, target=y) on every stage.",
            )
        lane = self._count_backward("backward")
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise InputError(
                "lane.backward() needs a loss of one element that requires a gradient.",
                hint="Give it the mean loss of the lane's samples.",
            )
        lane.sheet.losses[lane.leaf] += loss.detach().reshape(())
        # An addition cannot be undone. In a sharded model a lane may still be discarded, so it is completed
        # first.
        if self._last and lane.backwards == self._accumulate and self._sharding is None:
            self._arm(lane)
        scaled = self._state.scaler.scale(loss) if self._state.scaler is not None else loss
        self.in_backward = True
        # The mean over lanes: a power of two, so that it is exact wherever it is multiplied.
        torch.autograd.backward(scaled, torch.full_like(scaled, 1 / self._lanes))
        self.in_backward = False

    def pipeline(self, run: Callable[[float], Sequence[torch.Tensor]]) -> None:
        """run: calls backward itself; its argument scales the gradients, and it returns the
        losses to add up.
        """
        lane = self._count_backward("pipeline")
        for loss in run(1 / self._lanes):
            lane.sheet.losses[lane.leaf] += loss.reshape(())

    def _count_backward(self, called: str) -> "_OpenLane":
        lane = self._lane
        calls = 1 if lane is None else lane.backwards + 1
        if lane is None or calls > self._accumulate:
            raise InputError(
                f"lane.{called}() was called too often in a lane ({calls} times), or after it.",
                hint="Tell protect(accumulate=N) how often every lane calls it.",
            )
        lane.backwards = calls
        return lane

    def _arm(self, lane: "_OpenLane") -> None:
        """From here on, add up and send buckets as backward completes them."""
        target = self._fold.open(lane.index, lane.sheet)
        lane.armed = True
        if self._reduction is not None:
            # Once a bucket is added to what was held, its place in the lane's own sheet is free.
            self._total = lane.sheet if target is not lane.sheet else self._fold.take()
            self._reduction.begin({**self._fold.held, self._fold.target: target}, self._total)

    def _hook(self, index: int, bucket: int) -> Callable[[torch.Tensor], None]:
        def accumulated(parameter: torch.Tensor) -> None:
            lane = self._lane
            if lane is None:
                return  # backward passes outside lanes are the script's own
            if parameter.grad is not lane.sheet.gradients[index]:  # zero_grad() was called
                assert parameter.grad is not None
                lane.sheet.gradients[index].add_(parameter.grad)
                parameter.grad = lane.sheet.gradients[index]
            lane.used.add(index)
            if lane.armed:
                if index in lane.arrived:
                    raise InputError(
                        "A parameter got its gradient in two parts in one lane.backward(), or after it.",
                        hint="Checkpoint with use_reentrant=False; call only lane.backward() in a lane.",
                    )
                lane.arrived.add(index)
                lane.waits_for[bucket] -= 1
                while lane.bucket in self.layout.early and lane.waits_for[lane.bucket] == 0:
                    if lane.prints is not None:  # once the bucket is complete, its memory may be reused
                        lane.prints.append(self._print(lane.sheet, lane.bucket))
                    self._complete(lane.bucket)
                    lane.bucket += 1

        return accumulated

    def _complete(self, bucket: int) -> None:
        self._fold.merge(bucket)
        if self._reduction is not None and self._failure is None:
            try:
                self._reduction.launch(bucket)
            except GroupBroken as broken:  # the fold continues: the held lanes stay valid
                self._failure = broken.with_traceback(None)

    def end(
        self, pending: int, told: Sequence[float], prints: Callable[[], Sequence[Telling]] = tuple
    ) -> GroupBroken | None:
        """End the lane. pending: the generation that this member knows to be waiting, or 0. told, prints: its
        times and its values for audits, which its last lane carries to the others. Returns the reason if the
        lane has to be discarded.
        """
        lane = self._finished()
        # fill_, because an assignment copies from the host, which then waits for the device.
        lane.sheet.pending[lane.leaf : lane.leaf + 1].fill_(pending + 1)
        if self._last:
            for place, value in zip(lane.sheet.told, told, strict=True):
                place[lane.leaf : lane.leaf + 1].fill_(value)
            for rows, column, values in prints():
                lane.sheet.prints[rows, column].copy_(values)
        if lane.prints is not None:
            lane.sheet.prints[:PARTS, lane.leaf].copy_(self._print_of(lane))
            lane.prints = None
        if self._sharding is not None and (broken := self._share(lane.sheet, self._sharding)) is not None:
            self._fold.give(lane.sheet)
            self._lane = None
            return broken
        if self._last and not lane.armed:
            self._arm(lane)
        elif not lane.armed:
            self._fold.open(lane.index, lane.sheet)
        for bucket in range(lane.bucket, self.layout.buckets):
            self._complete(bucket)
        self._fold.close(keep=self._total)
        self._lane = None
        return None

    def _finished(self) -> "_OpenLane":
        """Finish the lane after backward: its sheet then has everything that does not depend on who computed
        it.
        """
        lane = self._lane
        assert lane is not None
        if lane.backwards != self._accumulate:
            raise InputError(
                f"Lane {lane.index} had {lane.backwards} calls of lane.backward(), not {self._accumulate}.",
                hint="Call lane.backward(loss) in every lane; protect(accumulate=N) sets how often.",
            )
        self._write_used(lane.sheet, lane.used)
        self._check_buffers()
        with torch.no_grad():
            self._write_buffers(lane.sheet, lane.leaf)
        return lane

    def end_apart(self) -> Computed:
        """End a lane that was computed only for comparison. It is not added to the sum."""
        lane = self._finished()
        lane.prints = []
        found = Computed(self._print_of(lane), lane.sheet.losses[lane.leaf].clone())
        self._fold.give(lane.sheet)
        self._lane = None
        return found

    def _print_of(self, lane: "_OpenLane") -> torch.Tensor:
        """The print of the lane's gradients, buffers and loss, in the form that is sent."""
        assert lane.prints is not None
        sheet = lane.sheet
        found = [
            *lane.prints,
            *(self._print(sheet, bucket) for bucket in range(lane.bucket, self.layout.buckets)),
        ]
        found.append(print_of([sheet.losses[lane.leaf : lane.leaf + 1], sheet.used], self.layout.device))
        return parts_of(weighed(found, self.layout.device))

    def _print(self, sheet: Sheet, bucket: int) -> torch.Tensor:
        return print_of(sheet.contents(bucket), self.layout.device)

    def _share(self, sheet: Sheet, sharding: Sharding) -> GroupBroken | None:
        """Sum over the lane's slices what torch does not: the gradients of parameters that every rank has
        whole.
        """
        if self._slices > 1:
            for flat in sheet.flats[self.layout.shared :]:
                sharding.share(flat)
        return sharding.line.end()

    def keep_only(self, lanes: Collection[int]) -> None:
        """Drop all other lanes: not all ranks of the replica hold them, so they are not needed."""
        self._fold.keep_only(lanes)

    def shed(self) -> None:
        """Release memory: this member has other lanes from here on, and may need less."""
        self._fold.shed()

    @property
    def total(self) -> list[torch.Tensor]:
        """The sum over all lanes, as flat tensors."""
        assert self._total is not None
        return self._total.flats

    def adopt(self, flats: Sequence[torch.Tensor]) -> None:
        """Use a sum that another rank kept, as if it had been made here."""
        self._total = self._fold.take()
        for own, kept in zip(self._total.flats, flats, strict=True):
            own.copy_(kept)
        self._hand_out(self._total)

    def hand_out(self) -> None:
        """Give the parameters the gradients of the sum again, after other lanes were computed."""
        assert self._total is not None
        self._hand_out(self._total)

    def unsettle(self) -> None:
        """Drop the sum, which must be made again: not all ranks of the replica had theirs."""
        self._drop_total()

    @property
    def counted(self) -> list[torch.Tensor]:
        """The parts of the summed gradients that this rank counts when those of all ranks are added up."""
        assert self._total is not None
        return [self._total.flats[bucket][stretch] for bucket, stretch in self._counted]

    def _counted_here(self, sharding: Sharding) -> list[tuple[int, slice]]:
        place = sharding.shape.place(sharding.rail)
        every = enumerate(self._state.parameters)
        return self.layout.spans([index for index, one in every if shards.counts_here(one, place)])

    def _write_used(self, sheet: Sheet, used: set[int]) -> None:
        if len(used) == len(sheet.gradients):
            sheet.used.fill_(1)
            return
        flags = torch.zeros(len(sheet.gradients))
        flags[sorted(used)] = 1
        sheet.used.copy_(flags, non_blocking=True)

    # ---- buffers ---------------------------------------------------------------------------------------

    def _note_buffers(self) -> None:
        """Before a lane, note the buffers that its forward passes must not change."""
        self._constant_seen = [_Seen.of(buffer) for buffer in self._constant]
        if not self._contents_checked:  # once in a run: writes through `.data` change no version counter
            self._contents = [_content(seen.tensor) for seen in self._constant_seen]

    def _check_buffers(self) -> None:
        for seen in self._constant_seen:
            if seen.has_changed():
                raise _moved(seen.buffer)
        if self._contents is not None:
            for seen, content in zip(self._constant_seen, self._contents, strict=True):
                if _content(seen.tensor) != content:
                    raise _moved(seen.buffer)
            self._contents, self._contents_checked = None, True

    def _write_buffers(self, sheet: Sheet, index: int) -> None:
        """Write moving buffers into the sheet, and reset them to their values at the beginning
        of the step.
        """
        for (buffer, tensor), still, contribution in zip(
            self._moving, self._still, sheet.moving, strict=True
        ):
            moved = buffer.tensor
            assert moved is not None
            if contribution.dtype.is_floating_point:
                contribution.copy_(moved).mul_(1 / self._lanes)
            elif index == 0:
                contribution.copy_(moved)  # a count; every lane counts the same
            buffer.put(tensor)
            tensor.copy_(still)
        self._still_versions = [tensor._version for _, tensor in self._moving]

    def check_buffers_still(self) -> None:
        """Raise if a moving buffer was changed outside lanes: other members might not do the same, and
        diverge.
        """
        for (buffer, tensor), version in zip(self._moving, self._still_versions, strict=True):
            if buffer.tensor is not tensor or tensor._version != version:
                raise InputError(
                    f"The buffer {buffer.name!r} was changed outside the lanes of a step.",
                    hint="Call model.eval() before other forward passes, or change it in on_commit.",
                )

    def move_buffers(self) -> None:
        """The step is kept: set the buffers to their means over lanes."""
        assert self._total is not None
        for (_, tensor), value in zip(self._moving, self._total.moving, strict=True):
            tensor.copy_(value)

    def _keep_buffers(self) -> None:
        for (_, tensor), still in zip(self._moving, self._still, strict=True):
            still.copy_(tensor)
        self._still_versions = [tensor._version for _, tensor in self._moving]

    # ---- the step --------------------------------------------------------------------------------------

    def reduce(self, reduction: Reduction | None, confirm: Callable[[], None] | None = None) -> Sum:
        """Sum over all members; parameters then have the mean gradient. Raises `GroupBroken`.

        confirm: waits until all members have the sum, before any of it is used.
        """
        try:
            total = self._reduce(reduction)
            if confirm is not None:
                confirm()
        except GroupBroken:
            self._drop_total()
            raise
        self._total = total
        tail = self._hand_out(total)
        skipped = tuple(lane for lane, pending in enumerate(tail.pending) if not pending)
        if skipped:
            self._mean_over(total, len(tail.pending) - len(skipped))
        return Sum(
            losses=tail.losses,
            pending=tuple(pending - 1 for pending in tail.pending if pending),
            told=tail.told,
            prints=tail.prints,
            skipped=skipped,
        )

    def _mean_over(self, total: Sheet, computed: int) -> None:
        """Divide by the share of lanes that were computed, because each lane was scaled as one of all. That
        share is exact in binary, so this rounds once.
        """
        share = computed / self._lanes
        tensors = [shards.local_of(gradient) for gradient in total.gradients]
        tensors += [moving for moving in total.moving if moving.dtype.is_floating_point]
        for tensor in tensors:
            tensor.div_(share)

    def _hand_out(self, total: Sheet) -> Tail:
        """Give the parameters their mean gradients; None to those that no lane used."""
        tail = total.tail()
        for parameter, gradient, count in zip(
            self._state.parameters, total.gradients, tail.used, strict=True
        ):
            parameter.grad = gradient if count else None
        return tail

    def _reduce(self, reduction: Reduction | None) -> Sheet:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if reduction is None:
            return self._held_sum()
        if self._total is None:  # all lanes held here are from earlier generations
            self._total = self._fold.take()
            reduction.begin(self._fold.held, self._total)
            for bucket in range(self.layout.buckets):
                reduction.launch(bucket)
        reduction.finish()
        return self._total

    def _held_sum(self) -> Sheet:
        """The sum of the held lanes, if no other member holds any. If lanes are skipped there are several
        sums; they stay held.
        """
        held = self._fold.held
        order, top = tree.additions(self.layout.lanes, held)
        if top == tree.root(self.layout.lanes) and not order:
            return held[top]
        total = self._fold.take()
        for bucket, result in enumerate(total.flats):
            values = {node: sheet.flats[bucket] for node, sheet in held.items()}
            if not order:
                result.copy_(values[top])
            add_up(order, values, result)
        return total

    def _drop_total(self) -> None:
        total, self._total = self._total, None
        # A lone replica holds the sum itself, so it stays held.
        if total is not None and all(total is not held for held in self._fold.held.values()):
            self._fold.give(total)

    def forget(self) -> None:
        """The step is over: it was committed, or another state was loaded."""
        total, self._total = self._total, None
        self._failure = None
        self._contents_checked = True  # by the member that made the first step
        self._fold.clear(keep=total)
        if total is not None:
            self._fold.give(total)
        self._keep_buffers()


class _OpenLane:
    """The lane that is being computed."""

    def __init__(self, index: int, leaf: int, sheet: Sheet, waits_for: list[int]) -> None:
        self.index = index
        self.leaf = leaf
        self.sheet = sheet
        self.waits_for = list(waits_for)
        self.backwards = 0
        self.used: set[int] = set()
        self.arrived: set[int] = set()
        self.armed = False
        self.bucket = 0
        self.prints: list[torch.Tensor] | None = None


@dataclass(frozen=True)
class _Seen:
    """A buffer as it was before a lane."""

    buffer: Buffer
    tensor: torch.Tensor | None
    version: int

    @classmethod
    def of(cls, buffer: Buffer) -> Self:
        tensor = buffer.tensor
        return cls(buffer, tensor, tensor._version if tensor is not None else 0)

    def has_changed(self) -> bool:
        """Whether the buffer changed. A replaced tensor counts only if the buffer is persistent; a cache is
        not part of the state.
        """
        if self.buffer.tensor is not self.tensor:
            return self.buffer.is_persistent
        return self.tensor is not None and self.tensor._version != self.version


def _content(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else fingerprint(tensor)


def _moved(buffer: Buffer) -> InputError:
    return InputError(
        f"The buffer {buffer.name!r} was changed in a lane: it would depend on the deal of lanes.",
        hint=f"Name it in protect(moving=[{buffer.name!r}]) to have it averaged over lanes.",
    )
