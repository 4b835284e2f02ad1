"""The last frames that were sent to somebody, counted: what a broken connection swallowed is sent again.

Both ends count what they have sent and what they have received since they first met. When they meet again
over another connection, each says how much it has received, and the other goes on behind that.
"""

from collections import deque
from collections.abc import Iterable
from typing import Self

FRAMES_MAX = 4096
"""So many are kept, or fewer..."""
FRAMES_BYTES_MAX = 16 << 20
"""...if they are this large together. What a coordinator that dies has not read yet is far less."""


class SentFrames:
    """What was sent, and the last of it once more."""

    def __init__(self, frames_max: int = FRAMES_MAX) -> None:
        self.count = 0
        self._frames_max = frames_max
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0

    @classmethod
    def restored(cls, frames_max: int, count: int, kept: Iterable[bytes]) -> Self:
        """As it was elsewhere: so many were sent, and these are the last of them."""
        sent = cls(frames_max)
        for frame in kept:
            sent.add(frame)
        sent.count = count
        return sent

    @property
    def kept(self) -> tuple[bytes, ...]:
        return tuple(self._kept)

    def add(self, frame: bytes) -> None:
        self.count += 1
        if not self._frames_max:
            return
        self._kept.append(frame)
        self._kept_bytes += len(frame)
        while len(self._kept) > self._frames_max or self._kept_bytes > FRAMES_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popleft())

    def after(self, received: int) -> list[bytes] | None:
        """What the other end lacks that has received so many; None: that is not kept, or was never sent."""
        missing = self.count - received
        if not 0 <= missing <= len(self._kept):
            return None
        return list(self._kept)[len(self._kept) - missing :]
