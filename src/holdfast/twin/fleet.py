"""The machines under a job: who stands where, who is spare, who is being repaired, and by how many crews.

A job has *places*, numbered; machines come and go. Only machines that are not where they began are kept, so
the memory goes with what has failed and not with the size of the cluster.
"""

import heapq
from collections import Counter, deque

import msgspec

from holdfast.twin.failures import Failure


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A machine that was out and is mended. place: where it is put to work; None: it is a spare now."""

    machine: int
    place: int | None


class Fleet:
    """`places` machines at work, `spares` ready to take over, any number under repair.

    crews: how many machines are repaired at a time; None where a repair time includes the wait for a crew.
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
        """Where it works; None: it is spare or out."""
        return self._place_of.get(machine, machine if machine < self.places else None)

    def machine_at(self, place: int) -> int | None:
        return self._machine_at.get(place, place)

    def struck(self, failure: Failure) -> list[int]:
        """The machines that it hits and that are not out already."""
        reached = range(failure.node, failure.node + failure.nodes)
        return [machine for machine in reached if machine not in self.out]

    def at_work(self, failure: Failure) -> list[int]:
        """Those of them that have a place in the job."""
        return [machine for machine in self.struck(failure) if self.place_of(machine) is not None]

    def take_out(self, machine: int, repair_ns: int, now_ns: int) -> int | None:
        """To the workshop with it. The place it leaves vacant, where it had one."""
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
        """Put spares in vacant places; the places that have a machine again."""
        filled = []
        while self.vacant and self.spares:
            place = self.vacant.popleft()
            self._put(self.spares.popleft(), place)
            filled.append(place)
        return filled

    def gather_vacancies(self, size: int) -> list[int]:
        """Where several groups of `size` places lack machines, complete some with those of others.

        A group that lacks a machine stands still, so its other machines are as good as spares. Who lacks
        most gives to who lacks least, until one group at most has some and not all. The places that have a
        machine again.
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
        """Groups that have machines, and not as many as places; who lacks least is first."""
        lacking = Counter(place // size for place in self.vacant)
        return sorted(
            (group for group in lacking if lacking[group] < size), key=lambda one: (lacking[one], one)
        )

    @property
    def repaired_ns(self) -> int | None:
        """When the next machine will be mended."""
        return self._repairs[0][0] if self._repairs else None

    def mend(self) -> Move:
        """The next repair is done: the machine takes the place that waits longest, or is spare."""
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
