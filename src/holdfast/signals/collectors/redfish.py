"""Cooling distribution units and power shelves over Redfish: what they measure, under Redfish's own names.

A unit is walked from /redfish/v1/ThermalEquipment down: coolant connectors, pumps, filters, reservoirs and
leak detectors. Readings that are no number (`"Null"`, `"Out of range"`, null) are kept as words. A service is
not trusted to be short or free of circles: requests, members, bytes and time are bounded, no link is followed
twice, and none that leads out of the service.
"""

import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import msgspec

from holdfast.record.clock import Clock
from holdfast.signals.collectors import Unavailable
from holdfast.signals.frame import Labels
from holdfast.signals.reading import Reading

REQUEST_TIMEOUT_S = 5.0
WALK_S_MAX = 30.0
"""For all of a service; a unit has a dozen resources, and slow ones answer in tenths of a second."""
REQUESTS_MAX = 500
MEMBERS_MAX = 64
BODY_BYTES_MAX = 1024 * 1024
WORD_CHARS_MAX = 80
VALUE_MAX = 1e30
"""No quantity that a cooling unit measures comes near; what is beyond is no number but a fault."""

ROOT = "/redfish/v1"
SESSIONS = f"{ROOT}/SessionService/Sessions"
CONNECTORS = {"primary": "PrimaryCoolantConnectors", "secondary": "SecondaryCoolantConnectors"}
"""By the side that the label `side` names: the water of the facility, and the coolant of the racks."""
CONNECTOR_PROPERTIES = (
    "FlowLitersPerMinute",
    "RatedFlowLitersPerMinute",
    "SupplyTemperatureCelsius",
    "ReturnTemperatureCelsius",
    "DeltaTemperatureCelsius",
    "SupplyPressurekPa",
    "ReturnPressurekPa",
    "DeltaPressurekPa",
    "HeatRemovedkW",
    "ValvePositionPercent",
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

_Resource = dict[str, Any]
"""Whatever a service sent; nothing about it is taken for granted, and none of it leaves this module."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A Redfish service and how it is reached.

    name      what its unit is called in the topology; without one, a unit is called by its `Id`
    session   log in and use a token, instead of sending the password with every request
    verify    whether its certificate must be good; authority: a file of those that may vouch for it
    """

    url: str
    name: str = ""
    user: str = ""
    password: str = ""
    session: bool = False
    verify: bool = True
    authority: str | None = None


class CoolingLink(msgspec.Struct, frozen=True, kw_only=True):
    """A unit's connector and a chassis that it cools, both by their place in the service."""

    cdu: str
    connector: str
    chassis: str


class RedfishCollector:
    """One service, with all of its units and shelves."""

    def __init__(self, service: Service, *, clock: Clock) -> None:
        self.name = f"Redfish at {service.name or httpx.URL(service.url).host}"
        self._service = service
        self._clock = clock
        self._client: httpx.Client | None = None
        self._session: str | None = None
        self._links: tuple[CoolingLink, ...] = ()

    def collect(self) -> list[Reading]:
        try:
            return self._read(self._open())
        except _Refused:
            self._leave()
        if self._service.session:
            # A token runs out after some time without a request, or when the service starts anew.
            with suppress(_Refused):
                return self._read(self._open())
            self._leave()
        raise Unavailable(
            f"{self.name} refuses the user {self._service.user!r}.",
            hint="Set HOLDFAST_REDFISH_USER and HOLDFAST_REDFISH_PASSWORD.",
        )

    def links(self) -> tuple[CoolingLink, ...]:
        """Which connector cools which chassis, as of the last reading: edges of the topology."""
        return self._links

    def close(self) -> None:
        self._leave()

    def _read(self, client: httpx.Client) -> list[Reading]:
        walk = _Walk(client, self.name)
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
                hint="They are looked for under ThermalEquipment/CDUs and PowerEquipment/PowerShelves.",
            )
        self._links = tuple(links)
        return readings

    def _named(self, resources: list[_Resource]) -> Iterator[tuple[str, _Resource]]:
        for resource in resources:
            identity = _word(resource.get("Id", ""))
            given = self._service.name
            yield (f"{given}-{identity}" if given and len(resources) > 1 else given or identity), resource

    def _open(self) -> httpx.Client:
        if self._client is None:
            service = self._service
            basic = httpx.BasicAuth(service.user, service.password) if service.user else None
            self._client = httpx.Client(
                base_url=service.url,
                auth=None if service.session else basic,
                verify=_verification(service),
                timeout=REQUEST_TIMEOUT_S,
                # Unpacked, a small answer might be a large one.
                headers={"Accept": "application/json", "Accept-Encoding": "identity", "OData-Version": "4.0"},
                # A proxy for the outside has no way to a cooling unit.
                trust_env=False,
            )
        if self._service.session and self._session is None:
            self._log_in(self._client)
        return self._client

    def _log_in(self, client: httpx.Client) -> None:
        who = {"UserName": self._service.user, "Password": self._service.password}
        try:
            answer = client.post(SESSIONS, json=who)
        except httpx.HTTPError as error:
            raise _unreachable(self.name, error) from None
        token = answer.headers.get("X-Auth-Token")
        if answer.status_code not in (httpx.codes.OK, httpx.codes.CREATED) or not token:
            raise Unavailable(f"{self.name} opens no session: HTTP {answer.status_code}.")
        client.headers["X-Auth-Token"] = token
        self._session = answer.headers.get("Location", "")

    def _leave(self) -> None:
        """Log out: a service has room for a few sessions only."""
        client, session = self._client, self._session
        self._client = self._session = None
        if client is None:
            return
        if session and session.startswith(ROOT):
            # It forgets the session by itself too, but later.
            with suppress(httpx.HTTPError):
                client.delete(session)
        client.close()


