"""Files with secrets: what is read, and what is refused before it can block or leak."""

import os
from pathlib import Path

import pytest

from holdfast.record.errors import InputError
from holdfast.record.secret_files import SECRET_BYTES_MAX, read_secret


def read(path: Path, *, is_private: bool = True) -> str:
    return read_secret(path, what="the token", hint="Make one.", is_private=is_private)


def test_a_secret_is_read_and_must_be_private_only_if_it_can_be(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o640)
    assert read(path) == "secret\n"
    path.chmod(0o644)
    assert read(path, is_private=False) == "secret\n"
    with pytest.raises(InputError, match="Every user can read the token in") as refused:
        read(path)
    assert refused.value.hint == f"chmod o= {path}"


@pytest.mark.parametrize("is_private", [True, False])
def test_a_fifo_and_a_device_are_refused_at_once(tmp_path: Path, is_private: bool) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(InputError, match=f"the token: {path} is not a regular file") as refused:
            read(path, is_private=is_private)
        assert refused.value.hint


def test_what_cannot_be_read_is_told_with_its_reason(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "nowhere", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(InputError, match=f"the token: {path}: {reason}"):
            read(path)
    large = tmp_path / "large"
    large.write_bytes(b"x" * (SECRET_BYTES_MAX + 1))
    with pytest.raises(InputError, match="more than 1 MiB"):
        read(large, is_private=False)
    large.write_bytes(b"\xff")
    with pytest.raises(InputError, match="is not text"):
        read(large, is_private=False)
