"""Whether a file is there: yes, no, or a mistake that is told."""

from pathlib import Path

import pytest

from holdfast.record.errors import InputError
from holdfast.record.files import is_directory, is_there


def test_what_is_there_is_and_what_is_not_is_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    paths = (tmp_path, file, tmp_path / "gone", file / "beneath a file")
    assert [is_there(path) for path in paths] == [True, True, False, False]
    assert [is_directory(path) for path in paths] == [True, False, False, False]


def test_what_cannot_be_seen_is_a_mistake(tmp_path: Path) -> None:
    # A name that is too long fails as one that may not be searched does, and for every user.
    with pytest.raises(InputError, match=r"Cannot access .*: File name too long"):
        is_there(tmp_path / ("x" * 300))
