"""What cools a machine, air or coolant, and where the air comes from."""

from collections.abc import Collection
from typing import NamedTuple

from holdfast.diagnose.run_findings import RunFindings
from holdfast.topology.graph import Topology

AIR_WORDS = ("air", "crac", "crah", "ahu")
"""Words in the name of a cooling unit that blows air."""
HARDLY_SHARE = 0.25
"""Share of the dependents of a circuit's other loops: if no more show a sign, it is chance or a neighbour."""


class CooledBy(NamedTuple):
    """Whether names suggest air, and the loops that cool a subject or depend on it."""

    is_air: bool
    loops: tuple[str, ...]


def cooling_of(topology: Topology, subject: str) -> CooledBy:
    if subject not in topology:
        return CooledBy(False, ())
    around = (*topology.causes(subject), *topology.dependents(subject), subject)
    cooling = [name for name in around if topology.kind(name) in ("loop", "circuit")]
    is_air = any(word in name.casefold() for name in cooling for word in AIR_WORDS)
    return CooledBy(is_air, tuple(name for name in cooling if topology.kind(name) == "loop"))


def shared_air(case: RunFindings, found: list[str]) -> list[str]:
    """The subjects whose air may be warm, without coolant loops. If the whole run is warm, it is the site's
    air rather than one unit of several; or the run, if no known subject cools all of it.
    """
    run, topology, members = case.scene.run, case.topology, set(case.members)
    kept = [
        name
        for name in found
        if name == run or topology.kind(name) != "loop" or cooling_of(topology, name).is_air
    ]
    shared = [name for name in kept if name != run and members and members <= case.beneath_of(name)]
    sites = [name for name in shared if topology.kind(name) != "loop"]
    named = set(sites or (shared if len(shared) == 1 else ()))
    dropped = {run, *shared} - named if named else set(shared)
    return [name for name in kept if name not in dropped]


def apart(case: RunFindings, found: Collection[str], signs: Collection[str]) -> list[str]:
    """Leave out circuits if one of their loops shows all signs and the others hardly any: whatever is wrong
    with that loop, the circuit's water is fine.
    """
    shown = [sign for sign in signs if case.has(sign)]
    return [name for name in found if not any(_is_alone(case, loop, name, shown) for loop in found)]


def _is_alone(case: RunFindings, loop: str, circuit: str, signs: Collection[str]) -> bool:
    if loop not in case.topology.dependents(circuit):
        return False
    for sign in signs:
        own, whole = case.fit(sign, loop), case.fit(sign, circuit)
        if own is None or whole is None or own.reached >= whole.reached or not case.stands_out(sign, own):
            return False
        if whole.hit - own.hit > HARDLY_SHARE * (whole.reached - own.reached):
            return False
    return True
