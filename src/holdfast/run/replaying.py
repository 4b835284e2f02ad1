"""What a script is told that is to compute one lane of one step again, and what it found. Without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec

from holdfast.run.wire import SkippedLanes

VARIABLE = "HOLDFAST_REPLAY"


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The lane, and where to write what was found. skipped: lanes that nobody computed in earlier steps.
    lanes, seed, model: what the run had of these, as far as the record tells.
    """

    step: int
    lane: int
    result: str
    skipped: tuple[SkippedLanes, ...] = ()
    lanes: int | None = None
    seed: int | None = None
    model: str = ""

    @classmethod
    def given(cls, environment: Mapping[str, str]) -> Self | None:
        """The order this process was started with, if it was."""
        text = environment.get(VARIABLE)
        return None if text is None else msgspec.json.decode(text, type=cls)

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. begun: the step of the checkpoint it went on from. prints: of the lane, computed
    twice. loss: as text, since it may be no number. norm: of the lane's own gradient.
    """

    begun: int
    loss: str
    norm: str
    prints: tuple[str, str]

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))
