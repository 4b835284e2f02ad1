"""Cooling distribution units and power shelves over Redfish: their readings, under Redfish's own names.

A unit is walked from /redfish/v1/ThermalEquipment down: coolant connectors, pumps, filters, reservoirs and
leak detectors. Readings that are not numbers (`"Null"`, `"Out of range"`, null) are kept as words.
"""

from collections.abc import Iterator

import msgspec

from holdfast.record.clock import Clock
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.redfish_service import ROOT, RedfishConnection, Resource, Service, Walk
from holdfast.signals.frame import Labels, Reading
from holdfast.topology.names import unit_name

MEMBERS_MAX = 64
WORD_CHARS_MAX = 80
VALUE_MAX = 1e30
"""No quantity of a cooling unit comes near; a larger value is a fault, not a number."""

CONNECTORS = {"primary": "PrimaryCoolantConnectors", "secondary": "SecondaryCoolantConnectors"}
"""By the value of the label `side`: the water of the facility, and the coolant of the racks."""
CONNECTOR_PROPERTIES = (
    *("FlowLitersPerMinute", "RatedFlowLitersPerMinute"),
    *("SupplyTemperatureCelsius", "ReturnTemperatureCelsius", "DeltaTemperatureCelsius"),
    *("SupplyPressurekPa", "ReturnPressurekPa", "DeltaPressurekPa"),
    *("HeatRemovedkW", "ValvePositionPercent"),
)
PART_PROPERTIES = {
    "Pumps": ("PumpSpeedPercent",),
    "Filters": ("ServiceHours",),
    "Reservoirs": ("FluidLevelPercent", "FluidLevelStatus"),
}
LEAK_METRIC = "redfish_chassis_leak_detector_health"
SUPPLY_METRIC = "redfish_chassis_power_powersupply_health"
HEALTH = {"OK": 1.0, "Warning": 2.0, "Critical": 3.0}
"""As the exporters of Redfish number it."""


class CoolingLink(msgspec.Struct, frozen=True, kw_only=True):
    """A unit's connector and a chassis that it cools, both by their path in the service."""

    cdu: str
    connector: str
    chassis: str


class RedfishCollector:
    """One service, with all its units and shelves."""

    def __init__(self, service: Service, *, clock: Clock) -> None:
        self.name = service.title
        self._service = service
        self._clock = clock
        self._connection = RedfishConnection(service)
        self._links: tuple[CoolingLink, ...] = ()

    def collect(self) -> list[Reading]:
        return self._connection.read(self._read)

    def links(self) -> tuple[CoolingLink, ...]:
        """Which connector cools which chassis, as of the last reading: edges of the topology."""
        return self._links

    def close(self) -> None:
        self._connection.close()

    def _read(self, walk: Walk) -> list[Reading]:
        at_ns = self._clock.now_ns()
        readings: list[Reading] = []
        links: list[CoolingLink] = []
        for cdu, resource in self._named(_members(walk, "ThermalEquipment", "CDUs")):
            unit = _Unit(walk, resource, cdu, at_ns)
            readings += [*unit.connectors(), *unit.parts(), *unit.leaks()]
            links += unit.links
        for shelf, resource in self._named(_members(walk, "PowerEquipment", "PowerShelves")):
            readings += _supplies(walk, resource, shelf, at_ns)
        if not readings:
            raise Unavailable(
                f"{self.name} has no cooling unit and no power shelf that could be read.",
                hint="Holdfast looks under ThermalEquipment/CDUs and PowerEquipment/PowerShelves.",
            )
        self._links = tuple(links)
        return readings

    def _named(self, resources: list[Resource]) -> Iterator[tuple[str, Resource]]:
        for resource in resources:
            identity = _word(resource.get("Id", ""))
            yield unit_name(self._service.name, identity, is_only=len(resources) == 1), resource


def is_facility_water(reading: Reading) -> bool:
    """Whether it is from a primary connector: facility water must not be compared with a rack's coolant."""
    return reading.labels.get("side") == "primary"


def as_densewatch(readings: list[Reading]) -> list[Reading]:
    """The same under densewatch's names, for Prometheus, which cannot hold Redfish's: one value a unit.

    Flow and heat of its connectors to the racks add up; temperatures and pump speeds are means. If one of
    them is a word, the unit has no value.
    """
    parts: dict[tuple[str, str], list[Reading]] = {}
    for reading in readings:
        name = _DENSEWATCH.get(reading.metric)
        if name is not None and not is_facility_water(reading):
            parts.setdefault((name, reading.labels["cdu"]), []).append(reading)
    return [
        Reading(
            metric=f"densewatch_cdu_{name}",
            labels={"cdu": cdu, "protocol": "redfish"},
            at_ns=group[0].at_ns,
            value=_combined(name, [reading.value for reading in group if reading.value is not None]),
        )
        for (name, cdu), group in parts.items()
        if all(reading.value is not None for reading in group)
    ]


