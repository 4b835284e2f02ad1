"""The message of an incident: three sides in one, a severity by rule, labels that are few and stay."""

from collections.abc import Callable

import msgspec
import pytest

from holdfast.diagnose.alerts import SEVERITIES, WORTH, AlertWorth, alert, severity, summary
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.wording import members, moment, share
from holdfast.wording import lasting, listed

Make = Callable[..., Incident]


def test_one_message_joins_infrastructure_runtime_and_money(incident: Make) -> None:
    told = alert(incident())
    assert told.annotations["description"].splitlines() == [
        "Infrastructure: coolant flow is lost, and its GPUs throttle. It is cdu-0000 (loop), owned by"
        " facilities; 93 % sure. Seen: flow is 88 L/min, rated 210.",
        "Runtime: pretrain is 33 % slower, 1 min 28 s of it lost so far. Late: 31 members, n[00000-00030].",
        "Money: 12.5 GPU-hours (49.90 USD) so far, 130.0 GPU-hours (518.70 USD) each hour; each day it goes"
        " on, the run is done 6 h later. The price of a GPU-hour is assumed.",
    ]
    assert told.annotations["runbook"] == "holdfast runbook pretrain/s1"
    assert told.annotations["action"] == incident().action
    assert (told.starts_ns, told.ends_ns) == (incident().began_ns, None)


def test_of_what_is_over_nothing_is_said_to_go_on(incident: Make) -> None:
    over = incident(ended_ns=incident().began_ns + 600 * 10**9)
    assert summary(over).startswith("pretrain was 33 % slower, 49.90 USD: coolant flow")
    assert alert(over).annotations["description"].splitlines()[1:] == [
        "Runtime: pretrain was 33 % slower, 1 min 28 s of it lost. Late: 31 members, n[00000-00030].",
        "Money: 12.5 GPU-hours (49.90 USD); the run is done 1 min 28 s later."
        " The price of a GPU-hour is assumed.",
    ]


def test_a_run_is_named_by_its_id_and_its_name(incident: Make) -> None:
    named = incident(run_name="llama")
    assert summary(named).startswith("pretrain (llama) is 33 % slower")
    assert "Runtime: pretrain (llama) is 33 % slower" in alert(named).annotations["description"]
    assert (alert(named).annotations["run_name"], alert(named).labels["run"]) == ("llama", "pretrain")
    assert alert(named).labels == alert(incident()).labels  # a name that comes late must not page again


def test_labels_say_whose_it_is(incident: Make) -> None:
    assert alert(incident()).labels == {
        "alertname": "HoldfastIncident",
        "incident": "pretrain/s1",
        "run": "pretrain",
        "cause": "cdu-0000",
        "mechanism": "coolant-flow",
        "domain": "cooling",
        "owner": "facilities",
        "seam": "facilities-ml",
        "severity": "critical",
    }


def test_what_grows_by_itself_changes_no_label(incident: Make) -> None:
    # To Alertmanager other labels are another alert, and pages again.
    cost = incident().cost
    assert cost is not None
    later = incident(cost=msgspec.structs.replace(cost, usd=1e6), confidence=0.99, affected=("n00000",))
    assert alert(later).labels == alert(incident()).labels


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        ("cause", "coolant flow is lost, and its GPUs throttle (cdu-0000, facilities)"),
        ("unknown", "nothing that was looked at explains it"),
        (
            "not-hardware",
            "coolant flow is lost, and its GPUs throttle (facilities); nothing is wrong beneath it",
        ),
    ],
)
def test_every_verdict_has_its_sentence(incident: Make, verdict: str, sentence: str) -> None:
    assert summary(incident(verdict=verdict)) == f"pretrain is 33 % slower, 518.70 USD an hour: {sentence}"


@pytest.mark.parametrize(
    ("slowdown", "usd_per_hour", "mechanism", "expected"),
    [
        (1.25, 0.0, "slow-node", "critical"),
        (1.0, 1_000.0, "slow-node", "critical"),
        (1.24, 999.0, "slow-node", "warning"),
        (1.05, 0.0, "slow-node", "warning"),
        (1.0, 100.0, "slow-node", "warning"),
        (1.0, 0.0, "gpu-fault", "warning"),
        (1.0, 0.0, "memory-errors", "warning"),
        (1.04, 99.0, "slow-node", "info"),
    ],
)
def test_severity_is_by_cost(
    incident: Make, slowdown: float, usd_per_hour: float, mechanism: str, expected: str
) -> None:
    cost = incident().cost
    assert cost is not None
    price = msgspec.structs.replace(cost, usd_per_hour=usd_per_hour)
    assert severity(incident(slowdown=slowdown, cost=price, mechanism=mechanism)) == expected


