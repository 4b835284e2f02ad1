"""`holdfast control` and `holdfast actions`, as a user calls them."""

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from waiting import WAIT_S, until

from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import diagnosis
from holdfast.record.clock import SystemClock
from holdfast.record.events import (
    BreakerChanged,
    IncidentDiagnosed,
    KnownEvent,
    MemberJoined,
    RunStarted,
    encode,
)
from holdfast.record.leading import FileLead
from holdfast.wording.units import HOUR_NS, MINUTE_NS

Holdfast = Callable[..., Any]


@pytest.fixture
def incident(data: Path) -> Incident:
    """A node of pretrain, which is much slower for it."""
    sample = msgspec.json.decode((data / "incident.json").read_bytes(), type=Incident)
    cause = msgspec.structs.replace(sample.cause, subject="n1", kind="node", mechanism="slow-node")
    now_ns = SystemClock().now_ns()
    return msgspec.structs.replace(
        sample,
        cause=cause,
        verdict="cause",
        path=("n1", "pretrain"),
        confidence=0.95,
        quality=1.0,
        began_ns=now_ns - HOUR_NS,
        noticed_ns=now_ns - HOUR_NS,
        slowdown=1.5,
        cost=None,
    )


@pytest.fixture
def recorded(holdfast: Holdfast, tmp_path: Path, incident: Incident) -> None:
    now_ns = SystemClock().now_ns()
    told: dict[str, Any] = {"occurred_ns": now_ns - HOUR_NS, "run": "pretrain"}
    events: list[KnownEvent] = [
        RunStarted(id="e-1", gpus=512, **told),
        MemberJoined(id="e-2", subject="m1", node="n1", gpus=8, **told),
        IncidentDiagnosed(
            id="e-3",
            occurred_ns=now_ns - MINUTE_NS,
            run="pretrain",
            incident=incident.name,
            state="open",
            diagnosis=diagnosis(incident),
        ),
    ]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    assert holdfast("import", path).code == 0


@pytest.mark.usefixtures("recorded")
def test_without_a_policy_it_says_what_it_would_do(holdfast: Holdfast) -> None:
    (decision,) = holdfast("control", "--once", "--json").json["decisions"]
    assert (decision["action"], decision["target"], decision["mode"]) == ("call-a-person", "n1", "shadow")
    assert {one["action"] for one in decision["alternatives"]} >= {"watch", "drain-now", "call-a-person"}
    assert decision["price"]["gpu_hours"] > 0
    assert "go on at 66.7 %: 4,096 GPU-hours" in decision["reason"]
    (act,) = holdfast("actions", "--json").json
    assert (act["action"], act["mode"], act["stage"]) == ("call-a-person", "shadow", "decided")
    assert holdfast("actions", "n2", "--json").json == []
    assert holdfast("actions", "--done", "--json").json == []
    shown = holdfast("actions", COLUMNS="200").out
    assert "call-a-person" in shown
    assert "shadow" in shown


@pytest.mark.usefixtures("recorded")
def test_with_a_policy_it_acts_and_shadow_keeps_it_from_that(holdfast: Holdfast, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(f'mode = "act"\n[commands]\nperson = "touch {tmp_path}/called-{{node}}"\n')
    done = holdfast("control", "--once", "--shadow", "--policy", policy)
    assert done.out.startswith("n1 (shadow): Call a person. ")
    assert not (tmp_path / "called-n1").exists()
    holdfast("control", "--once", "--policy", policy)
    assert (tmp_path / "called-n1").exists()
    newest, _ = holdfast("actions", "--json").json
    assert (newest["mode"], newest["stage"]) == ("act", "done")


def test_nothing_is_wrong(holdfast: Holdfast) -> None:
    done = holdfast("control", "--once")
    assert (done.code, done.out) == (0, "")
    assert "Control knows of nothing that is wrong" in done.err
    assert "no action" in holdfast("actions").err


def test_actions_that_cannot_be_are_refused(holdfast: Holdfast) -> None:
    refused = holdfast("actions", "--shadow", "--done")
    assert (refused.code, "hint: Give --shadow or --done" in refused.err) == (2, True)
    assert "no action of control about n9" in holdfast("actions", "n9").err


def test_a_second_one_does_not_decide(holdfast: Holdfast, environment: dict[str, str]) -> None:
    holdfast("runs")
    lead = FileLead(Path(environment["HOLDFAST_HOME"]) / "record.sqlite.lead")
    assert lead.is_ours()
    done = holdfast("control", "--once")
    lead.close()
    assert done.code == 1
    assert "Another process leads" in done.err


def test_the_example_policy_can_be_used(holdfast: Holdfast, tmp_path: Path) -> None:
    policy = tmp_path / "control.toml"
    policy.write_text(holdfast("control", "--example-policy").out)
    assert holdfast("control", "--once", "--policy", policy).code == 0
    policy.write_text("[rules.gpu-throtle]\n")
    done = holdfast("control", "--once", "--policy", policy)
    assert done.code == 2
    assert "Did you mean `gpu-throttle`?" in done.err
    assert holdfast("control", "--policy", tmp_path / "none.toml").code == 2


def test_a_person_resets_the_breaker(holdfast: Holdfast, tmp_path: Path) -> None:
    assert "had not tripped" in holdfast("control", "--reset-breaker", "why").err
    path = tmp_path / "trip.jsonl"
    path.write_bytes(encode(BreakerChanged(id="b", occurred_ns=1, tripped=True, reason="5 nodes")))
    assert holdfast("import", path).code == 0
    assert holdfast("control", "--once", "--json").json["breaker_tripped"]
    refused = holdfast("control", "--reset-breaker", " ")
    assert (refused.code, "only with a reason" in refused.err) == (2, True)
    assert holdfast("control", "--once", "--json").json["breaker_tripped"]
    assert "is reset" in holdfast("control", "--reset-breaker", "a bad exporter").err
    assert not holdfast("control", "--once", "--json").json["breaker_tripped"]


@pytest.mark.usefixtures("recorded")
def test_a_standby_goes_on_where_a_killed_leader_stopped(
    holdfast: Holdfast, environment: dict[str, str], tmp_path: Path
) -> None:
    """The person is called once, whoever leads."""
    policy = tmp_path / "policy.toml"
    policy.write_text(f'mode = "act"\n[commands]\nperson = "bash -c \'echo x >> {tmp_path}/calls\'"\n')

    def start(stack: ExitStack, name: str) -> "subprocess.Popen[bytes]":
        output = stack.enter_context((tmp_path / name).open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "control", "--every", "0.2s", "--policy", str(policy)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process

    def said(name: str) -> str:
        return (tmp_path / name).read_text(encoding="utf-8")

    with ExitStack() as stack:
        first = start(stack, "first")
        until(lambda: "Call a person: done." in said("first"), lambda: said("first"))
        second = start(stack, "second")
        until(lambda: "this one waits" in said("second"), lambda: said("second"))
        first.send_signal(signal.SIGKILL)
        until(lambda: "Control goes on." in said("second"), lambda: said("second"))
        until(lambda: "n1: Go on." in said("second"), lambda: said("second"))
        second.send_signal(signal.SIGTERM)
        assert second.wait(WAIT_S) == 0
    assert (tmp_path / "calls").read_text() == "x\n"
    assert [act["stage"] for act in holdfast("actions", "--json").json] == ["done"]
