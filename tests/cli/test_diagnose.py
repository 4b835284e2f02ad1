"""`holdfast diagnose`, from a drill of the twin in a real Prometheus to the answer on the terminal."""

import shlex
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from servers import daemon
from waiting import answers, free_port, until

from holdfast.cli.incident_text import show
from holdfast.diagnose.answering import DiagnoseAnswer
from holdfast.diagnose.weighing import TOLD_BY, not_measured
from holdfast.drills import openmetrics
from holdfast.drills.scenarios import play
from holdfast.drills.scenarios.truth import Truth
from holdfast.record.events import RunEnded, encode
from holdfast.signals.frame import Frame

Holdfast = Callable[..., Any]
METRICS = (
    "holdfast_run_step_seconds",
    "holdfast_run_steps_total",
    "holdfast_member_compute_seconds",
    "holdfast_member_exchange_seconds",
    "holdfast_member_data_seconds",
    "holdfast_member_wait_seconds",
    "densewatch_cdu_coolant_flow_lpm",
    "densewatch_cdu_coolant_supply_temp_celsius",
    "densewatch_cdu_pump_speed_percent",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_THERMAL_VIOLATION",
    "node_infiniband_port_transmit_wait_total",
)
"""Enough to find the cause and to be wrong about it."""
TOPOLOGY = """\
nodes:
  n[00000-00063]: {{gpus: 8, ports: "mlx5_[0-7]"}}
racks: {{"rack-[0000-0015]": 4 each}}
shelves: {{"shelf-[0000-0015]": 1 each}}
loops: {{"cdu-[0000-0001]": 8 each}}
circuits: {{water-0: "cdu-0000", water-1: "cdu-0001"}}
leaves: {{"leaf-[0000-0003]": 16 each}}
spines: {{"spine-[0000-0003]": all}}
mounts: {{fs-0000: all}}
runs: {{{run}: {{nodes: "n[00000-00063]"}}}}
"""


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """A drill whose signals are in a Prometheus."""

    run: str
    events: Path
    topology: Path
    prometheus: str
    truth: Truth


