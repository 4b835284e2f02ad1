"""Redfish: cooling units as DMTF's schema has them, with the racks that are connected to them."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.topology.assemble import assemble
from holdfast.topology.discovery import redfish

CDUS = redfish.CDUS_PATH


def collection(*members: str) -> dict[str, object]:
    return {"Members@odata.count": len(members), "Members": [{"@odata.id": member} for member in members]}


SERVICE: dict[str, object] = {
    CDUS: collection(f"{CDUS}/cdu-0000", f"{CDUS}/cdu-0001"),
    f"{CDUS}/cdu-0000": {
        "@odata.type": "#CoolingUnit.v1_3_0.CoolingUnit",
        "Id": "cdu-0000",
        "EquipmentType": "CDU",
        "PrimaryCoolantConnectors": {"@odata.id": f"{CDUS}/cdu-0000/PrimaryCoolantConnectors"},
        "SecondaryCoolantConnectors": {"@odata.id": f"{CDUS}/cdu-0000/SecondaryCoolantConnectors"},
    },
    f"{CDUS}/cdu-0001": {"Id": "cdu-0001"},
    f"{CDUS}/cdu-0000/PrimaryCoolantConnectors": collection(f"{CDUS}/cdu-0000/PrimaryCoolantConnectors/1"),
    f"{CDUS}/cdu-0000/PrimaryCoolantConnectors/1": {
        "Id": "1",
        "Links": {"ConnectedCoolingLoop": {"@odata.id": "/redfish/v1/ThermalEquipment/CoolingLoops/water-0"}},
    },
    f"{CDUS}/cdu-0000/SecondaryCoolantConnectors": collection(
        f"{CDUS}/cdu-0000/SecondaryCoolantConnectors/1"
    ),
    f"{CDUS}/cdu-0000/SecondaryCoolantConnectors/1": {
        "@odata.type": "#CoolantConnector.v1_2_0.CoolantConnector",
        "Id": "1",
        "RatedFlowLitersPerMinute": 35,
        "Links": {
            "ConnectedChassis": [
                {"@odata.id": "/redfish/v1/Chassis/rack-0000"},
                {"@odata.id": "/redfish/v1/Chassis/rack-0001/"},
            ]
        },
    },
}


def fetch(path: str) -> bytes | None:
    return msgspec.json.encode(SERVICE[path]) if path in SERVICE else None


def test_racks_units_and_water_are_found() -> None:
    topology = assemble(redfish.survey(fetch))
    assert topology.names("loop") == ("cdu-0000", "cdu-0001")
    assert topology.dependencies("rack-0001") == ("cdu-0000",)
    assert topology.path("water-0", "rack-0000") == ("water-0", "cdu-0000", "rack-0000")
    assert topology.dependents("cdu-0001") == ()


def test_a_service_without_cooling_units_says_nothing() -> None:
    assert redfish.survey(lambda path: None).kinds == {}


@given(
    st.sampled_from(sorted(SERVICE)), st.binary(max_size=20) | st.sampled_from([b"[]", b"{}", b'{"Id": 7}'])
)
@settings(max_examples=200, deadline=None)
def test_a_broken_answer_hides_only_itself(path: str, answer: bytes) -> None:
    redfish.survey(lambda asked: answer if asked == path else fetch(asked))
