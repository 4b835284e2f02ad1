import pytest

from bench.audits import AuditBench, Fault, Overhead, Struck, campaign_of, found_in, innocent_in, table

FAULTS = [
    Fault(step=step, rank=rank, what=what, bits=1)
    for step, rank, what in ((5, 0, "gradient"), (9, 1, "weight"), (13, 1, "gradient"))
]
OUTPUT = """
holdfast: planned corrupt strikes n0.0 at step 5 (lane)
holdfast: silent corruption on node n0: n0.0 computed lane 4 of step 5 wrongly; when it computed ...
holdfast: n0.0 lost (silent corruption: lane 4 of step 5)
holdfast: planned corrupt strikes n0.1 at step 9 (lane)
holdfast: planned corrupt strikes n0.1 at step 13 (lane)
holdfast: n0.1 lost (silent corruption: state before step 13)
"""


def test_a_fault_counts_as_found_in_its_own_step() -> None:
    assert found_in(OUTPUT, FAULTS) == [True, False, True]
    assert innocent_in(OUTPUT) == 0
    assert innocent_in(OUTPUT + "holdfast: n0.2 lost (silent corruption: lane 1 of step 14)\n") == 1


def test_a_campaign_is_held_against_the_rate() -> None:
    found = campaign_of([True] * 30 + [False] * 70, 0.25)
    assert (found.struck, found.found, found.share) == (100, 30, 0.3)
    assert found.deviations == pytest.approx(5 / 18.75**0.5)


def bench(found: int, total: float) -> AuditBench:
    cost = Overhead(
        parameters=3_000_000,
        lane_s=0.1,
        state_s=0.01,
        every=2,
        states=total,
        prints=0.0,
        plans=0.0,
        total=total,
    )
    return AuditBench(
        members=4,
        lanes=16,
        struck=(Struck(what="weight", bits=1, struck=2, found=found),),
        bits_equal=True,
        innocent=0,
        campaign=campaign_of([True, False, False, False], 0.25),
        clean_audits=1024,
        false_alarms=0,
        overhead=cost,
    )


def test_what_is_missed_or_costs_too_much_shows() -> None:
    assert bench(2, 0.009).is_good
    assert not bench(1, 0.009).is_good
    assert not bench(2, 0.011).is_good
    assert "1 of 2 found before the commit" in table(bench(1, 0.009))
