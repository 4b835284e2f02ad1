"""How the durations of computations vary, which tells the kind of cause.

A slow machine is slow all the time. Long sequences make the forward and the backward pass of a microbatch
long together, wherever it lands. A pause, as of a garbage collector, lengthens one operation by much more
than work ever varies, now on one worker and now on another.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.stragglers import operations as op
from holdfast.stragglers.trace import Floats, Ints, Trace

PAUSE_RATIO_MIN = 1.5
"""An operation this many times as long as usual for its worker and type was interrupted."""
PAIRS_MIN = 8
"""A correlation of fewer pairs says nothing."""


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """forward_backward: the correlation of both passes of a microbatch, relative to the usual times of their
    worker; None if there are too few. pauses: how many operations were interrupted, on how many workers, and
    the largest share of their time on one worker.
    """

    forward_backward: float | None
    pauses: int
    pausing_workers: int
    pauses_of_one: float


def pattern_of(trace: Trace) -> Pattern:
    pausing = np.flatnonzero(_is_pause(trace, trace.duration_s))
    excess_s = trace.duration_s[pausing] - _usual_s(trace, trace.duration_s)[pausing]
    of_worker = np.bincount(trace.worker[pausing], weights=excess_s, minlength=len(trace.workers))
    return Pattern(
        forward_backward=_correlation(trace),
        pauses=len(pausing),
        pausing_workers=int(np.count_nonzero(of_worker)),
        pauses_of_one=float(of_worker.max() / of_worker.sum()) if of_worker.any() else 0.0,
    )


def evened_s(trace: Trace, durations_s: Floats) -> Floats:
    """Set every computation to the mean of its type on its worker; leave communication as it is."""
    cell = _cell(trace)
    sums = np.bincount(cell, weights=durations_s)
    means = sums / np.maximum(1, np.bincount(cell))
    return np.where(_computes(trace), means[cell], durations_s)


def without_pauses_s(trace: Trace, durations_s: Floats) -> Floats:
    """Set interrupted operations to their usual duration."""
    return np.where(_is_pause(trace, durations_s), _usual_s(trace, durations_s), durations_s)


def _computes(trace: Trace) -> NDArray[np.bool_]:
    return np.array([not op.is_communication(kind) for kind in trace.kinds])[trace.kind]


def _cell(trace: Trace) -> Ints:
    """A number for each worker and type."""
    cell: Ints = trace.worker * len(trace.kinds) + trace.kind
    return cell


def _is_pause(trace: Trace, durations_s: Floats) -> NDArray[np.bool_]:
    return _computes(trace) & (durations_s > PAUSE_RATIO_MIN * _usual_s(trace, durations_s))


def _usual_s(trace: Trace, durations_s: Floats) -> Floats:
    """The median of each operation's type on its worker."""
    cell = _cell(trace)
    order = np.lexsort((durations_s, cell))
    begins = np.flatnonzero(np.diff(cell[order], prepend=-1))
    counts = np.diff([*begins, len(order)])
    ordered = durations_s[order]
    middle = (ordered[begins + (counts - 1) // 2] + ordered[begins + counts // 2]) / 2
    usual = np.empty(len(order))
    usual[order] = np.repeat(middle, counts)
    return usual


def _correlation(trace: Trace) -> float | None:
    """The correlation of both passes of a microbatch, each relative to the mean of its worker."""
    relative = trace.duration_s / np.maximum(evened_s(trace, trace.duration_s), 1e-12)
    sides = [_passes(trace, kind) for kind in (op.FORWARD, op.BACKWARD)]
    if any(side is None for side in sides):
        return None
    (forward_keys, forward), (backward_keys, backward) = (side for side in sides if side is not None)
    _, left, right = np.intersect1d(forward_keys, backward_keys, return_indices=True)
    pairs = relative[forward[left]], relative[backward[right]]
    if len(left) < PAIRS_MIN or min(side.std() for side in pairs) < 1e-9:
        return None
    return float(np.corrcoef(*pairs)[0, 1])


def _passes(trace: Trace, kind: str) -> tuple[Ints, Ints] | None:
    """The rows of this type, with a number that both passes of a microbatch share."""
    if kind not in trace.kinds:
        return None
    rows = np.flatnonzero(trace.kind == trace.kinds.index(kind))
    rows = rows[trace.microbatch[rows] >= 0]
    if not len(rows):
        return None
    parts = (trace.step[rows], trace.worker[rows], trace.chunk[rows] + 1, trace.microbatch[rows])
    key = np.zeros(len(rows), np.int64)
    sizes = (
        len(trace.steps),
        len(trace.workers),
        int(trace.chunk.max()) + 2,
        int(trace.microbatch.max()) + 1,
    )
    for part, size in zip(parts, sizes, strict=True):
        key = key * size + part
    return key, rows
