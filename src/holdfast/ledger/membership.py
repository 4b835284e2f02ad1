"""How many GPUs a run pays for, and which part of them takes part in what it does.

Paid for is whatever is largest of: what a `CostRate` says is held, what the attempt is meant to have,
what its members bring. Those with a member are active, joining or spare; of the rest, the ones the run is
meant to have are missing, less those that were drained, and the others are idle.
"""

from typing import NamedTuple

from holdfast.record.events import Role


class Shape(NamedTuple):
    """A division of the GPUs paid for; the parts sum to `paid`."""

    paid: int = 0
    active: int = 0
    missing: int = 0
    joining: int = 0
    spare: int = 0
    drained: int = 0
    idle: int = 0


class Membership:
    """Who is in the run, by name, and the GPUs that follow from it."""

    __slots__ = ("_gpus_by_role", "_members", "drained_gpus", "held_gpus", "size_gpus")

    def __init__(self) -> None:
        self.held_gpus = 0
        self.size_gpus = 0
        self.drained_gpus = 0
        self._members: dict[str, tuple[int, str]] = {}
        self._gpus_by_role = {"active": 0, "joining": 0, "spare": 0}

    def start(self, size_gpus: int) -> None:
        """A new attempt: nobody has joined yet."""
        self.size_gpus = size_gpus
        self._members = {}
        self._gpus_by_role = {"active": 0, "joining": 0, "spare": 0}

    def join(self, name: str, gpus: int, role: Role | str) -> None:
        self.leave(name)
        self._members[name] = (gpus, role)
        self._gpus_by_role[role] += gpus

    def leave(self, name: str) -> bool:
        """Whether somebody of that name took part in the steps and is gone now."""
        gpus, role = self._members.pop(name, (0, "spare"))
        self._gpus_by_role[role] -= gpus
        return role == "active"

    def open_generation(self, members: tuple[str, ...]) -> None:
        """Those named take part and the others are spare; with none named, everyone who was joining takes
        part.
        """
        named = frozenset(members)
        for name, (gpus, role) in list(self._members.items()):
            if named:
                self.join(name, gpus, "active" if name in named else "spare")
            elif role == "joining":
                self.join(name, gpus, "active")

    def shape(self) -> Shape:
        active, joining, spare = self._gpus_by_role.values()
        present = active + joining + spare
        paid = max(self.held_gpus, self.size_gpus, present)
        if not self._members:
            # No member was ever reported, so the attempt as a whole is what takes part.
            active = present = self.size_gpus or self.held_gpus
        drained = min(self.drained_gpus, paid - present)
        missing = max(0, min(self.size_gpus, paid) - present - drained)
        return Shape(paid, active, missing, joining, spare, drained, paid - present - drained - missing)

    def copy(self) -> "Membership":
        twin = Membership()
        twin.held_gpus, twin.size_gpus, twin.drained_gpus = self.held_gpus, self.size_gpus, self.drained_gpus
        twin._members = self._members.copy()
        twin._gpus_by_role = self._gpus_by_role.copy()
        return twin
