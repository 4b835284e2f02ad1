"""A process that computes a step of a run, or one lane, again: alone, from a checkpoint, without a record."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from holdfast import wording
from holdfast.record.errors import InputError
from holdfast.run import wire
from holdfast.run.replaying import Recomputed, Replayed, ReplayOrder
from holdfast.train.checkpoint import Checkpoints, Loaded, Mark, Saved, State
from holdfast.train.control import Alone
from holdfast.train.gradients import Computed
from holdfast.train.manifest_file import ALL, Share
from holdfast.train.prints import number_of, print_of_state, text_of
from holdfast.train.protected import Protected

SAME = "Give the script, arguments and versions that the run was started with."
LAST_PREFERENCE = 1 << 30
"""Higher than the preference of any checkpoint of a step."""


class Replaying(Alone):
    """The only member of a run that is over. It reports to no coordinator and writes no record."""

    def __init__(self, order: ReplayOrder) -> None:
        self.order = order
        self._published: dict[str, bytes] = {}

    def admitted(self) -> wire.Admitted:
        return wire.Admitted(slot=0, slots=1, skipped=self.order.skipped)

    def ready(self, setup: wire.Setup) -> None:
        order = self.order
        for what, was, is_now in (("lanes", order.lanes, setup.lanes), ("seed", order.seed, setup.seed)):
            if was is not None and was != is_now:
                raise InputError(f"The run had {what}={was}, this script has {what}={is_now}.", hint=SAME)
        if order.model not in ("", setup.model):
            raise InputError(
                "This script's model or optimizer, or a setting of them such as the learning rate, is not "
                f"what the run had at step {order.step}.",
                hint=SAME,
            )
        if order.lane is not None and order.lane >= setup.lanes:
            raise InputError(
                f"There is no lane {order.lane}: the run has {setup.lanes}.", hint="Lanes count from 0."
            )

    def say(self, message: wire.FromWorker) -> None:
        """Ignore it: there is no coordinator."""

    def finished(self, message: wire.Finished, present: int) -> wire.Announced | None:
        return None

    def close(self, failure: str = "") -> None:
        """Do nothing: nothing was recorded."""


@dataclass(frozen=True)
class Earlier:
    """The checkpoints of a run up to a step, read-only."""

    kept: Checkpoints
    step: int

    @property
    def place(self) -> str:
        return self.kept.place

    def hurry(self, within_s: float) -> None:
        self.kept.hurry(within_s)

    @property
    def is_read(self) -> bool:
        return False

    def save(self, step: int, state: State, share: Share = ALL) -> Saved:
        raise AssertionError("a replay keeps nothing")

    def newest(self, until: Mark | None = None) -> Loaded | None:
        if not self.steps():
            return None
        last = (self.step, LAST_PREFERENCE)
        return self.kept.newest(last if until is None else min(until, last))

    def steps(self) -> list[int]:
        return [step for step in self.kept.steps() if step <= self.step]


class LaneReplay:
    """Replays the ordered step when the loop comes to it. Does nothing without an order."""

    def __init__(
        self, order: ReplayOrder | None, state: Protected, lanes: int, kept: Checkpoints | None = None
    ) -> None:
        """kept: all checkpoints of the run."""
        self._order = order
        self._kept = kept
        self._state = state
        self._lanes = lanes
        self._begun = 0

    def begin(self, version: int) -> None:
        """The state is now that of this step."""
        self._begun = version
        if self._order is not None and self._order.begins not in (None, version):
            Recomputed(begun=version).write(Path(self._order.result))
            raise SystemExit(0)

    def lane(self, step: int) -> int | None:
        """The lane to replay in this step; None if there is none."""
        order = self._order
        return order.lane if order is not None and order.step == step else None

    def committed(self, step: int, loss: float) -> None:
        """If the whole step was ordered, write its result, and the digest of what its checkpoint holds."""
        order, state = self._order, self._state
        if order is None or order.lane is not None or order.step != step:
            return
        found = Recomputed(
            begun=self._begun, loss=repr(loss), print=text_of(print_of_state(state)), digest=state.digest()
        )
        loaded = None
        if self._kept is not None and step in self._kept.steps():
            loaded = self._kept.newest((step, LAST_PREFERENCE))
        if loaded is not None and loaded.step == step:
            state.put_back(cast(list[dict[str, Any]], loaded.state["state"]))
            found = msgspec.structs.replace(found, kept=state.digest())
        found.write(Path(order.result))
        raise SystemExit(0)

    def conclude(self, found: Sequence[Computed]) -> None:
        """Write the results. The parameters still have the gradients of the last one."""
        assert self._order is not None
        first, second = (number_of(one.print.tolist()) for one in found)
        assert first is not None
        assert second is not None
        gradients = [one.grad for one in self._state.parameters if one.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in gradients]))
        scale = 1.0 if self._state.scaler is None else self._state.scaler.get_scale()
        Replayed(
            begun=self._begun,
            loss=repr(float(found[0].loss)),
            norm=wording.number(float(norm) * self._lanes / scale, 6),
            prints=(f"{first:016x}", f"{second:016x}"),
        ).write(Path(self._order.result))
