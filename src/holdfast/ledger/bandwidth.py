"""Bus bandwidth of a collective: its speed in a number that does not depend on how many ranks took part.

The factors are those of NVIDIA nccl-tests (doc/PERFORMANCE.md): the bytes that must cross each rank's link
over the bytes of the buffer. Where switches reduce on the way (NVLink SHARP), bus bandwidth can exceed the
speed of the wire, so compare it only with one that was measured the same way.
"""

from holdfast.record.events import Collective
from holdfast.wording.units import SECOND_NS


def bus_bytes_per_s(collective: Collective, size_bytes: int, ranks: int, duration_ns: int) -> float | None:
    """Bus bandwidth of one collective; None where no bytes crossed between ranks or no time was measured.

    size_bytes is counted as nccl-tests prints it, the larger of a rank's two buffers: what an all-gather ends
    with, what a reduce-scatter starts from, and for the others the buffer itself.
    """
    if ranks < 2 or size_bytes <= 0 or duration_ns <= 0:
        return None
    return size_bytes * _bus_factor(collective, ranks) * SECOND_NS / duration_ns


def _bus_factor(collective: Collective, ranks: int) -> float:
    match collective:
        case "all-reduce":
            return 2 * (ranks - 1) / ranks
        case "all-gather" | "reduce-scatter" | "all-to-all":
            return (ranks - 1) / ranks
        case "broadcast":
            return 1.0
