"""Sums of GPU-nanoseconds by category, some of them not yet split.

How much of a step was useful and how much was slowdown depends on the reference, and the reference may be
learnt or declared after the step. So a step is tallied under a *measured* key: the category of its normal
part, the category of what exceeds the reference, a bin of its work (GPU-ns per step, 32 bins an octave),
and the stage of the run that it belongs to. `normal` settles them for given references. Steps of one bin
differ by 3 % at most and are averaged. Everything is integer; what goes in comes out to the last nanosecond.
"""

from typing import NamedTuple

from holdfast.ledger.categories import Category
from holdfast.ledger.copies import copied

LAUNCH = len(Category)
"""A key for the launch of a run that may turn out to report nothing else; the report says what it was."""

PLAIN = 32
"""Keys below are categories (or LAUNCH); keys from here on are measured."""
_BIN_SHIFT = 10
_OWN_BINS = 1 << 20
_STAGE_SHIFT = 48


def work_bin(work_gpu_ns: int) -> int:
    """The bin of this much work in one step: exact below 64, then 32 bins an octave. Grows with the work."""
    excess_bits = work_gpu_ns.bit_length() - 6
    return (excess_bits << 5) + (work_gpu_ns >> excess_bits) if excess_bits > 0 else work_gpu_ns


def own_bin(number: int) -> int:
    """A bin that holds one thing only, beyond all bins of work."""
    return _OWN_BINS + number


def measured_key(normal: Category, excess: Category, bin_: int) -> int:
    return (bin_ + 1) << _BIN_SHIFT | normal << 5 | excess


BIN = 1 << _BIN_SHIFT
"""What a measured key grows by from one bin to the next."""
STAGE = 1 << _STAGE_SHIFT
"""What a measured key grows by from one stage to the next."""


class Measured(NamedTuple):
    """What a measured key says. is_own: it holds one loss, whose steps are not alike."""

    stage: int
    bin: int
    normal: Category
    excess: Category

    @property
    def is_own(self) -> bool:
        return self.bin >= _OWN_BINS


def measured(key: int) -> Measured:
    bin_ = ((key & STAGE - 1) >> _BIN_SHIFT) - 1
    return Measured(key >> _STAGE_SHIFT, bin_, Category(key >> 5 & 31), Category(key & 31))


class Tally:
    """GPU-nanoseconds by key, and for measured keys the number of steps."""

    __slots__ = ("gpu_ns", "steps")

    def __init__(self) -> None:
        self.gpu_ns: dict[int, int] = {}
        self.steps: dict[int, int] = {}

    def add(self, key: int, gpu_ns: int, steps: int = 0) -> None:
        self.gpu_ns[key] = self.gpu_ns.get(key, 0) + gpu_ns
        if steps:
            self.steps[key] = self.steps.get(key, 0) + steps

    def move(self, key: int, to: int, gpu_ns: int, steps: int) -> None:
        self.add(key, -gpu_ns, -steps)
        self.add(to, gpu_ns, steps)

    def copy(self) -> "Tally":
        return copied(self, "gpu_ns", "steps")

    def steps_of(self, normal: Category) -> int:
        """How many steps were tallied with this category as their normal part."""
        return sum(steps for key, steps in self.steps.items() if key >> 5 & 31 == normal)
