"""The last frames sent to a peer, counted, so that frames swallowed by a broken connection are sent again.

Both ends count the frames they have sent and received since their first connection. When they reconnect, each
says how many it has received, and the other continues after those.
"""

from collections import deque
from collections.abc import Iterable
from typing import Self

FRAMES_MAX = 4096
"""How many frames are kept, or fewer..."""
FRAMES_BYTES_MAX = 16 << 20
"""...if they exceed this size together. A dying coordinator leaves far less unread."""


class SentFrames:
    """Counts the frames sent and keeps the last ones."""

    def __init__(self, frames_max: int = FRAMES_MAX) -> None:
        self.count = 0
        self._frames_max = frames_max
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0

    @classmethod
    def restored(cls, frames_max: int, count: int, kept: Iterable[bytes]) -> Self:
        """Restore another process's: `count` frames were sent, and `kept` are the last of them."""
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
        """The frames that the other end lacks after receiving this many. None if they are no longer kept, or
        it claims more than were sent.
        """
        missing = self.count - received
        if not 0 <= missing <= len(self._kept):
            return None
        return list(self._kept)[len(self._kept) - missing :]
