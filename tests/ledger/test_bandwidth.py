"""Bus bandwidth compared with lines that nccl-tests printed."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.references import bus_bytes_per_s
from holdfast.record.events import Collective

ALL = get_args(Collective)
sizes_bytes = st.integers(1, 2**40)
durations_ns = st.integers(1, 10**12)
ranks = st.integers(2, 10**5)


@pytest.mark.parametrize(
    ("size_bytes", "ranks", "duration_us", "bus_gb_per_s"),
    [
        (17179869184, 16, 66132, 487.09),  # AWS, 2 x p5.48xlarge
        (17179869184, 128, 92173, 369.86),  # AWS, 16 x p5en.48xlarge
        (8589934592, 72, 20299, 834.57),  # CoreWeave, one GB200 NVL72 rack
        (17179869184, 128, 42067, 810.41),  # CoreWeave, two racks
        (17179869184, 1440, 84625, 405.74),  # CoreWeave, twenty racks
    ],
)
def test_all_reduce_is_what_nccl_tests_printed(
    size_bytes: int, ranks: int, duration_us: int, bus_gb_per_s: float
) -> None:
    ours = bus_bytes_per_s("all-reduce", size_bytes, ranks, duration_us * 1000)
    assert ours == pytest.approx(bus_gb_per_s * 1e9, rel=1e-4)


@given(size_bytes=sizes_bytes, ranks=ranks, duration_ns=durations_ns)
def test_the_factors_of_nccl_tests(size_bytes: int, ranks: int, duration_ns: int) -> None:
    algorithm_bytes_per_s = size_bytes / duration_ns * 1e9
    factors = {
        collective: (bus_bytes_per_s(collective, size_bytes, ranks, duration_ns) or 0) / algorithm_bytes_per_s
        for collective in ALL
    }
    part = (ranks - 1) / ranks
    assert factors == pytest.approx(
        {
            "all-reduce": 2 * part,
            "all-gather": part,
            "reduce-scatter": part,
            "all-to-all": part,
            "broadcast": 1,
        }
    )


@pytest.mark.parametrize("collective", ALL)
@pytest.mark.parametrize(("size_bytes", "ranks", "duration_ns"), [(0, 8, 1), (1, 1, 1), (1, 0, 1), (1, 8, 0)])
def test_what_measures_nothing_has_no_bandwidth(
    collective: Collective, size_bytes: int, ranks: int, duration_ns: int
) -> None:
    assert bus_bytes_per_s(collective, size_bytes, ranks, duration_ns) is None
