"""Redfish: the racks connected to each cooling unit, and the water that cools the unit itself.

The caller's `Fetch` sets the bounds: how many resources, how long, and that nothing is fetched twice.
"""

from collections.abc import Callable, Iterator

import msgspec

from holdfast.topology.names import unit_name
from holdfast.topology.survey import Survey

SOURCE = "Redfish"
CDUS_PATH = "/redfish/v1/ThermalEquipment/CDUs"

Fetch = Callable[[str], object]
"""Fetches the resource at a path, as plain data; None if there is none."""


class _Link(msgspec.Struct, frozen=True, kw_only=True):
    path: str = msgspec.field(name="@odata.id", default="")

    @property
    def last(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]


class _Links(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    connected_chassis: list[_Link] = []
    connected_cooling_loop: _Link | None = None


class _Resource(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The fields of a collection, a cooling unit or a connector that are used here."""

    id: str = ""
    members: list[_Link] = []
    primary_coolant_connectors: _Link | None = None
    secondary_coolant_connectors: _Link | None = None
    links: _Links = _Links()


def survey(fetch: Fetch, *, name: str = "") -> Survey:
    """The units of one service.

    A connected chassis is a rack, named as in its path. name: the name of the service's unit, as for the
    collector that reads it.
    """
    found = Survey(SOURCE)
    units = [*_members(fetch, _Link(path=CDUS_PATH))]
    for unit in units:
        called = unit_name(name, unit.id, is_only=len(units) == 1)
        if not called:
            continue
        found.kinds[called] = "loop"
        for connector in _members(fetch, unit.secondary_coolant_connectors):
            for chassis in connector.links.connected_chassis:
                if chassis.last:
                    found.kinds[chassis.last] = "rack"
                    found.place(chassis.last, "loop", called)
        for connector in _members(fetch, unit.primary_coolant_connectors):
            water = connector.links.connected_cooling_loop
            if water and water.last:
                found.place(called, "circuit", water.last)
    return found


def _members(fetch: Fetch, collection: _Link | None) -> Iterator[_Resource]:
    if collection is None:
        return
    for member in _resource(fetch, collection).members:
        yield _resource(fetch, member)


def _resource(fetch: Fetch, link: _Link) -> _Resource:
    given = fetch(link.path) if link.path else None
    try:
        return _Resource() if given is None else msgspec.convert(given, _Resource)
    except msgspec.ValidationError:
        return _Resource()
