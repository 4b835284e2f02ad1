"""A run's name and endpoint in the home."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast.record.errors import InputError
from holdfast.run.endpoint import FILE, Endpoint, lost_runs, reserved, run_directory


@contextmanager
def no_room() -> Iterator[None]:
    """Files of this process cannot grow, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_home_is_named(tmp_path: Path) -> None:
    endpoint = Endpoint(host="127.0.0.1", port=1, token="t", pid=1)
    with (
        reserved(tmp_path, "r") as reservation,
        no_room(),
        pytest.raises(InputError, match=r"Cannot write .*endpoint\.json"),
    ):
        reservation.publish(endpoint)


@pytest.mark.parametrize(("endpoint", "lost"), [({}, ["r"]), ({"node_name": "other", "boot": "other"}, [])])
def test_only_its_own_machine_says_that_a_run_is_lost(
    tmp_path: Path, endpoint: dict[str, str], lost: list[str]
) -> None:
    """Other machines may share the home, but locks hold only on one machine."""
    directory = run_directory(tmp_path, "r")
    directory.mkdir(parents=True)
    left = msgspec.structs.replace(Endpoint(host="127.0.0.1", port=1, token="t", pid=1), **endpoint)
    (directory / FILE).write_bytes(msgspec.json.encode(left))
    assert [one.run for one in lost_runs(tmp_path)] == lost
