"""A topology as data: a summary, or one subject with its dependencies and blast radius."""

from collections import Counter

from holdfast.topology.graph import KINDS, Topology


def summary(topology: Topology) -> dict[str, object]:
    kinds = {
        kind: Counter(map(topology.owner, topology.names(kind))) for kind in KINDS if topology.names(kind)
    }
    return {
        "subjects": len(topology),
        "kinds": {kind: {"count": owners.total(), "owners": owners} for kind, owners in kinds.items()},
        "seams": topology.seam_counts(),
    }


def subject_data(topology: Topology, subject: str) -> dict[str, object]:
    return {
        "subject": subject,
        "kind": topology.kind(subject),
        "owner": topology.owner(subject),
        "depends_on": {kind: names for kind in KINDS if (names := topology.causes(subject, kind))},
        "blast_radius": {kind: names for kind in KINDS if (names := topology.blast_radius(subject, kind))},
    }
