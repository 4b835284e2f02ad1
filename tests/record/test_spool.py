from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.record.spool import LINE_BYTES_MAX, Drops, Owner, Spool

OWNER = Owner(token="abcdefghijkl", source="host/1", run="night")


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
    spool = Spool.create(tmp_path_factory.mktemp("ring") / "ring", OWNER, capacity_bytes=97)
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
    path = tmp_path / "ring"
    owned = Spool.create(path, OWNER, capacity_bytes=64)
    owned.put(b"first\n")
    owned.note(Drops(total=3, reported=1, last_ns=7))
    assert Spool.adopt(path) is None
    assert Spool.snapshot(path) == b"first\n"
    owned.close()

    heir = Spool.adopt(path)
    assert heir is not None
    assert Spool.adopt(path) is None
    assert (heir.owner, heir.drops) == (OWNER, Drops(total=3, reported=1, last_ns=7))
    assert heir.pending() == b"first\n"
    heir.close()


def test_a_sealed_spool_and_a_line_beyond_the_bound_are_refused(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path / "ring", OWNER, capacity_bytes=2 * LINE_BYTES_MAX)
    assert not spool.put(b"x" * LINE_BYTES_MAX + b"\n")
    assert spool.put(b"x" * (LINE_BYTES_MAX - 1) + b"\n")
    spool.seal()
    assert not spool.put(b"\n")
    spool.close()


def test_names_that_do_not_fit_the_header_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="names of run and source"):
        Spool.create(tmp_path / "ring", Owner(token="t", source="s", run="r" * 5000), capacity_bytes=64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"something else", b"\0" * 10_000])
def test_what_is_no_spool_is_not_adopted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ring").write_bytes(content)
    with pytest.raises(OSError, match="is not a spool"):
        Spool.adopt(tmp_path / "ring")
