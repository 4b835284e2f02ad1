"""Cooling units over Redfish: the mock-up, and services that lie, loop and never end."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.clock import ManualClock
from holdfast.signals.catalogue import CATALOGUE
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.redfish import MEMBERS_MAX, CoolingLink, RedfishCollector, as_densewatch
from holdfast.signals.collectors.redfish_service import BODY_BYTES_MAX, REQUESTS_MAX, Service
from holdfast.signals.frame import Reading

Serve = Callable[[Callable[[str], tuple[int, bytes]]], str]
UNIT = "/redfish/v1/ThermalEquipment/CDUs/cdu-0000"
SECONDARY = f"{UNIT}/SecondaryCoolantConnectors/1"


@contextmanager
def collector(url: str, **options: Any) -> Iterator[RedfishCollector]:
    one = RedfishCollector(Service(url=url, **options), clock=ManualClock(11))
    try:
        yield one
    finally:
        one.close()


def collect(url: str, **options: Any) -> list[Reading]:
    with collector(url, **options) as one:
        return one.collect()


def by_place(readings: list[Reading]) -> dict[tuple[str, str], Reading]:
    return {(reading.metric, reading.labels.get("@odata.id", "")): reading for reading in readings}


def test_a_unit_is_read_under_redfishs_names(cdu_service: str) -> None:
    found = by_place(collect(cdu_service))
    assert found["FlowLitersPerMinute", SECONDARY].value == 42
    assert found["RatedFlowLitersPerMinute", SECONDARY].value == 70
    assert found["SupplyTemperatureCelsius", SECONDARY].value == 30
    assert found["HeatRemovedkW", SECONDARY].value == 25
    assert found["PumpSpeedPercent", f"{UNIT}/Pumps/1"].value == 60
    assert found["ServiceHours", f"{UNIT}/Filters/1"].value == 1344
    assert found["FluidLevelStatus", f"{UNIT}/Reservoirs/1"].value == 1
    flow = found["FlowLitersPerMinute", SECONDARY]
    assert flow.labels == {"@odata.id": SECONDARY, "cdu": "cdu-0000", "side": "secondary"}
    assert flow.at_ns == 11
    water = found["FlowLitersPerMinute", f"{UNIT}/PrimaryCoolantConnectors/1"]
    assert water.labels["side"] == "primary"


def test_heat_flow_and_temperatures_balance(cdu_service: str, set_cdu: Callable[..., None]) -> None:
    set_cdu(passage=0.5, heat_kw=31.0)
    found = by_place(collect(cdu_service))
    flow, supply, back, heat = (
        found[name, SECONDARY].value or 0.0
        for name in (
            "FlowLitersPerMinute",
            "SupplyTemperatureCelsius",
            "ReturnTemperatureCelsius",
            "HeatRemovedkW",
        )
    )
    assert flow == 21
    assert flow * (back - supply) * 0.0698 == pytest.approx(heat, rel=1e-3)


def test_words_are_kept_as_words(cdu_service: str, set_cdu: Callable[..., None]) -> None:
    set_cdu(
        words={"FlowLitersPerMinute": "Null", "HeatRemovedkW": "Out of range", "PumpSpeedPercent": "38.5"}
    )
    readings = collect(cdu_service)
    found = by_place(readings)
    for name, place, word in [
        ("FlowLitersPerMinute", SECONDARY, "Null"),
        ("HeatRemovedkW", SECONDARY, "Out of range"),
        ("PumpSpeedPercent", f"{UNIT}/Pumps/1", "38.5"),
    ]:
        assert (found[name, place].value, found[name, place].word) == (None, word)
    shown = {(reading.metric, reading.labels["cdu"]) for reading in as_densewatch(readings)}
    assert ("densewatch_cdu_coolant_flow_lpm", "cdu-0000") not in shown
    assert ("densewatch_cdu_coolant_flow_lpm", "cdu-0001") in shown


def test_leaks_and_power_supplies_have_a_health(cdu_service: str, set_cdu: Callable[..., None]) -> None:
    set_cdu(leak=True, failed_supplies=[2])
    readings = collect(cdu_service)
    leaks = [reading for reading in readings if reading.metric == "redfish_chassis_leak_detector_health"]
    assert [(leak.labels["chassis_id"], leak.value) for leak in leaks] == [("cdu-0000", 3), ("cdu-0001", 1)]
    supplies = {
        (reading.labels["chassis_id"], reading.labels["power_supply_id"]): reading.value
        for reading in readings
        if reading.metric == "redfish_chassis_power_powersupply_health"
    }
    assert len(supplies) == 12
    assert [supply for supply, health in supplies.items() if health != 1] == [("shelf-0000", "2")]
    wet = {one.labels["cdu"]: one.value for one in as_densewatch(readings) if "leak" in one.metric}
    assert wet == {"cdu-0000": 1, "cdu-0001": 0}


def test_what_prometheus_gets_is_the_racks_side_only(cdu_service: str) -> None:
    shown = [one for one in as_densewatch(collect(cdu_service)) if one.labels["cdu"] == "cdu-0000"]
    assert {one.metric for one in shown} <= CATALOGUE.keys()
    assert {one.metric.removeprefix("densewatch_cdu_"): one.value for one in shown} == {
        "coolant_flow_lpm": 42,
        "coolant_supply_temp_celsius": 30,
        "coolant_return_temp_celsius": pytest.approx(38.528),
        "heat_removed_kw": 25,
        "pump_speed_percent": 60,
        "leak_detected": 0,
    }
    assert shown[0].labels == {"cdu": "cdu-0000", "protocol": "redfish"}


def test_flows_of_several_connectors_add_up_and_temperatures_do_not() -> None:
    readings = [
        Reading(metric=metric, labels={"cdu": "a", "@odata.id": place}, at_ns=1, value=value)
        for place, flow, supply in [("x", 40.0, 30.0), ("y", 20.0, 32.0)]
        for metric, value in [("FlowLitersPerMinute", flow), ("SupplyTemperatureCelsius", supply)]
    ]
    assert {one.metric: one.value for one in as_densewatch(readings)} == {
        "densewatch_cdu_coolant_flow_lpm": 60,
        "densewatch_cdu_coolant_supply_temp_celsius": 31,
    }


def test_what_is_cooled_is_told_for_the_topology(cdu_service: str) -> None:
    with collector(cdu_service) as one:
        one.collect()
        links = one.links()
    assert len(links) == 4
    assert links[0] == CoolingLink(
        cdu="cdu-0000", connector=SECONDARY, chassis="/redfish/v1/Chassis/rack-0000"
    )


def test_a_service_may_be_given_its_units_name(cdu_service: str, guarded_cdu_service: str) -> None:
    alone = collect(guarded_cdu_service, name="cdu-west", user="ada", password="tide")
    assert {reading.labels["cdu"] for reading in alone if "cdu" in reading.labels} == {"cdu-west"}
    both = collect(cdu_service, name="cdu-west")
    assert {reading.labels["cdu"] for reading in both if "cdu" in reading.labels} == {
        "cdu-west-cdu-0000",
        "cdu-west-cdu-0001",
    }


@pytest.mark.parametrize("session", [False, True])
def test_who_is_known_may_read(guarded_cdu_service: str, session: bool) -> None:
    assert collect(guarded_cdu_service, user="ada", password="tide", session=session)


def test_who_is_not_known_is_told_so(guarded_cdu_service: str) -> None:
    with pytest.raises(Unavailable, match="refuses the user 'ada'"):
        collect(guarded_cdu_service, user="ada", password="ebb")
    with pytest.raises(Unavailable, match="opens no session: HTTP 401"):
        collect(guarded_cdu_service, user="ada", password="ebb", session=True)


def test_a_session_that_ran_out_is_opened_again(guarded_cdu_service: str) -> None:
    with collector(guarded_cdu_service, user="ada", password="tide", session=True) as one:
        one.collect()
        httpx.delete(f"{guarded_cdu_service}/redfish/v1/SessionService/Sessions/token-0").raise_for_status()
        assert one.collect()


def test_nobody_there_is_one_sentence() -> None:
    with pytest.raises(Unavailable, match=r"Redfish at 127\.0\.0\.1:9 does not answer: .*refused"):
        collect("http://127.0.0.1:9")


def test_certificates_of_an_authority_that_is_no_file() -> None:
    with pytest.raises(Unavailable, match=r"Cannot use the certificates in /nowhere\.pem"):
        collect("https://127.0.0.1:9", authority="/nowhere.pem")


def tree(**resources: Any) -> Callable[[str], tuple[int, bytes]]:
    """A service of one unit, with these resources of it."""
    base = {
        "/redfish/v1/ThermalEquipment": {"CDUs": {"@odata.id": "/redfish/v1/ThermalEquipment/CDUs"}},
        "/redfish/v1/ThermalEquipment/CDUs": {"Members": [{"@odata.id": "/redfish/v1/u"}]},
        "/redfish/v1/u": {"Id": "1", "SecondaryCoolantConnectors": {"@odata.id": "/redfish/v1/c"}},
        "/redfish/v1/c": {"Members": [{"@odata.id": "/redfish/v1/c/1"}]},
        "/redfish/v1/c/1": {"@odata.id": "/redfish/v1/c/1", "FlowLitersPerMinute": {"Reading": 5}},
        **{f"/redfish/v1/{name}": body for name, body in resources.items()},
    }

    def answer(path: str) -> tuple[int, bytes]:
        body = base.get(path)
        if isinstance(body, int):
            return body, b""
        if body is None:
            return 404, b"{}"
        return 200, body if isinstance(body, bytes) else json.dumps(body).encode()

    return answer


def flow(url: str) -> tuple[float | None, str]:
    (reading,) = [one for one in collect(url) if one.metric == "FlowLitersPerMinute"]
    return reading.value, reading.word


@pytest.mark.parametrize(
    ("connector", "expected"),
    [
        ({"FlowLitersPerMinute": {"Reading": 41.5}}, (41.5, "")),
        ({"FlowLitersPerMinute": 41.5}, (41.5, "")),
        ({"FlowLitersPerMinute": {"Reading": None}}, (None, "null")),
        ({"FlowLitersPerMinute": None}, (None, "null")),
        ({"FlowLitersPerMinute": {"Reading": True}}, (None, "True")),
        ({"FlowLitersPerMinute": {"Reading": 10**400}}, (None, "1" + "0" * 79)),
        ({"FlowLitersPerMinute": {"Reading": ["?"] * 99}}, (None, str(["?"] * 99)[:80])),
        (500, (None, "HTTP 500")),
        (b"<html>", (None, "no JSON object")),
        pytest.param(b"[" * 100_000, (None, "no JSON object"), id="nested without end"),
        pytest.param(b" " * (BODY_BYTES_MAX + 1), (None, "too long"), id="long"),
    ],
    ids=str,
)
def test_a_dirty_connector_is_a_word(
    serve: Serve, connector: Any, expected: tuple[float | None, str]
) -> None:
    assert flow(serve(tree(**{"c/1": connector}))) == expected


@pytest.mark.parametrize(
    "resources",
    [
        {"u": {"Id": "1"}},
        {"u": []},
        {"c": {"Members": "none"}},
        {
            "c": {
                "Members": [{"@odata.id": "http://127.0.0.1:9/redfish/v1/elsewhere"}, {"@odata.id": 7}, None]
            }
        },
        {"c": {"Members": [{"@odata.id": "/redfish/v1/u"}, {"@odata.id": "/redfish/v1/c"}]}},
        {"c": {"Members": [{"@odata.id": "/redfish/v1/\u0000\n"}]}},
        {"ThermalEquipment": 404},
    ],
    ids=str,
)
def test_a_service_without_anything_to_read_says_so(serve: Serve, resources: Any) -> None:
    with pytest.raises(Unavailable, match="no cooling unit and no power shelf"):
        collect(serve(tree(**resources)))


@pytest.mark.slow
def test_a_service_that_never_ends_is_left(serve: Serve) -> None:
    asked = []

    def answer(path: str) -> tuple[int, bytes]:
        asked.append(path)
        members = [{"@odata.id": f"{path}/{number}"} for number in range(2 * MEMBERS_MAX)]
        links = {
            name: {"@odata.id": f"{path}/{name}"} for name in ("CDUs", "Pumps", "SecondaryCoolantConnectors")
        }
        return 200, json.dumps({"Members": members, **links}).encode()

    with pytest.raises(Unavailable, match="too large or too slow"):
        collect(serve(answer))
    assert len(asked) == REQUESTS_MAX


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=20),
        st.sampled_from(["/redfish/v1/c", "/redfish/v1/u", "OK", "Null"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                ["@odata.id", "Members", "Reading", "Links", "error", "ConnectedChassis", "Status", "Pumps"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=10,
)


@pytest.fixture
def changing_service(serve: Serve) -> tuple[str, dict[str, Any]]:
    """The URL of a service, and its resources beside those that every one has."""
    resources: dict[str, Any] = {}
    return serve(lambda path: tree(**resources)(path)), resources


@settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.sampled_from(["ThermalEquipment", "u", "c", "c/1"]), st.one_of(anything, st.binary(max_size=40)))
def test_no_service_whatever_raises_more_than_that(
    changing_service: tuple[str, dict[str, Any]], place: str, body: Any
) -> None:
    url, resources = changing_service
    resources.clear()
    resources[place] = body if not isinstance(body, int) else [body]
    try:
        readings = collect(url)
    except Unavailable:
        return
    assert all((reading.value is None) == bool(reading.word) for reading in readings)
