"""Limits how much shared storage the saves of a run use: this many bytes per second, and runs save at
different times.

Members keep to it without talking to each other: each takes its share of the rate. When a run ends, the limit
is lifted, because what is not saved then is lost.
"""

import hashlib
import threading
import time

from holdfast import wording
from holdfast.record.errors import InputError

JITTER_SHARE_MAX = 0.2
"""Saves of different runs move apart by up to this share of the interval: near the optimum that
costs little.
"""


class StorageBudget:
    """bytes_per_s: for all members together, written and read back."""

    def __init__(self, bytes_per_s: float) -> None:
        if not bytes_per_s > 0:
            raise InputError(
                f"No checkpoint can be written at {wording.number(bytes_per_s)} bytes per second.",
                hint="Give a rate above 0.",
            )
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_s = self._paused_until_s = time.monotonic()
        self._paused_s = 0.0
        self._lifted = threading.Event()

    @property
    def paused_s(self) -> float:
        """How long it has delayed saves in total, including the current wait up to its end."""
        with self._lock:
            return self._paused_s

    def take(self, count: int, members: int = 1) -> None:
        """Wait until this many bytes may be written or read, if this many members do it at once."""
        with self._lock:
            now_s = time.monotonic()
            begin_s = max(now_s, self._free_s)
            self._free_s = begin_s + count * members / self._bytes_per_s
            self._paused_s += max(0.0, begin_s - max(now_s, self._paused_until_s))
            self._paused_until_s = max(self._paused_until_s, begin_s)
        self._lifted.wait(begin_s - now_s)

    def lift(self) -> None:
        """Stop limiting: no call waits from now on."""
        self._lifted.set()


def jitter(run: str, number: int) -> float:
    """How far this save of a run moves away from those of others, between 0 and 1. The same for all members;
    0 without a name.
    """
    if not run:
        return 0.0
    drawn = hashlib.blake2b(f"{run}\0{number}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn) / 2**64