_DENSEWATCH = {
    "FlowLitersPerMinute": "coolant_flow_lpm",
    "SupplyTemperatureCelsius": "coolant_supply_temp_celsius",
    "ReturnTemperatureCelsius": "coolant_return_temp_celsius",
    "HeatRemovedkW": "heat_removed_kw",
    "PumpSpeedPercent": "pump_speed_percent",
    LEAK_METRIC: "leak_detected",
}


def _combined(name: str, values: list[float]) -> float:
    match name:
        case "coolant_flow_lpm" | "heat_removed_kw":
            return sum(values)
        case "leak_detected":
            return float(max(values) > HEALTH["OK"])
    return sum(values) / len(values)


def _members(walk: Walk, root: str, collection: str) -> list[Resource]:
    equipment = walk.get(f"{ROOT}/{root}")
    return _collection(walk, (equipment or {}).get(collection))


def _collection(walk: Walk, link: object) -> list[Resource]:
    members = (walk.get(link) or {}).get("Members")
    if not isinstance(members, list):
        return []
    return [resource for member in members[:MEMBERS_MAX] if (resource := walk.get(member)) is not None]


class _Unit:
    """One cooling distribution unit and its parts."""

    def __init__(self, walk: Walk, resource: Resource, cdu: str, at_ns: int) -> None:
        self._walk = walk
        self._resource = resource
        self._cdu = cdu
        self._at_ns = at_ns
        self.links: list[CoolingLink] = []

    def connectors(self) -> Iterator[Reading]:
        for side, collection in CONNECTORS.items():
            for connector in _collection(self._walk, self._resource.get(collection)):
                yield from self._measured(connector, CONNECTOR_PROPERTIES, {"side": side})
                self.links += self._cooled(connector)

    def parts(self) -> Iterator[Reading]:
        for kind, properties in PART_PROPERTIES.items():
            for part in _collection(self._walk, self._resource.get(kind)):
                yield from self._measured(part, properties, {})

    def leaks(self) -> Iterator[Reading]:
        detection = self._walk.get(self._resource.get("LeakDetection")) or {}
        for detector in _collection(self._walk, detection.get("LeakDetectors")):
            state = detector.get("DetectorState", detector.get("error"))
            labels = {
                **self._labels(detector),
                "chassis_id": self._cdu,
                "leak_detector_id": _word(detector.get("Id", "")),
            }
            yield _health(LEAK_METRIC, labels, self._at_ns, state)

    def _labels(self, resource: Resource) -> Labels:
        return {"@odata.id": _word(resource.get("@odata.id", "")), "cdu": self._cdu}

    def _measured(self, resource: Resource, properties: tuple[str, ...], more: Labels) -> Iterator[Reading]:
        labels = {**self._labels(resource), **more}
        if "error" in resource:
            yield Reading(
                metric=properties[0],
                labels=labels,
                at_ns=self._at_ns,
                value=None,
                word=_word(resource["error"]),
            )
        for name in properties:
            if name not in resource:
                continue
            if name.endswith("Status"):
                yield _health(name, labels, self._at_ns, resource[name])
            else:
                value, word = _measure(resource[name])
                yield Reading(metric=name, labels=labels, at_ns=self._at_ns, value=value, word=word)

    def _cooled(self, connector: Resource) -> Iterator[CoolingLink]:
        links = connector.get("Links")
        chassis = links.get("ConnectedChassis") if isinstance(links, dict) else None
        for one in chassis[:MEMBERS_MAX] if isinstance(chassis, list) else ():
            if isinstance(one, dict) and isinstance(place := one.get("@odata.id"), str):
                yield CoolingLink(
                    cdu=self._cdu, connector=self._labels(connector)["@odata.id"], chassis=place
                )


def _supplies(walk: Walk, shelf: Resource, name: str, at_ns: int) -> Iterator[Reading]:
    for supply in _collection(walk, shelf.get("PowerSupplies")):
        status = supply.get("Status")
        status = status if isinstance(status, dict) else {}
        if status.get("State") == "Absent":
            continue
        labels = {
            "resource": "power_supply",
            "chassis_id": name,
            "power_supply": _word(supply.get("Name", "")),
            "power_supply_id": _word(supply.get("Id", "")),
        }
        yield _health(SUPPLY_METRIC, labels, at_ns, status.get("Health", supply.get("error")))


def _measure(given: object) -> tuple[float | None, str]:
    """A number, or the word in its place. Most readings stand in an excerpt of a sensor."""
    reading = given.get("Reading") if isinstance(given, dict) else given
    if isinstance(reading, int | float) and not isinstance(reading, bool) and abs(reading) <= VALUE_MAX:
        return float(reading), ""
    return None, _word(reading)


def _health(metric: str, labels: Labels, at_ns: int, state: object) -> Reading:
    value = HEALTH.get(state) if isinstance(state, str) else None
    return Reading(
        metric=metric, labels=labels, at_ns=at_ns, value=value, word="" if value is not None else _word(state)
    )


def _word(given: object) -> str:
    return "null" if given is None else str(given)[:WORD_CHARS_MAX]
