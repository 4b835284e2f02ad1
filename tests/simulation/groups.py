"""The connections between members, which carry tensors: each member sends its part to all the others.

Every member waits for all others. Each learns at a moment of its own that all have sent, so one member may
have a sum that another never gets. When a member leaves, the others notice at a moment of their own, or not
at all after a power cut.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.member import Script
    from tests.simulation.world import World

Key = tuple[str, int, tuple[str, ...]]
"""The kind of exchange, the step, and the members."""


class Arrival(NamedTuple):
    script: "Script"
    epoch: int
    told: Any
    then: Callable[[list[Any]], None]


class Groups:
    """One group of members for each generation. left: members no longer in it, and whether others notice."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._exchanges: dict[int, dict[Key, dict[str, Arrival]]] = {}
        self._entered: dict[int, dict[str, Script]] = {}
        self.left: dict[int, dict[str, bool]] = {}

    def arrive(
        self,
        script: "Script",
        what: str,
        peers: tuple[str, ...],
        told: Any,
        then: Callable[[list[Any]], None],
    ) -> None:
        """Call `then` with the parts of all members, unless one leaves."""
        number, name = script.number, script.name
        script.awaits = peers
        self._entered.setdefault(number, {})[name] = script
        gone = [peer for peer in peers if self.left.get(number, {}).get(peer)]
        if gone:
            self._tell_gone(script, number, gone[0])
            return
        step = 0 if what == "group" else script.version
        arrived = self._exchanges.setdefault(number, {}).setdefault((what, step, peers), {})
        arrived[name] = Arrival(script, script.epoch, told, then)
        if len(arrived) < len(peers):
            return
        world = self._world
        result = [arrived[peer].told for peer in peers]
        if what == "reduce":
            world.summed(script, peers, result)
        for peer in peers:
            other = arrived[peer]
            world.at(world.delay(), other.script.go_on, other.epoch, other.then, (result,))

    def leave(self, script: "Script", *, is_seen: bool = True) -> None:
        """A member dies or gives the group up."""
        number, name = script.number, script.name
        entered = self._entered.get(number)
        left = self.left.setdefault(number, {})
        if entered is None or name not in entered or name in left:
            return
        left[name] = is_seen
        if not is_seen:
            return
        for other in entered.values():
            if other.name != name and other.number == number and other.name not in left:
                self._tell_gone(other, number, name)

    def cut(self, one: "Script", other: str) -> None:
        """End the connection between two members, although both live."""
        self._tell_gone(one, one.number, other)
        entered = self._entered.get(one.number, {})
        if other in entered:
            self._tell_gone(entered[other], one.number, one.name)

    def _tell_gone(self, script: "Script", number: int, name: str) -> None:
        self._world.at(self._world.delay(), script.lose_peer, number, name)
