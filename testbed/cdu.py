"""A mock-up of a site's cooling distribution units and power shelf, served over Redfish on loopback.

Its readings follow from a few quantities that can be set while it runs: how fast the pump turns, how much the
loop lets through, how warm the coolant arrives and how much heat the racks put into it. The rest is a heat
balance. `GET /state` shows the quantities of all units, `PUT /state` changes those of one:

    python testbed/cdu.py --port 8099 --cdus 2
    curl -X PUT -d '{"cdu": "cdu-0000", "passage": 0.4}' http://127.0.0.1:8099/state

The resources have the form of DMTF's and OCP's published examples.
"""

import argparse
import base64
import json
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KW_PER_LPM_KELVIN = 0.0698
"""The heat that a litre of water a minute carries off for each kelvin by which it is warmed."""
RATED_FLOW_LPM = 70.0
PUMP_PERCENT_MAX = 100.0
FLOW_LPM_MIN = 0.5
"""Below it the balance would have the coolant boil; a real unit has shut down long before."""
SHELF_SUPPLIES = 6
ROOT = "/redfish/v1"

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What one unit is set to.

    pump_percent  the pump's speed; passage: how much of its flow the loop lets through (1: clean)
    supply_celsius, heat_kw  the coolant to the racks, and the heat they put into it
    leak          whether a detector is wet
    words         texts in place of readings, by the property's name: {"FlowLitersPerMinute": "Null"}
    failed_supplies  which of its shelf's power supplies are broken, by number
    """

    pump_percent: float = 60.0
    passage: float = 1.0
    supply_celsius: float = 30.0
    heat_kw: float = 25.0
    leak: bool = False
    words: dict[str, str] = field(default_factory=dict)
    failed_supplies: tuple[int, ...] = ()

    @property
    def flow_lpm(self) -> float:
        return max(FLOW_LPM_MIN, RATED_FLOW_LPM * self.pump_percent / PUMP_PERCENT_MAX * self.passage)

    @property
    def warming_kelvin(self) -> float:
        return self.heat_kw / (self.flow_lpm * KW_PER_LPM_KELVIN)


class Site:
    """All units, and the resources that show them."""

    def __init__(self, names: list[str], racks_per_cdu: int) -> None:
        self._lock = threading.Lock()
        self._units = {name: Unit() for name in names}
        self._racks_per_cdu = racks_per_cdu

    def state(self) -> Json:
        with self._lock:
            return {name: asdict(unit) for name, unit in self._units.items()}

    def change(self, wanted: Json) -> None:
        """Set some quantities of one unit; raises `KeyError` or `TypeError` for unknown ones."""
        changes = dict(wanted)
        name = changes.pop("cdu")
        with self._lock:
            self._units[name] = replace(self._units[name], **changes)

    def resource(self, path: str) -> Json | None:
        with self._lock:
            return _resource(path, self._units, self._racks_per_cdu)


def _resource(path: str, units: dict[str, Unit], racks: int) -> Json | None:
    """The body of a resource; None where there is none."""
    match path.removeprefix(ROOT).strip("/").split("/"):
        case [""]:
            return _body(path, "ServiceRoot", links=("ThermalEquipment", "PowerEquipment"))
        case ["ThermalEquipment"]:
            return _body(path, "ThermalEquipment", links=("CDUs",))
        case ["ThermalEquipment", "CDUs"]:
            return _collection(path, list(units))
        case ["ThermalEquipment", "CDUs", name, *rest] if name in units:
            number = list(units).index(name)
            chassis = [f"rack-{number * racks + rack:04}" for rack in range(racks)]
            return _unit_resource(path, units[name], rest, chassis)
        case ["PowerEquipment"]:
            return _body(path, "PowerEquipment", links=("PowerShelves",))
        case ["PowerEquipment", "PowerShelves"]:
            return _collection(path, [_shelf(name) for name in units])
        case ["PowerEquipment", "PowerShelves", shelf, *rest]:
            found = next((unit for name, unit in units.items() if _shelf(name) == shelf), None)
            return _shelf_resource(path, found, rest) if found else None
    return None


def _unit_resource(path: str, unit: Unit, rest: list[str], chassis: list[str]) -> Json | None:
    match rest:
        case []:
            links = (
                "PrimaryCoolantConnectors",
                "SecondaryCoolantConnectors",
                "Pumps",
                "Filters",
                "Reservoirs",
            )
            body = _body(path, "CoolingUnit", links=(*links, "LeakDetection"))
            return {**body, "EquipmentType": "CDU", "CoolingCapacityWatts": 100_000}
        case ["LeakDetection"]:
            return _body(path, "LeakDetection", links=("LeakDetectors",))
        case [_] | ["LeakDetection", "LeakDetectors"]:
            return _collection(path, ["1"])
        case ["PrimaryCoolantConnectors", "1"]:
            return _connector(path, unit, primary=True, chassis=[])
        case ["SecondaryCoolantConnectors", "1"]:
            return _connector(path, unit, primary=False, chassis=chassis)
        case ["Pumps", "1"]:
            return {**_body(path, "Pump"), **_readings(unit, {"PumpSpeedPercent": unit.pump_percent})}
        case ["Filters", "1"]:
            return {**_body(path, "Filter"), "ServiceHours": 1344}
        case ["Reservoirs", "1"]:
            return {**_body(path, "Reservoir"), "FluidLevelStatus": "Warning" if unit.leak else "OK"}
        case ["LeakDetection", "LeakDetectors", "1"]:
            state = "Critical" if unit.leak else "OK"
            return {**_body(path, "LeakDetector"), "LeakDetectorType": "Moisture", "DetectorState": state}
    return None


def _connector(path: str, unit: Unit, *, primary: bool, chassis: list[str]) -> Json:
    """The facility's side has as much water and is four kelvin colder."""
    supply = unit.supply_celsius - (4.0 if primary else 0.0)
    readings = {
        "FlowLitersPerMinute": unit.flow_lpm,
        "SupplyTemperatureCelsius": supply,
        "ReturnTemperatureCelsius": supply + unit.warming_kelvin,
        "DeltaTemperatureCelsius": unit.warming_kelvin,
        "SupplyPressurekPa": 145.0,
        "ReturnPressurekPa": 108.0,
        "DeltaPressurekPa": 37.0,
        "HeatRemovedkW": unit.heat_kw,
    }
    cooled = [{"@odata.id": f"{ROOT}/Chassis/{name}"} for name in chassis]
    return {
        **_body(path, "CoolantConnector"),
        "CoolantConnectorType": "Pair",
        "Coolant": {
            "CoolantType": "Water",
            "SpecificHeatkJoulesPerKgK": 4.187,
            "DensityKgPerCubicMeter": 1000,
        },
        "RatedFlowLitersPerMinute": RATED_FLOW_LPM,
        **_readings(unit, readings),
        "Links": {"ConnectedChassis": cooled},
    }


