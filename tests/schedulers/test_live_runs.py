"""A live run of two nodes is asked to leave one of them, by control, and to take it back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import JOINS, Start

from holdfast.record.errors import HoldfastError
from holdfast.schedulers.live_runs import LiveRuns

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    starts = Start(tmp_path)
    yield starts
    for launched in starts.launched:
        launched.close()


def test_a_live_run_leaves_a_node_and_takes_it_back(start: Start, tmp_path: Path) -> None:
    launched = start("--nodes", "2", "--nproc-per-node", "1", "--run", "asked", script=JOINS)
    launched.until_printed("generation n0.0 n1.0$", 2)
    runs = LiveRuns(start.home)
    assert runs.reaches("asked")
    assert not runs.reaches("nobody")
    assert runs.drain("asked", "n1").ok
    launched.until_printed("generation n0.0$")
    assert runs.restore("asked", "n1").ok
    launched.until_printed(r"generation n0.0 n1.\S+$", 2)
    assert not runs.migrate("asked", "n7").ok
    (tmp_path / "enough").touch()
    assert launched.wait() == 0
    with pytest.raises(HoldfastError):
        runs.drain("asked", "n1")
