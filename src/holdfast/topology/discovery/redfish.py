"""Redfish: which cooling unit has which racks connected to it, and which water it is cooled by itself."""

from collections.abc import Callable, Iterator

import msgspec

from holdfast.topology.survey import Survey

SOURCE = "Redfish"
CDUS_PATH = "/redfish/v1/ThermalEquipment/CDUs"
MEMBERS_MAX = 10_000

Fetch = Callable[[str], bytes | None]
"""Gets the resource at a path; None where there is none."""


class _Link(msgspec.Struct, frozen=True, kw_only=True):
    path: str = msgspec.field(name="@odata.id", default="")

    @property
    def last(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]


class _Links(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    connected_chassis: list[_Link] = []
    connected_cooling_loop: _Link | None = None


class _Resource(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """As much of a collection, a cooling unit or a connector as matters here."""

    id: str = ""
    members: list[_Link] = []
    primary_coolant_connectors: _Link | None = None
    secondary_coolant_connectors: _Link | None = None
    links: _Links = _Links()


def survey(fetch: Fetch) -> Survey:
    """The units of one service. A chassis that is connected to one is a rack, called as in its path."""
    found = Survey(SOURCE)
    for unit in _members(fetch, _Link(path=CDUS_PATH)):
        if not unit.id:
            continue
        found.kinds[unit.id] = "loop"
        for connector in _members(fetch, unit.secondary_coolant_connectors):
            for chassis in connector.links.connected_chassis:
                if chassis.last:
                    found.kinds[chassis.last] = "rack"
                    found.place(chassis.last, "loop", unit.id)
        for connector in _members(fetch, unit.primary_coolant_connectors):
            water = connector.links.connected_cooling_loop
            if water and water.last:
                found.place(unit.id, "circuit", water.last)
    return found


def _members(fetch: Fetch, collection: _Link | None) -> Iterator[_Resource]:
    if collection is None:
        return
    for member in _resource(fetch, collection).members[:MEMBERS_MAX]:
        yield _resource(fetch, member)


def _resource(fetch: Fetch, link: _Link) -> _Resource:
    text = fetch(link.path) if link.path else None
    try:
        return msgspec.json.decode(text, type=_Resource) if text else _Resource()
    except msgspec.MsgspecError:
        return _Resource()
