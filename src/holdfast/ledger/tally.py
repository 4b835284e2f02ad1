"""Sums of GPU-nanoseconds by category, some of them not yet split.

How much of a step was useful and how much was slowdown depends on the reference, which may become known only
after the step. So a step is tallied under a *measured* key: the category of its normal part, the category of
the time beyond the reference, a bin of its work (GPU-ns per step, 32 bins an octave), and its stage of the
run. `normal` splits these sums once the references are known. Steps in one bin differ by 3 % at most and are
averaged. All arithmetic is in integers, so not a nanosecond is lost.
"""

from typing import NamedTuple

from holdfast.ledger.categories import Category
from holdfast.ledger.copies import copied
from holdfast.ledger.split import Silence

LAUNCH = len(Category)
"""The key for the launch of a run. The report decides its category: the run may report nothing else."""
AFTER_STEPS = LAUNCH + 1
"""The key for unattributed time after the last step of a run that reports nothing but steps."""
IN_FLIGHT = LAUNCH + 2
"""The key for unattributed work on a step whose end is not recorded."""

PLAIN = 32
"""Smaller keys are categories (or LAUNCH); the others are measured keys."""
_BIN_SHIFT = 10
_OWN_BINS = 1 << 20
_STAGE_SHIFT = 48


def work_bin(work_gpu_ns: int) -> int:
    """The bin for one step's work: exact below 64, then 32 bins an octave. It grows with the work."""
    excess_bits = work_gpu_ns.bit_length() - 6
    return (excess_bits << 5) + (work_gpu_ns >> excess_bits) if excess_bits > 0 else work_gpu_ns


def own_bin(number: int) -> int:
    """A bin for a single loss, beyond all bins of work."""
    return _OWN_BINS + number


def measured_key(normal: Category, excess: Category, bin_: int) -> int:
    return (bin_ + 1) << _BIN_SHIFT | normal << 5 | excess


BIN = 1 << _BIN_SHIFT
"""The difference between the measured keys of adjacent bins."""
STAGE = 1 << _STAGE_SHIFT
"""The difference between the measured keys of adjacent stages."""


class Measured(NamedTuple):
    """The parts of a measured key. is_own: its bin holds a single loss, whose steps are not alike."""

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


def silence_of(key: int) -> Silence:
    """Why time under this key is unattributed."""
    if key == AFTER_STEPS:
        return Silence.AFTER_STEPS
    return Silence.STEP_IN_FLIGHT if key == IN_FLIGHT or key >= PLAIN else Silence.NO_STEPS


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
