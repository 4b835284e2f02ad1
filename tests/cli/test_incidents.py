"""`holdfast incidents` and `holdfast runbook`: what was diagnosed, read back from the record."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import diagnosis
from holdfast.record.events import IncidentDiagnosed, IncidentState, encode

Holdfast = Callable[..., Any]
Told = tuple[IncidentState, Incident]


@pytest.fixture
def incident(data: Path) -> Incident:
    return msgspec.json.decode((data / "incident.json").read_bytes(), type=Incident)


@pytest.fixture
def recorded(holdfast: Holdfast, tmp_path: Path, incident: Incident) -> None:
    """Two incidents of one run, of which the first is over, and one of another."""
    second = msgspec.structs.replace(incident, name="pretrain/s2", began_ns=incident.began_ns + 10**12)
    other = msgspec.structs.replace(incident, name="tune/a/s1", run="tune/a", seam="none", cost=None)
    over = msgspec.structs.replace(incident, ended_ns=incident.began_ns + 10**11)
    told: list[Told] = [("open", incident), ("resolved", over), ("open", second), ("changed", second)]
    events = [
        IncidentDiagnosed(
            id=f"e-{number}",
            occurred_ns=one.noticed_ns + number,
            run=one.run,
            incident=one.name,
            state=state,
            diagnosis=diagnosis(one),
        )
        for number, (state, one) in enumerate([*told, ("open", other)])
    ]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    assert holdfast("import", path).code == 0


def names(outcome: Any) -> list[tuple[str, str]]:
    return [(one["name"], one["state"]) for one in outcome.json]


@pytest.mark.usefixtures("recorded")
def test_incidents_are_listed_by_run_and_by_whether_they_are_open(holdfast: Holdfast) -> None:
    everything = [("pretrain/s2", "changed"), ("pretrain/s1", "resolved"), ("tune/a/s1", "open")]
    assert names(holdfast("incidents", "--json")) == everything
    assert names(holdfast("incidents", "pretrain", "--json")) == everything[:2]
    assert names(holdfast("incidents", "--open", "--json")) == [everything[0], everything[2]]


@pytest.mark.usefixtures("recorded")
def test_the_list_fits_a_narrow_terminal(holdfast: Holdfast) -> None:
    done = holdfast("incidents", COLUMNS="80")
    assert done.code == 0
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[:2] for line in lines if line.startswith(("pretrain", "tune"))] == [
        ["pretrain/s2", "open"],
        ["pretrain/s1", "over"],
        ["tune/a/s1", "open"],
    ]
    assert "facilities" in lines[1]


@pytest.mark.usefixtures("recorded")
def test_what_does_not_fit_goes_on_below_and_is_never_cut(holdfast: Holdfast) -> None:
    done = holdfast("incidents", COLUMNS="60")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].split() == ["incident", "state", "(UTC)", "slower", "GPU-h", "owner", "cause"]
    assert [word for word in done.out.split() if word in ("open", "over")] == ["open", "over", "open"]


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("columns", ["30", "60", "80"])
def test_a_name_is_never_folded_for_it_is_copied(holdfast: Holdfast, columns: str) -> None:
    lines = holdfast("incidents", COLUMNS=columns).out.splitlines()
    first = [line.split()[0] for line in lines if line.startswith(("pretrain", "tune"))]
    assert first == ["pretrain/s2", "pretrain/s1", "tune/a/s1"]


@pytest.mark.usefixtures("recorded")
def test_an_event_tells_what_was_found_and_not_all_of_the_diagnosis(holdfast: Holdfast) -> None:
    first = holdfast("events", "pretrain").out.splitlines()[0]
    assert first.endswith("incident=pretrain/s1 state=open mechanism=coolant-flow about=cdu-0000")
    assert '\\"cause\\"' in holdfast("events", "pretrain", "--json").out


def test_no_incident_is_said_so(holdfast: Holdfast) -> None:
    done = holdfast("incidents")
    assert (done.code, done.out, done.err) == (0, "", "The record has no incident.\n")
    assert holdfast("incidents", "--json").json == []
    assert holdfast("incidents", "nowhere").code == 2