def is_facility_water(reading: Reading) -> bool:
    """Of a connector on the primary side: it is no coolant of a rack, and must not be compared with one."""
    return reading.labels.get("side") == "primary"


def as_densewatch(readings: list[Reading]) -> list[Reading]:
    """The same under densewatch's names, for Prometheus, which has no room for Redfish's: one value a unit.

    Flows and heat of its connectors to the racks add up; temperatures and pump speeds are means. Where one of
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


class _Refused(Exception):
    """The service wants other credentials."""


class _Walk:
    """The requests of one reading of a service, and their bounds."""

    def __init__(self, client: httpx.Client, name: str) -> None:
        self._client = client
        self._name = name
        self._seen: set[str] = set()
        self._deadline_s = time.monotonic() + WALK_S_MAX

    def get(self, link: object) -> _Resource | None:
        """The resource; None where the link is none, leads in a circle, or the service does not have it.

        What it cannot give is told as `{"@odata.id": ..., "error": ...}`.
        """
        path = link.get("@odata.id") if isinstance(link, dict) else link
        if not isinstance(path, str) or not path.startswith(ROOT) or path in self._seen:
            return None
        self._seen.add(path)
        if len(self._seen) > REQUESTS_MAX or time.monotonic() > self._deadline_s:
            raise Unavailable(f"{self._name} is too large or too slow to be read whole.")
        try:
            with self._client.stream("GET", path) as answer:
                return _resource(path, answer)
        except httpx.InvalidURL:
            return None
        except httpx.HTTPError as error:
            raise _unreachable(self._name, error) from None


def _resource(path: str, answer: httpx.Response) -> _Resource | None:
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise _Refused
    if answer.status_code == httpx.codes.NOT_FOUND:
        return None
    if answer.status_code != httpx.codes.OK:
        return {"@odata.id": path, "error": f"HTTP {answer.status_code}"}
    body = bytearray()
    for chunk in answer.iter_bytes():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            return {"@odata.id": path, "error": "too long"}
    try:
        resource = msgspec.json.decode(bytes(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        resource = None
    return resource if isinstance(resource, dict) else {"@odata.id": path, "error": "no JSON object"}


def _members(walk: _Walk, root: str, collection: str) -> list[_Resource]:
    equipment = walk.get(f"{ROOT}/{root}")
    return _collection(walk, (equipment or {}).get(collection))


def _collection(walk: _Walk, link: object) -> list[_Resource]:
    members = (walk.get(link) or {}).get("Members")
    if not isinstance(members, list):
        return []
    return [resource for member in members[:MEMBERS_MAX] if (resource := walk.get(member)) is not None]


class _Unit:
    """One cooling distribution unit and what it is made of."""

    def __init__(self, walk: _Walk, resource: _Resource, cdu: str, at_ns: int) -> None:
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

    def _labels(self, resource: _Resource) -> Labels:
        return {"@odata.id": _word(resource.get("@odata.id", "")), "cdu": self._cdu}

    def _measured(self, resource: _Resource, properties: tuple[str, ...], more: Labels) -> Iterator[Reading]:
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

    def _cooled(self, connector: _Resource) -> Iterator[CoolingLink]:
        links = connector.get("Links")
        chassis = links.get("ConnectedChassis") if isinstance(links, dict) else None
        for one in chassis[:MEMBERS_MAX] if isinstance(chassis, list) else ():
            if isinstance(one, dict) and isinstance(place := one.get("@odata.id"), str):
                yield CoolingLink(
                    cdu=self._cdu, connector=self._labels(connector)["@odata.id"], chassis=place
                )


def _supplies(walk: _Walk, shelf: _Resource, name: str, at_ns: int) -> Iterator[Reading]:
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


def _verification(service: Service) -> ssl.SSLContext | bool:
    if not service.verify or service.authority is None:
        return service.verify
    try:
        return ssl.create_default_context(cafile=service.authority)
    except (OSError, ssl.SSLError):
        raise Unavailable(
            f"The certificates in {service.authority} cannot be used.", hint="A file in PEM format is wanted."
        ) from None


def _unreachable(name: str, error: httpx.HTTPError) -> Unavailable:
    return Unavailable(f"{name} does not answer: {error or type(error).__name__}.")
