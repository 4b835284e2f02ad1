"""What saves of a run may take of storage that others share: so many bytes a second, and no two runs at once.

Members keep to it without talking to each other: each takes its share of the rate. When a run ends, nobody
waits any more: what is not saved then is lost.
"""

import hashlib
import threading
import time

from holdfast.record.errors import InputError

JITTER_SHARE_MAX = 0.2
"""By so much of the interval saves of different runs move apart: near the best one that costs little."""


class StorageBudget:
    """bytes_per_s: of all members together, what is written and what is read back."""

    def __init__(self, bytes_per_s: float) -> None:
        if not bytes_per_s > 0:
            raise InputError(
                f"{bytes_per_s:g} bytes a second write no checkpoint.", hint="Give a rate above 0."
            )
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_s = self._paused_until_s = time.monotonic()
        self._paused_s = 0.0
        self._lifted = threading.Event()

    @property
    def paused_s(self) -> float:
        """How long it has held saves up in all, up to the end of what is waiting now."""
        with self._lock:
            return self._paused_s

    def take(self, count: int, members: int = 1) -> None:
        """Wait until so many bytes may be written or read, where so many members do it at once."""
        with self._lock:
            now_s = time.monotonic()
            begin_s = max(now_s, self._free_s)
            self._free_s = begin_s + count * members / self._bytes_per_s
            self._paused_s += max(0.0, begin_s - max(now_s, self._paused_until_s))
            self._paused_until_s = max(self._paused_until_s, begin_s)
        self._lifted.wait(begin_s - now_s)

    def lift(self) -> None:
        """From now on nobody waits."""
        self._lifted.set()


def jitter(run: str, number: int) -> float:
    """Between 0 and 1: how far this save of a run moves away from those of others. The same for all
    members. Without a name: 0.
    """
    if not run:
        return 0.0
    drawn = hashlib.blake2b(f"{run}\0{number}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn) / 2**64
