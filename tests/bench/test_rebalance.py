import pytest

from bench.rebalance import LANES, RebalanceBench, Slowed, Told, summary, table

STEPS = 10


def told(step_s: float, lane_s: float, counts: tuple[int, ...], digest: str = "d") -> Told:
    ends_s = tuple(step_s * number for number in range(STEPS))
    return Told(ends_s=ends_s, counts=counts, lanes_s=(lane_s,) * sum(counts), digest=digest)


def runs(digest: str = "d") -> Slowed:
    """A lane takes 1 s, and 2 s on the slow member; a step takes 0.5 s beside them."""
    healthy = [told(4.5, 1.0, (4,) * STEPS)] * 4
    even = [told(8.5, lane_s, (4,) * STEPS) for lane_s in (1.0, 2.0, 1.0, 1.0)]
    counts = ((4,) * 6 + (count,) * 4 for count in (5, 2, 5, 4))
    rebalanced = [
        told(5.5, lane_s, own, digest) for lane_s, own in zip((1.0, 2.0, 1.0, 1.0), counts, strict=True)
    ]
    return summary("asleep", healthy, even, rebalanced)


def test_the_best_deal_is_what_members_could_have_done() -> None:
    found = runs()
    assert found.best_step_s == pytest.approx(5.5)
    assert sum(found.best_shares) == LANES
    assert found.even == pytest.approx(5.5 / 8.5)
    assert found.rebalanced == pytest.approx(1.0)
    assert (found.moved_after_steps, found.shares) == (6, (5, 2, 5, 4))
    assert found.bits_equal


def test_other_bits_show() -> None:
    found = runs("other")
    assert not found.bits_equal
    bench = RebalanceBench(members=4, lanes=LANES, times=2.0, slowed=(found,), not_measured={"quota": "none"})
    lines = table(bench)
    assert "OTHER BITS" in lines
    assert "not measured: none" in lines
    assert "65%" in lines
