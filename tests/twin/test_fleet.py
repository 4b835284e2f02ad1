from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.twin.failures import Failure, FailureClass
from holdfast.twin.fleet import Fleet

ROW = FailureClass(name="crash", part="gpu", rate_per_1000_node_days=1, source="a test")


def check(fleet: Fleet, machines: int) -> None:
    """Every machine is at work, spare or out, and every place has one machine or is vacant."""
    at_work = {place: fleet.machine_at(place) for place in range(fleet.places)}
    working = [machine for machine in at_work.values() if machine is not None]
    assert sorted([*working, *fleet.spares, *fleet.out]) == list(range(machines))
    assert sorted(fleet.vacant) == [place for place, machine in at_work.items() if machine is None]
    for place, machine in at_work.items():
        assert machine is None or fleet.place_of(machine) == place
    assert all(fleet.place_of(machine) is None for machine in [*fleet.spares, *fleet.out])


@given(
    st.integers(1, 12),
    st.integers(0, 3),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["out", "fill", "mend", "gather"]), st.integers(0, 20)), max_size=40),
)
def test_machines_are_conserved(
    places: int, spares: int, size: int, happenings: list[tuple[str, int]]
) -> None:
    fleet = Fleet(places=places - places % size, spares=spares)
    machines = fleet.places + spares
    for now_ns, (what, number) in enumerate(happenings):
        if what == "out" and number < machines and number not in fleet.out:
            fleet.take_out(number, 7, now_ns)
        elif what == "fill":
            fleet.fill()
            assert not (fleet.vacant and fleet.spares)
        elif what == "mend" and fleet.repaired_ns is not None:
            fleet.mend()
        elif what == "gather":
            fleet.gather_vacancies(size)
        check(fleet, machines)


@given(st.integers(1, 4), st.integers(2, 5), st.data())
def test_incomplete_groups_complete_each_other(size: int, groups: int, data: st.DataObject) -> None:
    fleet = Fleet(places=groups * size, spares=0)
    broken = data.draw(st.sets(st.integers(0, groups * size - 1)))
    for machine in broken:
        fleet.take_out(machine, 1, 0)
    lacked = set(fleet.vacant)
    filled = fleet.gather_vacancies(size)
    check(fleet, groups * size)
    missing = Counter(place // size for place in fleet.vacant)
    whole = sum(not missing[group] for group in range(groups))
    assert whole == (groups * size - len(broken)) // size
    assert set(filled) <= lacked - set(fleet.vacant)


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=20),
)
def test_so_many_machines_are_repaired_at_a_time_as_there_are_crews(
    crews: int, jobs: list[tuple[int, int]]
) -> None:
    fleet = Fleet(places=len(jobs), spares=0, crews=crews)
    broken = sorted(jobs)
    for machine, (at_ns, repair_ns) in enumerate(broken):
        fleet.take_out(machine, repair_ns, at_ns)
    under_way: list[tuple[int, int]] = []
    while (done_ns := fleet.repaired_ns) is not None:
        at_ns, repair_ns = broken[fleet.mend().machine]
        under_way.append((done_ns - repair_ns, done_ns))
        assert done_ns - repair_ns >= at_ns
    for begin_ns, _ in under_way:
        assert sum(begin <= begin_ns < end for begin, end in under_way) <= crews
    if crews >= len(jobs):
        assert sorted(under_way) == sorted((at_ns, at_ns + repair_ns) for at_ns, repair_ns in broken)


def test_a_spare_takes_the_place_and_the_mended_machine_is_spare() -> None:
    fleet = Fleet(places=4, spares=1)
    assert fleet.take_out(2, 100, 0) == 2
    assert fleet.fill() == [2]
    assert (fleet.machine_at(2), fleet.place_of(4)) == (4, 2)
    assert fleet.repaired_ns == 100
    assert fleet.mend().place is None
    assert list(fleet.spares) == [2]


def test_who_is_out_cannot_be_struck_again() -> None:
    fleet = Fleet(places=4, spares=0)
    fleet.take_out(1, 100, 0)
    failure = Failure(at_ns=1, node=0, nodes=3, row=ROW, is_transient=False, repair_ns=5)
    assert fleet.struck(failure) == [0, 2]
