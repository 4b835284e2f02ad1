"""Frames out of a stream of bytes, as they come off a socket in pieces of any size."""

from collections.abc import Iterator

from holdfast.run.wire import FRAME_BYTES_MAX, LENGTH_BYTES, AnyMessage, frame_length, unframe


class FrameBuffer:
    """Keeps what has come of a frame until the rest is there. bytes_max: what a frame may have; it may be
    changed with every message, and is small for somebody who has proved nothing yet.
    """

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._data = bytearray()

    @property
    def is_begun(self) -> bool:
        """Whether there is a part of a frame, or more, that was not given yet."""
        return bool(self._data)

    def feed(self, data: bytes) -> Iterator[AnyMessage]:
        """The messages that are complete now. `MalformedFrame` where the bytes are no message of ours."""
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= LENGTH_BYTES:
                body = start + LENGTH_BYTES
                end = body + frame_length(bytes(self._data[start:body]), self.bytes_max)
                if end > len(self._data):
                    break
                start = end
                yield unframe(bytes(self._data[body:end]))
        finally:
            del self._data[:start]
