"""The file of a log: where writing continues, whatever was written to it before."""

import json
from pathlib import Path

import pytest

from holdfast.record.errors import InputError, StoreError
from holdfast.train.log import LOOK_BYTES, LogFile, cut_from

pytestmark = pytest.mark.slow


def lines(*steps: int, padding: int = 0) -> str:
    return "".join(json.dumps({"step": step, "text": "x" * padding}) + "\n" for step in steps)


@pytest.mark.parametrize("padding", [0, LOOK_BYTES // 3, 3 * LOOK_BYTES])
@pytest.mark.parametrize("torn", ["", '{"step": 6', '{"step": 2, "text": "x'])
def test_what_follows_a_step_is_cut_off(tmp_path: Path, padding: int, torn: str) -> None:
    path = tmp_path / "log.jsonl"
    for first in range(1, 8):
        path.write_text(lines(1, 2, 4, 4, 5, padding=padding) + torn)
        cut_from(path, first)
        kept = [step for step in (1, 2, 4, 4, 5) if step < first]
        assert path.read_text() == lines(*kept, padding=padding)


def test_a_new_writer_goes_on_where_the_last_one_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "log.jsonl"
    first, second = LogFile(path), LogFile(path)
    for step in (1, 2, 3):
        first(step, {"loss": 1 / step})
    with path.open("a") as file:
        file.write('{"step": 4, "lo')
    for step in (3, 4):
        second(step, {"loss": 1 / step})
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found == [{"step": step, "loss": 1 / step} for step in (1, 2, 3, 4)]


def test_a_file_that_is_not_a_log_is_left_alone(tmp_path: Path) -> None:
    for text in ("a letter\n", "[1]\n", '{"loss": 1}\n'):
        path = tmp_path / "notes.txt"
        path.write_text(text)
        with pytest.raises(InputError, match="did not write"):
            LogFile(path)(1, {})
        assert path.read_text() == text


def test_a_file_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"Cannot write step 7 to .*log\.jsonl: Is a directory\.") as told:
        LogFile(tmp_path / "log.jsonl")(7, {"loss": 1.0})
    assert "resumes after this step" in told.value.hint
