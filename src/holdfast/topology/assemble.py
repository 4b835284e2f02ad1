"""Builds the graph of a survey: turns its facts into dependencies."""

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import product

from holdfast.record.errors import InputError
from holdfast.topology.graph import Builder, Kind, Topology
from holdfast.topology.hostlist import expand
from holdfast.topology.names import gpu_name, link_name, member_name, port_name
from holdfast.topology.survey import Survey

_SLOT = re.compile(r"[.:/-](\d+)(?:\+\d+)?")
LINKS_MAX = 500_000
"""Links between the engines of two pools, one for every pair: more would take minutes and all memory."""


def assemble(
    survey: Survey,
    *,
    kind_owners: Mapping[Kind, str] | None = None,
    owners: Mapping[str, str] | None = None,
) -> Topology:
    """Build the graph. owners: by name, host list or pattern, in place of the owners of kinds."""
    builder = Builder(kind_owners)
    for name, kind in survey.kinds.items():
        builder.add(name, kind)
    _add_hardware(builder, survey)
    _add_places(builder, survey)
    for pool in survey.engines:
        _add_pool(builder, survey, pool)
    for run in survey.members:
        _add_run(builder, survey, run)
    for name, used in survey.uses.items():
        for other in used:
            if survey.kinds.get(name) != "pool":
                builder.depends(name, other)
    for (name, on), why in survey.further.items():
        builder.depends(name, on, why=why)
    for pattern, owner in (owners or {}).items():
        for name in matching(pattern, builder.kinds):
            builder.add(name, builder.kinds[name], owner=owner)
    return builder.build()


def matching(pattern: str, names: Collection[str]) -> list[str]:
    """The names that match: a pattern with `*` or `?` any that fit, a host list exactly its names."""
    if "*" in pattern or "?" in pattern:
        found = fnmatch.filter(names, pattern)
        missing = [] if found else [pattern]
    else:
        found = expand(pattern)
        missing = [name for name in found if name not in names]
    if missing:
        raise InputError(
            f"Nothing in the topology is called {missing[0]!r}.",
            hint="Name subjects by a host list (`rack-[00-07]`) or by a pattern (`rack-*`).",
        )
    return found


def _add_hardware(builder: Builder, survey: Survey) -> None:
    for node, gpus in survey.gpus.items():
        for gpu in gpus:
            builder.add(gpu_name(node, gpu), "gpu")
            builder.depends(gpu_name(node, gpu), node)
    for node, ports in survey.ports.items():
        for port in ports:
            builder.add(port_name(node, port), "port")
            builder.depends(port_name(node, port), node)


def _add_places(builder: Builder, survey: Survey) -> None:
    """A node on a leaf is there with all its ports. Only runs and pools on a node depend on its mounts."""
    for name, places in survey.on.items():
        ports = survey.ports.get(name, ())
        for kind, found in places.items():
            for on in found:
                if kind == "leaf" and ports:
                    _add_uplinks(builder, survey, name, on)
                elif kind != "mount":
                    builder.depends(name, on)


def _add_uplinks(builder: Builder, survey: Survey, node: str, leaf: str) -> None:
    for port in survey.ports[node]:
        name = port_name(node, port)
        if "leaf" not in survey.on.get(name, {}):
            builder.depends(name, leaf)


def _add_run(builder: Builder, survey: Survey, run: str) -> None:
    for member, node in survey.members[run].items():
        name = member_name(run, member)
        builder.add(name, "member")
        builder.depends(run, name)
        _work_on(builder, survey, name, node, _gpus_of(survey, run, member, node))


def _add_pool(builder: Builder, survey: Survey, pool: str) -> None:
    """An engine is its node. Transfers between two pools go over the ports of both ends."""
    for node in survey.engines[pool]:
        builder.depends(pool, node)
        _work_on(builder, survey, pool, node, survey.gpus.get(node, ()))
    for other in survey.uses.get(pool, ()):
        builder.depends(pool, other)
        sources, targets = survey.engines.get(other, ()), survey.engines[pool]
        if len(sources) * len(targets) > LINKS_MAX:
            raise InputError(
                f"From engines of {other!r} to those of {pool!r} there are more than {LINKS_MAX:,} links.",
                hint="Describe them as several smaller pools, as requests are routed.",
            )
        for source, target in product(sources, targets):
            _add_link(builder, survey, pool, source, target)


def _add_link(builder: Builder, survey: Survey, pool: str, source: str, target: str) -> None:
    link = link_name(source, target)
    builder.add(link, "link")
    builder.depends(pool, link)
    for node in (source, target):
        for port in survey.ports.get(node, ()):
            builder.depends(link, port_name(node, port))


def slot_of(member: str, node: str) -> str:
    """The number of a member whose name is its node's with that number, such as `n17.3`; else empty.

    The number may be followed by the count of restarts: `n17.3+1`.
    """
    slot = _SLOT.fullmatch(member[len(node) :]) if member.startswith(node) else None
    return "" if slot is None else slot[1]


def _gpus_of(survey: Survey, run: str, member: str, node: str) -> Sequence[str]:
    """The GPUs of a member: one if it has the number of one, else all of its node."""
    gpus = survey.gpus.get(node, ())
    for slot in (
        survey.slots.get((run, member), ""),
        slot_of(member, node),
        slot_of(member, node.partition(".")[0]),
    ):
        if slot in gpus:
            return (slot,)
    return gpus


def _work_on(builder: Builder, survey: Survey, name: str, node: str, gpus: Sequence[str]) -> None:
    """A run on a node needs these GPUs, its ports and its mounts; or the node, if it has no known GPUs."""
    ports = survey.ports.get(node, ())
    for gpu in gpus:
        builder.depends(name, gpu_name(node, gpu))
    for port in ports:
        builder.depends(name, port_name(node, port))
    if not gpus:
        builder.depends(name, node)
    for mount in survey.on.get(node, {}).get("mount", ()):
        builder.depends(name, mount)