@pytest.mark.parametrize(
    ("slowdown", "usd_per_hour", "mechanism", "is_sent"),
    [
        (1.0034, 0.0, "slow-node", False),
        (1.0, 0.0, "cpu-contention", False),
        (1.0099, 0.99, "slow-node", False),
        (1.01, 0.0, "slow-node", True),
        (1.0034, 1.0, "slow-node", True),
        (1.0034, None, "slow-node", True),
        (1.0, 0.0, "memory-errors", True),
        (1.0, 0.0, "gpu-fault", True),
        (1.0, 0.0, "coolant-flow", True),
        (1.0, 0.0, "hang", True),
    ],
)
def test_an_alert_is_sent_from_its_worth_on(
    incident: Make, slowdown: float, usd_per_hour: float | None, mechanism: str, is_sent: bool
) -> None:
    cost = incident().cost
    assert cost is not None
    price = msgspec.structs.replace(cost, usd_per_hour=usd_per_hour)
    one = incident(slowdown=slowdown, cost=price, mechanism=mechanism)
    assert WORTH.holds(one) is is_sent
    assert WORTH.holds(msgspec.structs.replace(one, cost=None))  # it may be expensive
    assert AlertWorth(usd_per_hour_min=0.0).holds(one)


def test_members_without_a_gpu_are_worth_an_alert_by_their_slowness_alone(incident: Make) -> None:
    cost = incident().cost
    assert cost is not None
    free = msgspec.structs.replace(cost, usd=None, usd_per_hour=None, assumed=False, on_cpu=True)
    assert not WORTH.holds(incident(slowdown=1.0034, cost=free, mechanism="slow-node"))
    assert WORTH.holds(incident(slowdown=1.01, cost=free, mechanism="slow-node"))
    assert AlertWorth(usd_per_hour_min=0.0).holds(incident(slowdown=1.0034, cost=free, mechanism="slow-node"))
    told = alert(incident(cost=free)).annotations
    assert "12.5 CPU member-hours so far" in told["description"]
    assert "No price of these hours is given." in told["description"]
    assert not any("USD" in text or "GPU-hour" in text for text in told.values())


def test_without_a_price_slowness_decides(incident: Make) -> None:
    assert severity(incident(cost=None, slowdown=1.3)) == "critical"
    assert (
        "Money: not known, as nothing says how many GPUs the run has."
        in alert(incident(cost=None)).annotations["description"]
    )
    assert "USD" not in summary(incident(cost=None))


@pytest.mark.parametrize("mechanism", ["gpu-throttle", "node-cooling", "link-errors", "nvlink", "pcie-width"])
def test_what_may_slow_a_run_whose_steps_are_not_seen_is_sent_and_says_so(
    incident: Make, mechanism: str
) -> None:
    unseen = incident(slowdown=1.0, knows_pace=False, cost=None, mechanism=mechanism)
    assert WORTH.holds(unseen)
    assert summary(unseen).startswith("pretrain is perhaps slower (no steps show its pace): ")
    described = alert(unseen).annotations["description"]
    assert "Runtime: pretrain is perhaps slower (no steps show its pace)." in described
    assert "Money: not known, as no steps show whether the run is slower." in described


def test_the_rules_go_from_grave_to_light() -> None:
    assert [rule.severity for rule in SEVERITIES] == ["critical", "warning"]
    assert SEVERITIES[0].slowdown_min > SEVERITIES[1].slowdown_min
    assert SEVERITIES[0].usd_per_hour_min > SEVERITIES[1].usd_per_hour_min


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (share(0.33), "33 %"),
        (share(0.0034), "< 1 %"),
        (share(0.9999), "> 99 %"),
        (share(1.0), "100 %"),
        (members(("r/n1", "r/n2")), "2 members, n[1-2]"),
        (members(("node-a",)), "1 member, node-a"),
        (members([f"h{7 * i}" for i in range(99)])[-11:], "47,154,161…"),
        (share(0.0), "0 %"),
        (lasting(0.2), "0 s"),
        (lasting(7_260), "2 h 1 min"),
        (lasting(3_605), "1 h"),
        (lasting(90_000), "1 d 1 h"),
        (moment(1_772_442_000 * 10**9 + 5), "2026-03-02T09:00:00Z"),
        (listed(("a", "b"), 2), "a, b"),
        (listed(("a", "b", "c"), 2), "a, b and 1 more"),
        (listed((), 2), ""),
    ],
)
def test_amounts_are_written_shortly(written: str, expected: str) -> None:
    assert written == expected
