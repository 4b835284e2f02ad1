"""The benchmark of checkpoints, small: its figures are there, and are right where that is known."""

from pathlib import Path

import msgspec
import pytest

from bench.checkpoint import measure, table

pytestmark = pytest.mark.slow

STATE_BYTES = 64 << 20


@pytest.mark.soak
def test_every_figure_is_measured(tmp_path: Path) -> None:
    bench = measure(tmp_path, STATE_BYTES, turns=1)
    assert all(value > 0 for value in msgspec.structs.asdict(bench).values())
    assert bench.state_bytes == STATE_BYTES
    assert bench.incremental_ratio_dense == pytest.approx(1, abs=0.01)
    assert bench.incremental_ratio_lora < 0.05
    assert not list(tmp_path.iterdir())
    assert len(table(bench).splitlines()) == 9
