"""What is shipped for Prometheus and its kin: taken by the real programs, about metrics that exist."""

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.diagnose.runbooks import names
from holdfast.diagnose.watch_metrics import WatchMetrics
from holdfast.run.metrics import RunCollector
from holdfast.run.status import Status
from holdfast.signals.catalogue import CATALOGUE

FOLDER = Path(__file__).parents[2] / "monitoring"
RULES = FOLDER / "holdfast.rules.yml"
METRIC = re.compile(r"\b(?:holdfast|DCGM|node|densewatch|redfish|infiniband|vllm:|dynamo)_?[A-Za-z0-9_:]+")
OF_RULES = {"holdfast_incidents_total", "holdfast_watch_info"}
"""Counters and infos, whose names a registry that has nothing yet does not tell with their endings."""


def said(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


REFUTED = Status(
    run="r",
    started_ns=0,
    generation=1,
    step=1,
    steps_total=2,
    loss=None,
    loss_curve=(),
    rate=1.0,
    members=(),
    nodes=(),
    happened=(),
    outcome=None,
    refuted=(1, 1),
)


def dashboard() -> Any:
    return json.loads((FOLDER / "holdfast-dashboard.json").read_text(encoding="utf-8"))


def panels() -> list[Any]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    found += [note["expr"] for note in dashboard()["annotations"]["list"]]
    return [query.replace("$run", "pretrain") for query in found]


def rules() -> list[Any]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def exported() -> set[str]:
    """Every metric that Holdfast reads, or that a watch or a run exports."""
    families = [*WatchMetrics().registry.collect(), *RunCollector(lambda: REFUTED).collect()]
    own = {sample.name for family in families for sample in family.samples}
    own |= {family.name + ending for family in families for ending in ("", "_total", "_bucket")}
    return own | set(CATALOGUE) | OF_RULES


def test_the_rules_are_sound(promtool: str) -> None:
    assert "SUCCESS" in said(promtool, "check", "rules", RULES)


def test_the_rules_fire_when_they_should_and_only_then(promtool: str) -> None:
    assert "SUCCESS" in said(promtool, "test", "rules", FOLDER / "holdfast.rules.test.yml")


def test_every_rule_is_tested() -> None:
    tests = yaml.safe_load((FOLDER / "holdfast.rules.test.yml").read_text(encoding="utf-8"))["tests"]
    fired = {
        expected["alertname"]
        for test in tests
        for expected in test["alert_rule_test"]
        if expected["exp_alerts"]
    }
    assert {rule["alert"] for rule in rules()} == fired


def test_every_rule_has_an_owner_and_a_severity() -> None:
    for rule in rules():
        if rule["alert"] != "HoldfastIncidentOpen":  # whose come from the incident
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert rule["labels"]["owner"]
        assert rule["labels"].get("mechanism", "unknown") in names()


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in rules()), *queries()])
def test_only_metrics_that_exist_are_asked_for(expression: str) -> None:
    assert {*METRIC.findall(expression)} <= exported()


def test_alertmanager_takes_its_settings(alertmanager: object) -> None:
    assert "SUCCESS" in said("amtool", "check-config", FOLDER / "alertmanager.yml")


@pytest.mark.parametrize(
    ("owner", "seam", "told"),
    [
        ("facilities", "facilities-ml", {"training", "facilities"}),
        ("network", "gpu-fabric-pool", {"training", "network"}),
        ("platform", "gpu-fabric-pool", {"training", "hardware"}),
        ("serving", "gpu-fabric-pool", {"training", "serving"}),
        ("storage", "runtime-schedule-finance", {"finance", "storage"}),
        ("scheduling", "runtime-schedule-finance", {"finance", "scheduling"}),
        ("training", "runtime-schedule-finance", {"finance", "training"}),
        ("training", "none", {"training"}),
        ("a-team-of-its-own", "facilities-ml", {"training"}),
    ],
)
def test_who_can_mend_it_is_told(alertmanager: object, owner: str, seam: str, told: set[str]) -> None:
    labels = [f"owner={owner}", f"seam={seam}", "severity=warning", "alertname=HoldfastIncident"]
    settings = f"--config.file={FOLDER / 'alertmanager.yml'}"
    assert {*said("amtool", "config", "routes", "test", settings, *labels).strip().split(",")} == told


def test_prometheus_takes_every_query_of_the_dashboard(prometheus: str) -> None:
    for query in queries():
        url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert answer.status == 200
        except urllib.error.HTTPError as error:
            pytest.fail(f"{query}\n{error.read().decode()}")


def test_the_dashboard_has_the_form_that_grafana_imports() -> None:
    page = dashboard()
    assert page["schemaVersion"] >= 36
    assert (page["uid"], page["title"]) == ("holdfast", "Holdfast")
    assert {variable["name"] for variable in page["templating"]["list"]} == {"datasource", "run"}
    ids = [panel["id"] for panel in page["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["type"] in ("stat", "table", "timeseries")
        assert panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        references = [target["refId"] for target in panel["targets"]]
        assert references == sorted(set(references))


def test_no_two_panels_of_the_dashboard_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
