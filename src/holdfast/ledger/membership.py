"""How many GPUs a run pays for, and which part of them takes part in what it does.

Paid for is whatever is largest of: what a `CostRate` or a scheduler says is held, what the attempt is meant
to have (and its spares on top), what its members bring. Those with a member are active, joining or spare. Of
the rest, those that were drained are drained, those the run is meant to have are missing, and the others are
idle.
"""

from typing import NamedTuple

from holdfast.ledger.copies import copied
from holdfast.record.events import Role


class GpuShares(NamedTuple):
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

    def __init__(self) -> None:
        self.held_gpus = 0
        self.allocated_gpus = 0  # that a scheduler says the run has
        self._drained: dict[str, int] = {}
        self.start(0)

    def start(self, size_gpus: int) -> None:
        """A new attempt: nobody has joined yet."""
        self.size_gpus = size_gpus
        self._generation: frozenset[str] | None = None
        self._members: dict[str, tuple[int, str]] = {}
        self._is_told = False  # whether this attempt's members are reported at all
        self._gpus_by_role = {"active": 0, "joining": 0, "spare": 0}

    def join(self, name: str, gpus: int, role: Role, *, stepping: bool) -> None:
        """Somebody is there. While others step, one whom the generation does not name waits for the next."""
        named = self._generation is None or name in self._generation
        self._set(name, gpus, "joining" if role == "active" and stepping and not named else role)

    def leave(self, name: str) -> bool:
        """Whether somebody of that name took part in the steps and is gone now."""
        gpus, role = self._members.pop(name, (0, "spare"))
        self._gpus_by_role[role] -= gpus
        return role == "active"

    def open_generation(self, members: tuple[str, ...]) -> None:
        """Those named take part and the others are spare; with none named, everyone who is no spare does."""
        self._generation = frozenset(members)
        for name, (gpus, role) in list(self._members.items()):
            if members:
                now = "active" if name in self._generation else "spare"
            else:
                now = "active" if role == "joining" else role
            if now != role:
                self._set(name, gpus, now)

    def are(self, members: tuple[str, ...]) -> bool:
        """Whether these are the members of the generation."""
        return bool(members) and self._generation == frozenset(members)

    def drain(self, name: str, gpus: int) -> None:
        self._drained[name] = gpus

    def restore(self, name: str) -> None:
        self._drained.pop(name, None)

    def shape(self) -> GpuShares:
        active, joining, spare = self._gpus_by_role.values()
        held_gpus = max(self.held_gpus, self.allocated_gpus)
        if not self._is_told:
            # No member that works was ever reported, so the attempt as a whole is what takes part.
            active = self.size_gpus or max(0, held_gpus - spare)
        present = active + joining + spare
        paid = max(held_gpus, self.size_gpus + spare, present)
        drained = min(sum(self._drained.values()), paid - present)
        missing = min(paid - present - drained, max(0, self.size_gpus - active - joining))
        return GpuShares(paid, active, missing, joining, spare, drained, paid - present - drained - missing)

    def copy(self) -> "Membership":
        return copied(self, "_drained", "_members", "_gpus_by_role")

    def _set(self, name: str, gpus: int, role: str) -> None:
        self.leave(name)
        self._is_told = self._is_told or (role != "spare" and gpus > 0)
        self._members[name] = (gpus, role)
        self._gpus_by_role[role] += gpus
