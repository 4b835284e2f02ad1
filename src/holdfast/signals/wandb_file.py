"""The file that Weights & Biases writes for a run (`run-*.wandb`): the time and the number of each step.

It is a log in LevelDB's format: blocks of 32 KiB, in which a record is whole or in pieces, after a W&B header
of seven bytes. Each record is a protobuf message, of which only a history is read: its items have a key, in
one of two ways, and a value as JSON. Checksums are ignored: records that make no sense give no step.
"""

import struct
from collections.abc import Iterator

import msgspec

from holdfast.record.untrusted import UNDECODABLE

MAGIC = b":W&B"
FILE_HEAD_BYTES = 7
BLOCK_BYTES = 32 << 10
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
RECORD_BYTES_MAX = 16 << 20
HISTORY, ITEM, STEP, STEP_NUMBER = 2, 1, 2, 1
KEY, NESTED_KEY, VALUE_JSON = 1, 2, 16
"""Numbers of fields, from wandb_internal.proto."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
VARINT_BYTES_MAX = 10
_HEAD = struct.Struct("<IHB")


def told(data: bytes, offset: int) -> tuple[list[tuple[object, object]], int]:
    """The time and the step of each history in these bytes, and how many bytes were used.

    offset: where in the file they begin. An incomplete record is left for the next time.
    """
    found: list[tuple[object, object]] = []
    if not offset and not data.startswith(MAGIC):
        return found, 0
    used = 0
    for record, end in _records(data, offset):
        used = end
        if (shown := _history(record)) is not None:
            found.append(shown)
    return found, used


def _records(data: bytes, offset: int) -> Iterator[tuple[bytes, int]]:
    """Each record, and where it ends."""
    place = 0 if offset else FILE_HEAD_BYTES
    pieces: list[bytes] = []
    while True:
        left = BLOCK_BYTES - (offset + place) % BLOCK_BYTES
        if left < _HEAD.size:  # too little for a header: it begins with the next block
            place += left
            continue
        if place + _HEAD.size > len(data):
            return
        _, length, kind = _HEAD.unpack_from(data, place)
        if kind not in (WHOLE, FIRST, MIDDLE, LAST) or _HEAD.size + length > left:
            if place + left > len(data):
                return
            pieces, place = [], place + left  # not a record: continue with the next block
            continue
        end = place + _HEAD.size + length
        if end > len(data):
            return
        if kind in (WHOLE, FIRST):
            pieces = []
        pieces.append(data[place + _HEAD.size : end])
        place = end
        if kind in (WHOLE, LAST):
            if sum(map(len, pieces)) <= RECORD_BYTES_MAX:
                yield b"".join(pieces), end
            pieces = []


def _history(record: bytes) -> tuple[object, object] | None:
    """The time and the step; None for a record of another kind."""
    said: dict[str, object] = {}
    for number, value in fields(record):
        if number != HISTORY or not isinstance(value, bytes):
            continue
        for part, inner in fields(value):
            if part == ITEM and isinstance(inner, bytes):
                said.update(_item(inner))
            elif part == STEP and isinstance(inner, bytes):
                said.setdefault("_step", dict(fields(inner)).get(STEP_NUMBER, 0))
    if "_timestamp" not in said or "_step" not in said:
        return None
    return said["_timestamp"], said["_step"]


def _item(data: bytes) -> dict[str, object]:
    """Its key and value, if it is one of the two that are wanted."""
    key = value = b""
    for number, field in fields(data):
        if number in (KEY, NESTED_KEY) and isinstance(field, bytes):
            key = key or field
        elif number == VALUE_JSON and isinstance(field, bytes):
            value = field
    if key not in (b"_timestamp", b"_step"):
        return {}
    try:
        return {key.decode(): msgspec.json.decode(value)}
    except UNDECODABLE:
        return {}


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message, up to the first malformed one."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        kind = tag & 7
        if kind == VARINT:
            value, place = _varint(data, place)
            if place <= len(data):
                yield tag >> 3, value
            continue
        if kind == BYTES:
            length, place = _varint(data, place)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            return
        if place + length > len(data):
            return
        yield tag >> 3, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number and where it ends; a place beyond the data if it is incomplete."""
    number = shift = 0
    for at in range(place, min(place + VARINT_BYTES_MAX, len(data))):
        number |= (data[at] & 0x7F) << shift
        shift += 7
        if data[at] < 0x80:
            return number, at + 1
    return 0, len(data) + 1
