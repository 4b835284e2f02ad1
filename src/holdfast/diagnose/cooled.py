"""What cools a machine, air or coolant, and whose air it is."""

from typing import NamedTuple

from holdfast.diagnose.run_findings import RunFindings
from holdfast.topology.graph import Topology

AIR_WORDS = ("air", "crac", "crah", "ahu")
"""In the name of what cools: it blows."""


class CooledBy(NamedTuple):
    """Whether it is air, as names tell, and the loops that cool a subject or hang on it."""

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
    """Of the subjects whose air may be warm, without loops of coolant. Where all of the run is warm, it is
    the site's air rather than that of one unit of several; the run, where nothing that is known cools all of
    it.
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
