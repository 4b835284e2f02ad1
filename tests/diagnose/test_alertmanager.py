"""Alerts in a real Alertmanager: posted once an incident, grouped by it, changed, resolved, and not lost."""

import json
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.diagnose.alertmanager import Alertmanager
from holdfast.diagnose.alerts import alert
from holdfast.diagnose.incident import Incident
from holdfast.record.errors import InputError

Serve = Callable[[Path, str, int], AbstractContextManager[str]]
Make = Callable[..., Incident]


def alerts_of(bodies: list[Any]) -> list[tuple[str, str, str]]:
    """All that a receiver was told: the incident, its cause, and whether it goes on."""
    return [
        (one["labels"]["incident"], one["labels"]["cause"], one["status"])
        for body in bodies
        for one in body["alerts"]
    ]


def known(url: str) -> list[Any]:
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=60) as answer:
        found: list[Any] = json.load(answer)
    return found


def test_an_incident_is_one_alert_with_all_three_sides(
    tmp_path: Path, alertmanager: Serve, receiver: Any, free_port: int, incident: Make
) -> None:
    one, other = incident(), incident(name="pretrain/s2", subject="fs-0000", mechanism="storage-slow")
    with alertmanager(tmp_path, receiver.url, free_port) as url:
        with Alertmanager(url, generator="http://prometheus.example:9090") as channel:
            channel.hold([alert(one), alert(other)])
            channel.hold([alert(one), alert(other)])  # the next evaluation, with nothing new
            bodies = receiver.wait(lambda bodies: len(bodies) >= 2)
        (posted, _) = sorted(known(url), key=lambda found: str(found["labels"]["incident"]))
    # Grouped by incident: two messages, one alert each.
    assert sorted(alerts_of(bodies)) == [
        ("pretrain/s1", "cdu-0000", "firing"),
        ("pretrain/s2", "fs-0000", "firing"),
    ]
    assert all(len(body["alerts"]) == 1 for body in bodies)
    assert posted["labels"] == alert(one).labels
    assert posted["annotations"] == alert(one).annotations
    assert posted["generatorURL"].startswith("http://prometheus.example:9090/graph?g0.expr=holdfast_run_step")
    starts, ends = (datetime.fromisoformat(posted[key]) for key in ("startsAt", "updatedAt"))
    assert starts.timestamp() * 1e9 == one.began_ns
    assert ends > starts


def test_another_cause_replaces_the_alert_and_the_end_resolves_it(
    tmp_path: Path, alertmanager: Serve, receiver: Any, free_port: int, incident: Make
) -> None:
    first, revised = incident(mechanism="slow-node", subject="n00003"), incident()
    with (
        alertmanager(tmp_path, receiver.url, free_port) as url,
        Alertmanager(url) as channel,
    ):
        channel.hold([alert(first)])
        receiver.wait(lambda bodies: ("pretrain/s1", "n00003", "firing") in alerts_of(bodies))
        channel.hold([alert(revised)])
        receiver.wait(
            lambda bodies: (
                {
                    ("pretrain/s1", "n00003", "resolved"),
                    ("pretrain/s1", "cdu-0000", "firing"),
                }
                <= {*alerts_of(bodies)}
            )
        )
        channel.hold([])
        receiver.wait(lambda bodies: ("pretrain/s1", "cdu-0000", "resolved") in alerts_of(bodies))


def test_an_alertmanager_that_is_down_gets_the_alert_when_it_is_up(
    tmp_path: Path, alertmanager: Serve, receiver: Any, free_port: int, incident: Make
) -> None:
    told: list[str] = []
    url = f"http://127.0.0.1:{free_port}"
    with Alertmanager(url, tell=told.append) as channel:
        channel.hold([alert(incident())])
        over = incident(name="pretrain/s2", subject="fs-0000")
        channel.hold([alert(incident()), alert(over)])
        channel.hold([alert(incident())])  # over before anybody heard of it
        with alertmanager(tmp_path, receiver.url, free_port):
            bodies = receiver.wait(lambda bodies: bool(bodies))
            channel.close()
    assert alerts_of(bodies) == [("pretrain/s1", "cdu-0000", "firing")]
    assert len(told) == 2
    assert f"{url} did not accept the alerts" in told[0]
    assert told[1] == f"Alertmanager at {url} accepts alerts again."


def test_an_open_alert_is_good_for_several_sendings_and_no_longer(receiver: Any, incident: Make) -> None:
    # A stand-in that shows what is posted: a real one does not give `endsAt` back as it came.
    with Alertmanager(receiver.url, every_s=90) as channel:
        channel.hold([alert(incident())])
        (body,) = receiver.wait(lambda bodies: bool(bodies))
        channel.hold([alert(msgspec.structs.replace(incident(), confidence=0.5))])
    (posted,) = body
    ends_s = datetime.fromisoformat(posted["endsAt"]).timestamp() - datetime.now().timestamp()
    assert 340 < ends_s <= 360
    assert "generatorURL" in posted
    assert len(receiver.bodies) <= 2  # only closing sent it again


def test_a_severity_that_wavers_is_one_alert(receiver: Any, incident: Make) -> None:
    with Alertmanager(receiver.url) as channel:
        for slowdown in (1.2, 1.3, 1.2, 1.3, 1.2):
            channel.hold([alert(incident(slowdown=slowdown))])
        bodies = receiver.wait(lambda bodies: any(len(body) == 2 for body in bodies))
    # The milder one is over, and the graver one stays.
    ends_s = {one["labels"]["severity"]: datetime.fromisoformat(one["endsAt"]) for one in bodies[-1]}
    assert ends_s["warning"] < ends_s["critical"]
    assert [one["labels"]["severity"] for one in receiver.bodies[-1]] == ["critical"]


def test_who_may_ask_prometheus_is_not_told_to_whom_the_alert_goes(receiver: Any, incident: Make) -> None:
    with Alertmanager(receiver.url, generator="http://ops:secret@prometheus.example:9090/") as channel:
        channel.hold([alert(incident())])
        (body,) = receiver.wait(lambda bodies: bool(bodies))
    assert body[0]["generatorURL"].startswith("http://prometheus.example:9090/graph?")


@pytest.mark.parametrize("url", ["", "alertmanager:9093", "ftp://host", "http://", "http://host:port"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="Invalid Alertmanager URL"):
        Alertmanager(url)
