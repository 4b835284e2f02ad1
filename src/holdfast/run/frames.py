"""Frames out of a stream of bytes, as they come off a socket in pieces of any size."""

from collections.abc import Iterator

from holdfast.run.wire import LENGTH_BYTES, AnyMessage, frame_length, unframe


class FrameBuffer:
    """Keeps what has come of a frame until the rest is there."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[AnyMessage]:
        """The messages that are complete now. `MalformedFrame` where the bytes are no message of ours."""
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= LENGTH_BYTES:
                body = start + LENGTH_BYTES
                end = body + frame_length(bytes(self._data[start:body]))
                if end > len(self._data):
                    break
                start = end
                yield unframe(bytes(self._data[body:end]))
        finally:
            del self._data[:start]
