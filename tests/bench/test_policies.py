"""`holdfast bench policies` on a small cluster for a day: every cell, and which is best."""

import pytest

from bench.policies import POLICIES, measure

pytestmark = pytest.mark.slow


def test_every_policy_on_every_cluster() -> None:
    bench = measure(runs=1, days=1, processes=1, sizes=(1_024,))
    assert [(cell.spare_nodes, cell.policy) for cell in bench.cells] == [
        (spares, name) for spares in (0, 2) for name in POLICIES
    ]
    assert all(cell.is_exact for cell in bench.cells)
    for spares in (0, 2):
        cells = [cell for cell in bench.cells if cell.spare_nodes == spares]
        best = max(cell.useful_of_paid.p50 for cell in cells)
        assert {cell.useful_of_paid.p50 == best for cell in cells if cell.is_best} == {True}
        # Spares are paid for and idle, so less of what is paid for is useful than of the time in steps.
        assert all(cell.useful_of_paid.p50 <= cell.effective_time.p50 for cell in cells)
