"""Weights & Biases' own file: one that it wrote, and records in pieces as it writes them."""

import json
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.record.errors import InputError
from holdfast.signals.step_files import StepFiles
from holdfast.signals.wandb_file import BLOCK_BYTES, told

CAPTURED = Path(__file__).parents[1] / "data" / "wandb" / "run-0yuxogsm.wandb"
HEAD = b":W&B" + struct.pack("<HB", 0xBEE1, 0)


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def history(step: int, at_s: float, *, padding: int = 0, key: int = 2) -> bytes:
    """A record with a history of these values, and one of this length beside them."""
    values: dict[str, object] = {"loss": "x" * padding, "_timestamp": at_s, "_step": step}
    items = (
        field(key, name.encode()) + field(16, json.dumps(value).encode()) for name, value in values.items()
    )
    return varint(1 << 3) + varint(step) + field(2, b"".join(field(1, item) for item in items))


def written(*records: bytes) -> bytes:
    """As LevelDB writes a log: no piece of a record crosses the end of a block."""
    file = bytearray(HEAD)
    for record in records:
        rest, is_first = record, True
        while is_first or rest:
            left = BLOCK_BYTES - len(file) % BLOCK_BYTES
            if left < 7:
                file += bytes(left)
                continue
            piece, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if not rest else 2) if is_first else (4 if not rest else 3)
            file += struct.pack("<IHB", 0, len(piece), kind) + piece
            is_first = False
    return bytes(file)


def test_a_file_that_wandb_wrote_is_read() -> None:
    steps = StepFiles(CAPTURED).steps()
    assert [step for _, step in steps] == list(range(40))
    assert steps[0][0] == pytest.approx(1_794_855_691_241_184_000, abs=1_000)
    gaps_s = [(after[0] - before[0]) / 1e9 for before, after in pairwise(steps)]
    assert all(0.02 <= gap_s < 1 for gap_s in gaps_s)


@pytest.mark.parametrize("padding", [0, 100, BLOCK_BYTES - 120, 3 * BLOCK_BYTES])
@pytest.mark.parametrize("key", [1, 2])
def test_records_in_pieces_are_one_again(padding: int, key: int) -> None:
    data = written(*(history(step, 100.0 + step, padding=padding, key=key) for step in range(5)))
    assert told(data, 0) == ([(100.0 + step, step) for step in range(5)], len(data))


def test_a_file_that_grows_is_read_on_wherever_it_was_cut(tmp_path: Path) -> None:
    data = written(*(history(step, 100.0 + step, padding=700) for step in range(100)))
    path = tmp_path / "run-abc.wandb"
    path.write_bytes(b"")
    files = StepFiles(path)
    for cut in range(0, len(data) + 997, 997):
        path.write_bytes(data[:cut])
        assert len(files.steps()) <= cut / 700
    assert files.steps() == [((100 + step) * 10**9, step) for step in range(100)]


def test_what_is_no_record_costs_only_its_block() -> None:
    data = bytearray(written(*(history(step, 100.0 + step, padding=9_000) for step in range(20))))
    struct.pack_into("<IHB", data, 7, 0, 1, 9)  # there is no such kind
    found, used = told(bytes(data), 0)
    assert used == len(data)
    assert 15 <= len(found) < 20
    assert found[-1] == (119.0, 19)
    assert told(b"{not one of theirs", 0) == ([], 0)


def test_a_directory_of_either_kind_is_read_and_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file of TensorBoard or of Weights & Biases in"):
        StepFiles(tmp_path).steps()
    run = tmp_path / "offline-run-20261116_190128-0yuxogsm"
    run.mkdir()
    (run / CAPTURED.name).write_bytes(CAPTURED.read_bytes())
    assert len(StepFiles(tmp_path).steps()) == 40
