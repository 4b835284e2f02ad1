import fcntl
import os
import re
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.record.spool import (
    LINE_BYTES_MAX,
    SPOOL_BYTES,
    UNFINISHED_S_MAX,
    Drops,
    Owner,
    Spool,
    SpoolName,
    affordable_bytes,
    journal_digest,
)

OWNER = Owner.here(token="abcdefghijkl", run="night")
NAME = str(SpoolName(journal_digest(Path("/journal")), OWNER.token))
US = {os.geteuid()}
ANOTHER_UID = 65_534


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40).map(lambda body: body.replace(b"\n", b"") + b"\n"),
            st.integers(1, 60),
        ),
        max_size=60,
    )
)
def test_lines_come_out_as_they_went_in_however_often_the_ring_wraps(
    tmp_path_factory: pytest.TempPathFactory, moves: list[bytes | int]
) -> None:
    spool = Spool.create(tmp_path_factory.mktemp("ring") / NAME, OWNER, capacity_bytes=97)
    waiting: list[bytes] = []
    for move in moves:
        if isinstance(move, bytes):
            fits = sum(map(len, waiting)) + len(move) <= 97
            assert spool.put(move) is fits
            waiting += [move] * fits
        else:
            taken = spool.pending(move)
            assert len(taken) <= move
            whole_lines = taken.count(b"\n")
            assert taken == b"".join(waiting[:whole_lines])
            assert len(waiting) == whole_lines or len(taken) + len(waiting[whole_lines]) > move
            waiting = waiting[whole_lines:]
            spool.release(len(taken))
        assert spool.pending() == b"".join(waiting)
        assert spool.pending_bytes == len(b"".join(waiting))
    spool.close()


def test_a_spool_has_one_owner_and_its_heir_finds_everything(tmp_path: Path) -> None:
    path = tmp_path / NAME
    owned = Spool.create(path, OWNER, capacity_bytes=64)
    owned.put(b"first\n")
    owned.note(Drops(total=3, reported=1, last_ns=7))
    assert Spool.adopt(path, US) is None
    assert Spool.snapshot(path, US) == b"first\n"
    owned.close()

    heir = Spool.adopt(path, US)
    assert heir is not None
    assert Spool.adopt(path, US) is None
    assert (heir.owner, heir.drops) == (OWNER, Drops(total=3, reported=1, last_ns=7))
    assert heir.pending() == b"first\n"
    heir.close()


def test_a_spool_in_use_is_left_alone_before_anything_in_it_is_looked_at(tmp_path: Path) -> None:
    """Who polls a journal comes by every living spool each time, so that has to be cheap."""
    owned = Spool.create(tmp_path / NAME, OWNER, capacity_bytes=64)
    with (tmp_path / NAME).open("r+b") as file:
        file.write(b"no header at all")
    assert Spool.adopt(tmp_path / NAME, US) is None
    owned.close()


def test_a_sealed_spool_and_a_line_beyond_the_bound_are_refused(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path / NAME, OWNER, capacity_bytes=2 * LINE_BYTES_MAX)
    assert not spool.put(b"x" * LINE_BYTES_MAX + b"\n")
    assert spool.put(b"x" * (LINE_BYTES_MAX - 1) + b"\n")
    spool.seal()
    assert not spool.put(b"\n")
    spool.close()


def test_names_that_do_not_fit_the_header_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="names of run and source"):
        Spool.create(tmp_path / NAME, Owner.here(token=OWNER.token, run="r" * 5000), capacity_bytes=64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"something else", b"holdfast spool 2" + b"\0" * 10_000])
def test_what_is_no_spool_is_not_adopted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    for look in (Spool.adopt, Spool.snapshot):
        with pytest.raises(OSError, match="not a spool"):
            look(tmp_path / NAME, US)
    assert (tmp_path / NAME).read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"\0" * 10_000])
def test_a_spool_whose_maker_did_not_live_to_finish_it_is_removed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / NAME
    path.write_bytes(content)
    assert Spool.snapshot(path, US) == b""
    assert Spool.adopt(path, US) is None
    assert path.exists()  # its maker may be about to lock it

    long_ago_s = time.time() - UNFINISHED_S_MAX
    os.utime(path, (long_ago_s, long_ago_s))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # its maker is at it still
        assert Spool.adopt(path, US) is None
        assert path.exists()
    assert Spool.adopt(path, US) is None
    assert not path.exists()