def _readings(unit: Unit, values: dict[str, float]) -> Json:
    """As excerpts of sensors, with a word where one was set."""
    return {name: {"Reading": unit.words.get(name, round(value, 3))} for name, value in values.items()}


def _shelf(cdu: str) -> str:
    return cdu.replace("cdu", "shelf", 1)


def _shelf_resource(path: str, unit: Unit, rest: list[str]) -> Json | None:
    match rest:
        case []:
            return _body(path, "PowerDistribution", links=("PowerSupplies",))
        case ["PowerSupplies"]:
            return _collection(path, [str(number) for number in range(SHELF_SUPPLIES)])
        case ["PowerSupplies", number] if number in map(str, range(SHELF_SUPPLIES)):
            health = "Critical" if int(number) in unit.failed_supplies else "OK"
            return {**_body(path, "PowerSupply", health=health), "Name": f"PSU {number}"}
    return None


def _body(path: str, kind: str, *, links: tuple[str, ...] = (), health: str = "OK") -> Json:
    return {
        "@odata.id": path,
        "@odata.type": f"#{kind}.v1_0_0.{kind}",
        "Id": path.rpartition("/")[2],
        "Name": kind,
        "Status": {"State": "Enabled", "Health": health},
        **{name: {"@odata.id": f"{path}/{name}"} for name in links},
    }


def _collection(path: str, names: list[str]) -> Json:
    members = [{"@odata.id": f"{path}/{name}"} for name in names]
    return {"@odata.id": path, "Name": "Collection", "Members@odata.count": len(members), "Members": members}


class Service(ThreadingHTTPServer):
    """The site on a port. user, password: what is asked for, unless empty."""

    daemon_threads = True

    def __init__(self, site: Site, port: int, *, user: str = "", password: str = "") -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.site = site
        self.basic = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""
        self.login = {"UserName": user, "Password": password}
        self.sessions: set[str] = set()


class _Handler(BaseHTTPRequestHandler):
    server: Service
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer leaves in one piece, or the client's kernel waits before it acknowledges

    def do_GET(self) -> None:
        path = self.path.rstrip("/")
        if path == "/state":
            self._answer(HTTPStatus.OK, self.server.site.state())
        elif not self._is_known():
            self._answer(HTTPStatus.UNAUTHORIZED, {"error": {"message": "Who are you?"}})
        elif (body := self.server.site.resource(path)) is None:
            self._answer(HTTPStatus.NOT_FOUND, {"error": {"message": "There is no such resource."}})
        else:
            self._answer(HTTPStatus.OK, body)

    def do_PUT(self) -> None:
        try:
            self.server.site.change(self._sent())
        except (ValueError, KeyError, TypeError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": {"message": repr(error)}})
        else:
            self._answer(HTTPStatus.OK, self.server.site.state())

    def do_POST(self) -> None:
        if self._sent() != self.server.login:
            self._answer(HTTPStatus.UNAUTHORIZED, {"error": {"message": "Who are you?"}})
            return
        token = f"token-{len(self.server.sessions)}"
        self.server.sessions.add(token)
        headers = {"X-Auth-Token": token, "Location": f"{ROOT}/SessionService/Sessions/{token}"}
        self._answer(HTTPStatus.CREATED, {}, headers)

    def do_DELETE(self) -> None:
        self.server.sessions.discard(self.path.rpartition("/")[2])
        self._answer(HTTPStatus.OK, {})

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002
        """Requests are no news."""

    def _is_known(self) -> bool:
        given = self.headers.get("Authorization", "")
        return self.server.basic in ("", given) or self.headers.get("X-Auth-Token") in self.server.sessions

    def _sent(self) -> Json:
        body: Json = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        return body

    def _answer(self, status: HTTPStatus, body: Json, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser(description="A mock-up of cooling distribution units over Redfish.")
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0 for any that is free")
    parser.add_argument("--cdus", type=int, default=1, help="how many units there are")
    parser.add_argument("--racks-per-cdu", type=int, default=2)
    parser.add_argument("--user", default="", help="ask for this user, and the password")
    parser.add_argument("--password", default="")
    given = parser.parse_args()
    site = Site([f"cdu-{number:04}" for number in range(given.cdus)], given.racks_per_cdu)
    with Service(site, given.port, user=given.user, password=given.password) as service:
        print(f"http://127.0.0.1:{service.server_address[1]}", flush=True)
        with suppress(KeyboardInterrupt):
            service.serve_forever()


if __name__ == "__main__":
    main()
