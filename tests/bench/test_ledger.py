"""The ledger's benchmark: the keys others rely on, and that one more event costs the same late as early."""

from itertools import islice

import msgspec
import pytest

from bench.ledger import history, measure
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.reporting import report

pytestmark = pytest.mark.slow


@pytest.mark.soak
def test_what_is_measured() -> None:
    bench = measure(40_000)
    told = msgspec.to_builtins(bench)
    assert {"events_per_s", "peak_bytes", "append_us_10k", "append_us_1m"} <= set(told)
    assert all(value > 0 for value in told.values())


def test_the_history_it_folds_is_a_run_with_failures() -> None:
    ledger = Ledger()
    ledger.add(islice(history(), 40_000))
    told = report("bench", ledger.fold)
    assert sum(told.partition.values()) == told.paid_gpu_ns
    assert told.counts.incidents >= 1
    for category in ("useful", "recomputed", "starting", "data_stall", "checkpoint_stall", "dead_undetected"):
        assert told.partition[category] > 0