@given(st.binary(max_size=300))
def test_a_header_of_any_kind_is_refused_in_one_way(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("header") / NAME
    path.write_bytes(b"holdfast spool 1" + junk + b"\0" * 5_000)
    with pytest.raises(OSError, match="not a spool"):
        Spool.adopt(path, US)


@pytest.mark.parametrize("token", ["zzzzzzzzzzzz", "/tmp/elsewhere", "../../etc/x", ""])
def test_a_spool_with_another_token_than_its_name_is_none(tmp_path: Path, token: str) -> None:
    """A token becomes part of a path: it counts only as far as the file's name vouches for it."""
    Spool.create(tmp_path / NAME, msgspec.structs.replace(OWNER, token=token), capacity_bytes=64).close()
    for look in (Spool.adopt, Spool.snapshot):
        with pytest.raises(OSError, match="not a spool"):
            look(tmp_path / NAME, US)


@pytest.mark.parametrize(
    "name",
    ["holdfast-a.spool", NAME.replace("abc", "../"), NAME.upper(), NAME + "\n", f"x{NAME}", NAME[:-6]],
)
def test_only_exact_names_are_names_of_spools(name: str) -> None:
    assert SpoolName.parse(name) is None
    assert SpoolName.parse(NAME) == SpoolName(journal_digest(Path("/other/../journal/")), OWNER.token)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    real = tmp_path / "real" / NAME
    real.parent.mkdir()
    Spool.create(real, OWNER, capacity_bytes=64).close()
    (tmp_path / NAME).symlink_to(real)
    for look in (Spool.adopt, Spool.snapshot):
        with pytest.raises(OSError, match="symbolic links"):
            look(tmp_path / NAME, US)


def test_a_spool_of_two_names_is_not_inherited_under_either(tmp_path: Path) -> None:
    """A user gave it a second name, perhaps so that its lines end up in another journal."""
    Spool.create(tmp_path / NAME, OWNER, capacity_bytes=64).close()
    other = tmp_path / str(SpoolName("0" * 16, OWNER.token))
    other.hardlink_to(tmp_path / NAME)
    assert Spool.adopt(other, US) is None


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(PermissionError, match="not a file of a trusted user"):
        Spool.adopt(tmp_path / NAME, US)


@pytest.mark.root
def test_a_spool_of_a_user_who_is_not_trusted_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / NAME
    spool = Spool.create(path, OWNER, capacity_bytes=64)
    spool.put(b"forged\n")
    spool.close()
    os.chown(path, ANOTHER_UID, ANOTHER_UID)
    path.chmod(0o666)
    for look in (Spool.adopt, Spool.snapshot):
        with pytest.raises(PermissionError, match="not a file of a trusted user"):
            look(path, US)
    assert Spool.snapshot(path, {*US, ANOTHER_UID}) == b"forged\n"


@pytest.mark.parametrize(
    ("host", "boot_id", "is_adopted"),
    [
        ("elsewhere", "another boot", False),  # where the lock may not reach: an NFS without locks, say
        ("elsewhere", OWNER.boot_id, True),  # a container of this machine
        (OWNER.host, "another boot", True),  # this machine, started anew since
    ],
    ids=["elsewhere", "container", "reboot"],
)
def test_a_spool_is_inherited_on_its_own_machine_and_read_anywhere(
    tmp_path: Path, host: str, boot_id: str, is_adopted: bool
) -> None:
    owner = msgspec.structs.replace(OWNER, host=host, boot_id=boot_id)
    left = Spool.create(tmp_path / NAME, owner, capacity_bytes=64)
    left.put(b"last\n")
    left.close()
    assert re.fullmatch(r"[0-9a-f-]{36}", OWNER.boot_id)
    assert Spool.snapshot(tmp_path / NAME, US) == b"last\n"
    heir = Spool.adopt(tmp_path / NAME, US)
    assert (heir is not None) is is_adopted
    if heir is not None:
        heir.close()


@pytest.mark.root
@pytest.mark.parametrize(("size_mib", "affordable"), [(1024, SPOOL_BYTES), (32, 2 * 2**20), (8, None)])
def test_a_spool_takes_a_small_share_of_the_room_there_is(
    tmp_path: Path, size_mib: int, affordable: int | None
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", tmp_path], check=True)
    try:
        if affordable is None:
            with pytest.raises(OSError, match="too little room for a spool"):
                affordable_bytes(tmp_path, SPOOL_BYTES)
            assert affordable_bytes(tmp_path, 1_000) == 1_000  # so little was asked for that it can be had
        else:
            assert affordable_bytes(tmp_path, SPOOL_BYTES) == affordable
    finally:
        subprocess.run(["umount", tmp_path], check=True)