@pytest.fixture(scope="module")
def drill(need: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    need("prometheus")
    home = tmp_path_factory.mktemp("drill")
    played = play("cooling-pump", 3)
    om = home / "signals.om"
    with om.open("wb") as file:
        file.writelines(openmetrics.write(map(_thinned, map(played.telemetry.sample, METRICS))))
    blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(om)]
    subprocess.run([*blocks, str(home / "data")], check=True, capture_output=True)
    settings, port = home / "prometheus.yml", free_port()
    settings.write_text("global: {}\n", encoding="utf-8")
    command = [
        "prometheus",
        f"--config.file={settings}",
        f"--storage.tsdb.path={home / 'data'}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    events, topology = home / "events.jsonl", home / "topology.yaml"
    events.write_bytes(b"".join(encode(event) + b"\n" for event in played.events))
    topology.write_text(TOPOLOGY.format(run=played.run), encoding="utf-8")
    with daemon(command, home):
        until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"))
        yield Drill(
            run=played.run,
            events=events,
            topology=topology,
            prometheus=f"http://127.0.0.1:{port}",
            truth=played.truth,
        )


def _thinned(frame: Frame) -> Frame:
    """Every third scrape: a scrape of 30 s, and a third of the time to load."""
    return msgspec.structs.replace(frame, times_ns=frame.times_ns[::3], values=frame.values[::3], words=())


@pytest.fixture
def diagnose(holdfast: Holdfast, drill: Drill) -> Holdfast:
    """The verb with the drill in its record, its signals and its topology."""
    assert holdfast("import", drill.events).code == 0

    def run(*arguments: str, **variables: str) -> Any:
        options = ("--prometheus", drill.prometheus, "--topology", str(drill.topology))
        return holdfast("diagnose", *arguments, *options, **variables)

    return run


def test_the_cause_its_owner_and_its_price_are_found(diagnose: Holdfast, drill: Drill) -> None:
    told = diagnose(drill.run, "--json").json
    (incident,) = told["incidents"]
    truth = drill.truth
    assert incident["cause"]["subject"] == truth.cause.subject
    assert incident["cause"]["mechanism"] == "coolant-flow"
    assert (incident["domain"], incident["owner"]) == (truth.cause.domain, truth.cause.owner)
    assert incident["seam"] == truth.seam
    assert abs(incident["began_ns"] - truth.began_ns) < 90 * 10**9
    assert incident["confidence"] > 0.8
    assert incident["cost"]["lost_gpu_hours"] > 0
    assert incident["evidence"]
    assert {"alternatives", "decides", "action", "runbook", "flaws"} <= set(incident)
    assert (told["run"], told["quality"]["sees_run"]) == (drill.run, True)
    assert {"kind", "subject", "metric", "text"} <= set(told["quality"]["flaws"][0])


@pytest.mark.parametrize(
    ("nodes", "is_matched"), [("n[00000-00063].east.example", True), ("host-[00000-00063]", False)]
)
def test_names_match_by_the_rule_or_are_told(
    holdfast: Holdfast, drill: Drill, tmp_path: Path, nodes: str, is_matched: bool
) -> None:
    renamed = tmp_path / "renamed.yaml"
    text = drill.topology.read_text(encoding="utf-8").replace("n[00000-00063]", nodes)
    renamed.write_text(text, encoding="utf-8")
    at = datetime.fromtimestamp(drill.truth.began_ns / 1e9 + 600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    asked = ("diagnose", drill.run, "--prometheus", drill.prometheus, "--topology", str(renamed), "--at", at)
    told = holdfast(*asked, "--json").json
    incident = told["incidents"][0]
    misnamed = [flaw["text"] for flaw in told["quality"]["flaws"] if flaw["kind"] == "names"]
    assert bool(misnamed) != is_matched
    assert (incident["quality"] > 0.9) == is_matched
    assert ("east.example" in str(incident["path"])) == is_matched
    out = " ".join(holdfast(*asked).out.split())
    assert ("Exporters show n[00000-00063], which no run uses." in out) != is_matched
    assert out.count("No exporter shows any of the 64 nodes") == int(not is_matched)


def test_the_answer_is_in_the_order_of_the_question_and_fits_80_columns(
    diagnose: Holdfast, drill: Drill
) -> None:
    done = diagnose(drill.run, COLUMNS="80")
    assert done.code == 0
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    wanted = ["Why", "Whose", "Cost", "Do", "Evidence", "Settled", "Telemetry"]
    assert [head for head in heads if head in wanted][: len(wanted)] == wanted
    assert "cdu-0000" in done.out
    assert "facilities" in done.out
    assert f"holdfast runbook {drill.run}/s1" in done.out


def test_what_was_found_is_recorded_if_asked_for_and_found_again(
    diagnose: Holdfast, holdfast: Holdfast, drill: Drill
) -> None:
    assert holdfast("incidents", "--json").json == []
    assert diagnose(drill.run, "--record", "--check").code == 1
    assert [one["name"] for one in holdfast("incidents", "--open", "--json").json] == [f"{drill.run}/s1"]
    assert holdfast("runbook", drill.run).out.startswith("# Coolant flow has fallen at cdu-0000")
    assert diagnose(drill.run, "--record").code == 0
    assert len(holdfast("events", drill.run, "--kind", "incident.diagnosed").out.splitlines()) == 1


def test_where_nothing_is_seen_nothing_is_said_to_be_well(diagnose: Holdfast, drill: Drill) -> None:
    sentence = (
        f"Nothing can be said of {drill.run}: the record has no step of it in the window; its last step"
    )
    done = diagnose(drill.run, "--at", "2026-03-05")
    assert (done.code, done.err) == (0, "")
    assert sentence in " ".join(done.out.split())
    checked = diagnose(drill.run, "--at", "2026-03-05", "--check")
    assert (checked.code, checked.out) == (2, "")
    assert sentence in checked.err
    assert diagnose(drill.run, "--at", "2026-03-05", "--json").json["quality"]["sees_run"] is False


def test_a_run_that_nobody_knows_is_a_mistake(diagnose: Holdfast, drill: Drill) -> None:
    done = diagnose(drill.run[:-1], "--at", "2026-03-02T09:30:00Z")
    assert done.code == 2
    assert f"Did you mean {drill.run!r}?" in done.err
    done = diagnose("zzz", "--at", "2026-03-02T09:30:00Z")
    assert done.code == 2
    assert f"The signals know {drill.run}." in done.err


def test_of_a_run_without_signals_it_is_said_who_has_some(
    diagnose: Holdfast, holdfast: Holdfast, tmp_path: Path
) -> None:
    path = tmp_path / "other.jsonl"
    at_ns = 1_772_443_800 * 10**9
    path.write_bytes(encode(RunEnded(id="end", occurred_ns=at_ns, run="other", outcome="completed")))
    assert holdfast("import", path).code == 0
    assert "in the window. The signals know drill-" in " ".join(diagnose("other").out.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--window", "30d"], "A window of 30d is too long: 6h is the most."),
        (["--at", "2100-01-01"], "--at: 2100-01-01 is in the future."),
    ],
)
@pytest.mark.parametrize("verb", [["diagnose"], ["watch", "--once"]], ids=" ".join)
def test_a_time_that_cannot_be_looked_at_is_refused(
    holdfast: Holdfast, verb: list[str], words: list[str], sentence: str
) -> None:
    done = holdfast(*verb, *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"holdfast: {sentence}\n  hint: ")


def test_what_has_to_be_run_before_the_runbook_can_be_run_as_it_is_printed(
    diagnose: Holdfast, holdfast: Holdfast, drill: Drill
) -> None:
    lines = diagnose(drill.run, "--window", "20m", COLUMNS="80").out.splitlines()
    first = next(number for number, line in enumerate(lines) if "holdfast diagnose" in line)
    last = next(number for number, line in enumerate(lines) if "holdfast runbook" in line)
    printed = "\n".join(lines[first:last])
    shell = ["sh", "-c", f"set -- {printed}\nprintf '%s\\n' \"$@\""]
    command = subprocess.run(shell, capture_output=True, text=True, check=True).stdout.splitlines()
    assert command[:4] == ["holdfast", "diagnose", drill.run, "--record"]
    assert command[4:6] == ["--window", "1200s"]
    assert holdfast(*command[1:]).code == 0
    assert holdfast(*shlex.split(lines[last])[1:]).code == 0


def test_that_there_is_no_topology_is_said_last_and_with_the_path_that_is_read(
    holdfast: Holdfast, drill: Drill, tmp_path: Path
) -> None:
    assert holdfast("import", drill.events).code == 0
    dead = holdfast("diagnose", "--prometheus", "http://127.0.0.1:9")
    assert "no topology file" not in dead.err
    done = holdfast("diagnose", "--prometheus", drill.prometheus)
    assert done.code == 0
    assert f"`holdfast topology show --example > {tmp_path / 'home' / 'topology.yaml'}`" in done.err


def test_without_signals_it_says_where_they_could_come_from(holdfast: Holdfast, drill: Drill) -> None:
    assert holdfast("import", drill.events).code == 0
    done = holdfast("diagnose")
    assert done.code == 0
    assert "There are no signals" in done.out
    assert "--prometheus URL" in done.out
    assert "topology" not in done.err
    dead = holdfast("diagnose", "--prometheus", "http://127.0.0.1:9", "--topology", drill.topology)
    assert dead.code == 2
    assert "Traceback" not in dead.err


def test_without_signals_an_unknown_run_is_the_mistake(holdfast: Holdfast, drill: Drill) -> None:
    done = holdfast("diagnose", "nobody")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("holdfast: The store holds no runs yet.\n  hint: ")
    assert holdfast("import", drill.events).code == 0
    unknown = f"{drill.run}x"
    done = holdfast("diagnose", unknown)
    assert done.code == 2
    assert done.err.startswith(f"holdfast: There is no run {unknown!r} in the store.\n  hint: ")
    assert done.err == holdfast("report", unknown).err
    unnamed = holdfast("diagnose", unknown, "--signals", "nowhere")  # which might have the run
    assert "There are no signals in nowhere." in unnamed.err


def test_a_bad_url_is_quoted(holdfast: Holdfast) -> None:
    done = holdfast("diagnose", "nobody", "--prometheus", "prometheus:9090")
    assert done.code == 2
    assert done.err.startswith("holdfast: Invalid Prometheus URL: 'prometheus:9090'.\n  hint: Write http://")


def test_what_is_not_measured_is_named_where_nothing_wrong_is_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = DiagnoseAnswer(
        run="r",
        at_ns=1_760_000_000 * 10**9,
        window_s=1_800.0,
        sees_run=True,
        incidents=(),
        unshown=(),
        recorded=frozenset(),
        others=(),
        again=(),
        flaws=(),
    )
    show(answer)
    assert "Nothing is wrong: the run and all beneath it are as they should be." in capsys.readouterr().out
    everything = frozenset(TOLD_BY)
    assert not_measured(everything) == []
    missing = tuple(not_measured(everything - {"slow-reads"}))
    show(msgspec.structs.replace(answer, unmeasured=missing))
    told = " ".join(capsys.readouterr().out.split())
    assert "Nothing is wrong" not in told
    assert "Nothing wrong is seen in what is measured." in told
    assert "Not measured here: node_exporter's mountstats (storage)." in told
