"""Redfish: cooling units as DMTF's schema has them, with the racks that are connected to them."""

from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

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


def fetch(path: str) -> object:
    return SERVICE.get(path)


def test_racks_units_and_water_are_found() -> None:
    topology = assemble(redfish.survey(fetch))
    assert topology.names("loop") == ("cdu-0000", "cdu-0001")
    assert topology.dependencies("rack-0001") == ("cdu-0000",)
    assert topology.path("water-0", "rack-0000") == ("water-0", "cdu-0000", "rack-0000")
    assert topology.dependents("cdu-0001") == ()


def test_a_service_without_cooling_units_says_nothing() -> None:
    assert redfish.survey(lambda path: None).kinds == {}


def test_a_service_gives_its_only_unit_its_name() -> None:
    alone = {CDUS: collection(f"{CDUS}/1"), f"{CDUS}/1": {"Id": "1"}}
    assert redfish.survey(alone.get, name="cdu-7").kinds == {"cdu-7": "loop"}
    assert {"cdu-7-cdu-0000", "cdu-7-cdu-0001"} <= {*redfish.survey(fetch, name="cdu-7").kinds}


plain = st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists, max_leaves=4)


@given(
    st.sampled_from(sorted(SERVICE)),
    plain | st.dictionaries(st.sampled_from(["Id", "Members", "Links", "@odata.id"]), plain),
)
@settings(max_examples=examples(200), deadline=None)
def test_a_broken_answer_hides_only_itself(path: str, answer: object) -> None:
    found = redfish.survey(lambda asked: answer if asked == path else fetch(asked))
    if path not in (CDUS, f"{CDUS}/cdu-0001"):
        assert "cdu-0001" in found.kinds
