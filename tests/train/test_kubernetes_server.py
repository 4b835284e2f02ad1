"""The server of `make test-kubernetes`: if it cannot be built, one sentence says why."""

from pathlib import Path

import pytest
from kubernetes_server import NotBuilt, fetch, require_room
from waiting import free_port

pytestmark = pytest.mark.slow


def test_a_missing_mirror_is_named(tmp_path: Path) -> None:
    """Without apt, or without Debian's keys, the sentence says that instead."""
    mirror = f"http://127.0.0.1:{free_port()}/debian"
    said = f"cannot be had from {mirror}.*: E: |no apt-get|debian-archive-keyring"
    with pytest.raises(NotBuilt, match=said) as error:
        fetch(tmp_path, tmp_path / "tree", mirror)
    assert len(str(error.value).splitlines()) == 1


def test_a_disk_without_room_is_told(tmp_path: Path) -> None:
    require_room(tmp_path, 1)
    with pytest.raises(NotBuilt, match="takes 1048576 GiB"):
        require_room(tmp_path, 1 << 50)
