"""The format of a topology file as types, and error messages for files that break it.

docs/topology.md explains each field to people, and schema.json to editors; a test compares the latter with
these types.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from holdfast.record.errors import InputError, nearest
from holdfast.topology.document import Document, Place
from holdfast.topology.graph import KINDS, Kind

KEY_LIKENESS_MIN = 0.6
GPUS_PER_NODE_MAX = 1024

Names = str | list[str]
"""A host list, or several."""


class Nodes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hosts that are built alike. ports: the devices of the fabric, such as mlx5_[0-7]."""

    gpus: Annotated[int, msgspec.Meta(ge=0, le=GPUS_PER_NODE_MAX)] = 0
    ports: Names = ""


class Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engines of an inference pool, by their nodes. receives_from: the pools whose caches it takes over."""

    engines: Names
    receives_from: Names = ""


class RunEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run's nodes: all of a partition, or these, or those of its members, by the members' own names."""

    partition: str = ""
    nodes: Names = ""
    members: dict[str, str] = {}
    pools: Names = ""


class SubjectEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Any other subject, with its dependencies, and why."""

    kind: Kind = "other"
    depends_on: Names = ""
    why: str = ""


class WindowEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Planned work. subjects: names, host lists or patterns."""

    subjects: Names
    begin: str = msgspec.field(name="from")
    end: str = msgspec.field(name="to")
    reason: str = ""


class TopologyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster. Each group names its nodes, or its racks, loops and leaves; see `groups`."""

    version: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    nodes: dict[str, Nodes | None] = {}
    racks: dict[str, Names] = {}
    shelves: dict[str, Names] = {}
    loops: dict[str, Names] = {}
    circuits: dict[str, Names] = {}
    leaves: dict[str, Names] = {}
    spines: dict[str, Names] = {}
    mounts: dict[str, Names] = {}
    partitions: dict[str, Names] = {}
    pools: dict[str, Pool] = {}
    runs: dict[str, RunEntry] = {}
    milestones: dict[str, Names] = {}
    subjects: dict[str, SubjectEntry] = {}
    owners: dict[str, str] = {}
    maintenance: list[WindowEntry] = []


_TABLES: dict[str, type[msgspec.Struct]] = {
    "nodes": Nodes,
    "pools": Pool,
    "runs": RunEntry,
    "subjects": SubjectEntry,
    "maintenance": WindowEntry,
}
"""The sections whose entries are tables of their own."""

_FIELD = re.compile(r" - at `.*?([a-z_]+)(?:\[\.\.\.\])?`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_TYPES = {
    "int": "a whole number",
    "str": "text",
    "object": "a table",
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "null": "nothing",
}


def converted(written: Document) -> TopologyFile:
    """Convert the document; mistakes are reported with their line and key."""
    try:
        return msgspec.convert(written.data, TopologyFile)
    except msgspec.ValidationError as error:
        for place, part in _parts(written.data):
            try:
                msgspec.convert(part, TopologyFile)
            except msgspec.ValidationError as smaller:
                raise _misfit(written, place, str(smaller)) from None
        raise _misfit(written, (), str(error)) from None


def _parts(data: dict[str, Any]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The entries one by one, each as a file of its own, to find the wrong one: msgspec does not name it."""
    for section, value in data.items():
        if section in TopologyFile.__struct_fields__ and isinstance(value, dict):
            for key, entry in value.items():
                yield (section, key), {section: {key: entry}}
        elif section == "maintenance" and isinstance(value, list):
            for index, entry in enumerate(value):
                yield (section, index), {section: [entry]}
        yield (section,), {section: value}


def _misfit(written: Document, place: Place, message: str) -> InputError:
    field = _FIELD.search(message)
    if field and (*place, field[1]) in written.lines:
        place = (*place, field[1])
    message = message.partition(" - at ")[0]
    unknown = _UNKNOWN.fullmatch(message)
    line = written.line((*place, unknown[1]) if unknown else place)
    sentence, hint = _worded(message, ".".join(map(str, place)), place)
    return InputError(f"line {line}: {sentence}.", hint=hint)


def _worded(message: str, key: str, place: Place) -> tuple[str, str]:
    """msgspec's message as a sentence, and a hint."""
    if unknown := _UNKNOWN.fullmatch(message):
        known = _known_keys(place)
        where, others = (
            f"`{key}` has" if len(place) > 1 else "A topology has",
            f"Known are {', '.join(known)}.",
        )
        hint = nearest(unknown[1], known, others, likeness=KEY_LIKENESS_MIN, quote="`")
        return f"{where} no key `{unknown[1]}`", hint
    if missing := re.fullmatch(r"Object missing required field `(.*)`", message):
        return f"`{key}` lacks `{missing[1]}`", "docs/topology.md says what belongs there."
    if wrong := re.fullmatch(r"Expected `(.*)`, got `(.*)`", message):
        wanted = " or ".join(_TYPES.get(kind.strip(), kind) for kind in wrong[1].split("|"))
        hint = "Put it in quotes to have it as text." if "str" in wrong[1] else "docs/topology.md shows how."
        return f"`{key}` is {_TYPES.get(wrong[2], wrong[2])}, and must be {wanted}", hint
    hint = f"Kinds are {', '.join(KINDS)}." if place[-1:] == ("kind",) else "docs/topology.md shows how."
    return f"`{key}` is not as it must be: {message[:1].lower()}{message[1:]}", hint


def _known_keys(place: Place) -> list[str]:
    table = _TABLES.get(str(place[0]), TopologyFile) if len(place) > 1 else TopologyFile
    return list(table.__struct_encode_fields__)
