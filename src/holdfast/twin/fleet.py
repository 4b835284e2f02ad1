"""The machines of a job: which are at work and where, which are spare, and which are in repair.

A job has numbered *places*; machines come and go. Only machines that have moved are stored, so memory grows
with the number of failures and not with the size of the cluster.
"""

import heapq
from collections import Counter, deque

import msgspec

from holdfast.twin.failures import Failure


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A repaired machine. place: where it is put to work; None: it becomes a spare."""

    machine: int
    place: int | None


class Fleet:
    """`places` machines at work, `spares` ready to take over, any number under repair.

    crews: how many machines are repaired at a time; None: repair times include the wait for a crew.
    """

    def __init__(self, *, places: int, spares: int, crews: int | None = None) -> None:
        self.places = places
        self.spares: deque[int] = deque(range(places, places + spares))
        self.out: set[int] = set()
        self.vacant: deque[int] = deque()
        self._place_of: dict[int, int | None] = {}
        self._machine_at: dict[int, int | None] = {}
        self._repairs: list[tuple[int, int]] = []  # (when it is done, machine)
        self._crews: list[int] | None = None if crews is None else [0] * crews

    def place_of(self, machine: int) -> int | None:
        """Where the machine works; None if it is spare or out."""
        return self._place_of.get(machine, machine if machine < self.places else None)

    def machine_at(self, place: int) -> int | None:
        return self._machine_at.get(place, place)

    def struck(self, failure: Failure) -> list[int]:
        """The machines that the failure strikes and that are not already out."""
        reached = range(failure.node, failure.node + failure.nodes)
        return [machine for machine in reached if machine not in self.out]

    def at_work(self, failure: Failure) -> list[int]:
        """The struck machines that have a place in the job."""
        return [machine for machine in self.struck(failure) if self.place_of(machine) is not None]

    def take_out(self, machine: int, repair_ns: int, now_ns: int) -> int | None:
        """Take a machine out for repair. Return the place it leaves vacant, if it had one."""
        place = self.place_of(machine)
        if place is None:
            self.spares.remove(machine)
        else:
            self._machine_at[place] = None
            self.vacant.append(place)
        self._place_of[machine] = None
        self.out.add(machine)
        begin_ns = now_ns
        if self._crews is not None:
            begin_ns = max(now_ns, heapq.heappop(self._crews))
            heapq.heappush(self._crews, begin_ns + repair_ns)
        heapq.heappush(self._repairs, (begin_ns + repair_ns, machine))
        return place

    def fill(self) -> list[int]:
        """Put spares in vacant places. Return the places that have a machine again."""
        filled = []
        while self.vacant and self.spares:
            place = self.vacant.popleft()
            self._put(self.spares.popleft(), place)
            filled.append(place)
        return filled

    def gather_vacancies(self, size: int) -> list[int]:
        """If several groups of `size` places lack machines, complete some with machines of others.

        A group that lacks a machine stands still, so its other machines are as good as spares. The group
        that lacks most gives to the one that lacks least, until at most one group is incomplete but not
        empty. Return the places that have a machine again.
        """
        filled = []
        while len(groups := self._incomplete(size)) > 1:
            receiver, donor = groups[0], groups[-1]
            place = next(place for place in self.vacant if place // size == receiver)
            given = next(at for at in range(donor * size, (donor + 1) * size) if at not in self.vacant)
            machine = self.machine_at(given)
            assert machine is not None
            self._machine_at[given] = None
            self.vacant.remove(place)
            self.vacant.append(given)
            self._put(machine, place)
            filled.append(place)
        return filled

    def _incomplete(self, size: int) -> list[int]:
        """Groups that have some machines but lack others; the group that lacks least is first."""
        lacking = Counter(place // size for place in self.vacant)
        return sorted(
            (group for group in lacking if lacking[group] < size), key=lambda one: (lacking[one], one)
        )

    @property
    def repaired_ns(self) -> int | None:
        """When the next machine will be repaired."""
        return self._repairs[0][0] if self._repairs else None

    def mend(self) -> Move:
        """The next repair is done: the machine takes the longest vacant place, or becomes a spare."""
        _, machine = heapq.heappop(self._repairs)
        self.out.remove(machine)
        if not self.vacant:
            self.spares.append(machine)
            return Move(machine=machine, place=None)
        place = self.vacant.popleft()
        self._put(machine, place)
        return Move(machine=machine, place=place)

    def _put(self, machine: int, place: int) -> None:
        self._machine_at[place] = machine
        self._place_of[machine] = place
