"""The benchmark of snapshots, small: its figures are there, and are right where that is known."""

from pathlib import Path

import msgspec
import pytest

from bench.snapshot import measure, table

pytestmark = [pytest.mark.slow, pytest.mark.soak]


def test_every_figure_is_measured(tmp_path: Path) -> None:
    bench = measure(tmp_path, size="tiny", rounds=1)
    figures = msgspec.structs.asdict(bench)
    for name in ("d2h_ratio", "h2d_ratio", "torch_save_stall_s", "dcp_async_stall_s", "step_s", "whole_s"):
        assert figures[name] > 0, name
    assert bench.host_bytes >= 2 * bench.state_bytes > 0
    assert not list(tmp_path.iterdir())
    assert len(table(bench).splitlines()) == 8
