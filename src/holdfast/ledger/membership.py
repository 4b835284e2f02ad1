"""How many GPUs a run pays for, and how they are divided.

A run pays for the largest of three numbers: the GPUs held according to a `CostRate` or a scheduler, the size
of the attempt plus its spares, and the GPUs of its members. GPUs with a member are active, joining or spare.
Of the rest, drained GPUs come first, then those missing from the attempt's size; the others are idle.
"""

from typing import NamedTuple

from holdfast.ledger.copies import copied
from holdfast.record.events import Role


class GpuShares(NamedTuple):
    """A division of the GPUs paid for; the parts sum to `paid`.

    doubtful: of the active ones, as many as nodes have that were drained before the attempt: a start without
    members may count these nodes or others in their place.
    """

    paid: int = 0
    active: int = 0
    missing: int = 0
    joining: int = 0
    spare: int = 0
    drained: int = 0
    idle: int = 0
    doubtful: int = 0


class Membership:
    """The members of a run by name, and the division of GPUs that follows."""

    def __init__(self) -> None:
        self.held_gpus = 0
        self.allocated_gpus = 0  # according to a scheduler
        self._drained: dict[str, int] = {}
        self._out: frozenset[str] = frozenset()  # drained before the attempt, so not meant for it
        self.start(0)

    def start(self, size_gpus: int) -> None:
        """Begin a new attempt without members."""
        self.size_gpus = size_gpus
        self._out = frozenset(self._drained)
        self._generation: frozenset[str] | None = None
        self._members: dict[str, tuple[int, str]] = {}
        self._is_told = False  # whether any working member of this attempt was reported
        self._gpus_by_role = {"active": 0, "joining": 0, "spare": 0}

    def join(self, name: str, gpus: int, role: Role, *, stepping: bool) -> None:
        """Add a member. While others step, one that the generation does not name waits for the next."""
        named = self._generation is None or name in self._generation
        self._set(name, gpus, "joining" if role == "active" and stepping and not named else role)

    def leave(self, name: str) -> bool:
        """Remove a member. Return whether it took part in the steps."""
        gpus, role = self._members.pop(name, (0, "spare"))
        self._gpus_by_role[role] -= gpus
        return role == "active"

    def open_generation(self, members: tuple[str, ...]) -> None:
        """Make the named members active and the others spare; if none is named, all but spares are active."""
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
        out = 0
        if not self._is_told:
            # No working member was ever reported, so the attempt as a whole takes part.
            out = sum(gpus for name, gpus in self._drained.items() if name in self._out)
            active = self.size_gpus or max(0, held_gpus - spare - out)
        present = active + joining + spare
        paid = max(held_gpus, self.size_gpus + spare, present)
        drained = min(sum(self._drained.values()), paid - present)
        missing = min(paid - present - drained, max(0, self.size_gpus - active - joining))
        idle = paid - present - drained - missing
        doubtful = max(0, min(active, out - drained))
        return GpuShares(paid, active, missing, joining, spare, drained, idle, doubtful)

    def copy(self) -> "Membership":
        return copied(self, "_drained", "_members", "_gpus_by_role")

    def _set(self, name: str, gpus: int, role: str) -> None:
        self.leave(name)
        self._is_told = self._is_told or (role != "spare" and gpus > 0)
        self._members[name] = (gpus, role)
        self._gpus_by_role[role] += gpus
