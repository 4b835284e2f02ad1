"""The order to a script to compute a step of a run again, or one lane, and the result."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import GenerationOpened
from holdfast.record.store import Selection, Store
from holdfast.run.skipped import skipped_in
from holdfast.run.wire import SkippedLanes

VARIABLE = "HOLDFAST_REPLAY"
PROOF_STEPS_MAX = 100
"""The default for how many steps are computed at most to get from one checkpoint to the next."""


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The lane, or the whole step, to compute, and where to write the result. skipped: lanes that no member
    computed in earlier steps. lanes, seed, model: the run's, as far as recorded. begins: the step of the
    checkpoint to start from, 0 for the run's beginning, None for any before the step.
    """

    step: int
    lane: int | None
    result: str
    skipped: tuple[SkippedLanes, ...] = ()
    lanes: int | None = None
    seed: int | None = None
    model: str = ""
    begins: int | None = None

    def told_of(self, store: Store, run: str) -> Self:
        """The order with the recorded facts about a run, as it was set up when it last did this step."""
        skipped = skipped_in(store.select(Selection(run=run, kinds=("step.committed",))))
        opened = store.select(Selection(run=run, kinds=("generation.opened",)))
        setup = None
        for one in opened:
            if isinstance(one, GenerationOpened) and one.lanes and (one.step or 0) < self.step:
                setup = one
        told = msgspec.structs.replace(self, skipped=skipped)
        if setup is None:
            return told
        return msgspec.structs.replace(told, lanes=setup.lanes, seed=setup.seed, model=setup.model)

    @classmethod
    def given(cls, environment: Mapping[str, str]) -> Self | None:
        """The order this process was started with, if any."""
        text = environment.get(VARIABLE)
        return None if text is None else msgspec.json.decode(text, type=cls)

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a lane. begun: the step of the checkpoint it started from. prints: of the lane, computed
    twice. loss: as text, since it may be NaN. norm: of the lane's own gradient.
    """

    begun: int
    loss: str
    norm: str
    prints: tuple[str, str]

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))


class Recomputed(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a whole step. begun: as in `Replayed`. print: of the state after it. digest: of
    everything protected after it. All are empty if it did not start where it should. kept: the digest of the
    checkpoint of this step, as loaded; empty if none was loaded.
    """

    begun: int
    loss: str = ""
    print: str = ""
    digest: str = ""
    kept: str = ""

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))


Found = TypeVar("Found", Replayed, Recomputed)
_MISTAKE = 2
"""The exit code of a script that a mistake ended, with a sentence about it."""
_ARGUMENTS_HINT = "Give it the arguments that the run was started with."


def compute(order: ReplayOrder, checkpoints: Path, words: tuple[str, ...], kind: type[Found]) -> Found:
    """Carry out the order with a script and its arguments, in a process of its own. Raises `InputError`."""
    environment = {**os.environ, VARIABLE: order.text, "HOLDFAST_CHECKPOINTS": str(checkpoints.absolute())}
    environment.pop("HOLDFAST_COORDINATOR", None)
    # The script's output is not the command's result.
    code = subprocess.run(
        (sys.executable, *words), env=environment, stdout=sys.stderr, check=False
    ).returncode
    try:
        return msgspec.json.decode(Path(order.result).read_bytes(), type=kind)
    except FileNotFoundError:
        what = f"step {order.step}" if order.lane is None else f"lane {order.lane} of step {order.step}"
        hint = "See above what it said." if code == _MISTAKE else _ARGUMENTS_HINT
        raise InputError(
            f"{words[0]} ended with exit code {code} before it had computed {what}.", hint=hint
        ) from None
