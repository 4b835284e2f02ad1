"""Runbooks: one a mechanism and seam, all of one form, filled in for any incident, with sound commands."""

import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from holdfast.cli import HOLDFAST
from holdfast.diagnose import mechanisms
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.runbooks import SEAMS, UNKNOWN, facts, names, runbook, seam_runbook

pytestmark = pytest.mark.slow

Make = Callable[..., Incident]

MECHANISMS = [mechanism.name for mechanism in mechanisms.MECHANISMS] + [UNKNOWN]
HEADINGS = [
    "What it is",
    "How it looks from training",
    "Who owns it, and who else must know",
    "Checks, in order",
    "Decide: wait or act",
    "Act",
    "Over when",
    "Write down",
]
SEAM_HEADINGS = [
    "Who calls whom",
    "What each side can rule out within five minutes",
    "What not to do",
    "Afterwards",
]
SUBJECTS = {
    "loop": "cdu-0000",
    "gpu": "n00017.3",
    "port": "n00017/mlx5_3",
    "node": "n00017",
    "mount": "fs-0000",
    "run": "pretrain",
    "other": "garbage-collector",
}
NOW_NS = 1_772_445_000 * 10**9
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> Iterator[str]:
    return (found[3] for found in BLOCK.finditer(text) if found[2] == language)


@pytest.fixture(scope="session")
def rendered(incident: Make) -> dict[str, str]:
    """Every runbook, for the incident of the tests."""
    texts = {name: runbook(incident(mechanism=name), now_ns=NOW_NS).text for name in MECHANISMS}
    for seam in SEAMS:
        told = seam_runbook(incident(seam=seam), now_ns=NOW_NS)
        assert told is not None
        texts[seam] = told.text
    return texts


def test_the_gpu_is_an_option_of_its_own_in_every_command(incident: Make) -> None:
    """A template that puts nothing or ` -i 3` behind a command must keep the space."""
    found = 0
    for name in MECHANISMS:
        text = runbook(incident(mechanism=name, subject="n00017.3", kind="gpu"), now_ns=NOW_NS).text
        for command in blocks(text, "bash"):
            assert not re.search(r"[^\s]-i 3", command), (name, command)
            found += command.count(" -i 3")
    assert found > 10


def test_every_mechanism_and_seam_has_its_runbook_and_no_other_is_there() -> None:
    assert {*names()} == {*MECHANISMS, *SEAMS}


def test_all_have_the_same_form(rendered: dict[str, str]) -> None:
    for name, text in rendered.items():
        assert text.startswith("# ")
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings == (SEAM_HEADINGS if name in SEAMS else HEADINGS), name


@pytest.mark.parametrize("kind", SUBJECTS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_runbook_is_filled_in_for_an_incident_of_any_kind(incident: Make, name: str, kind: str) -> None:
    bare = {"affected": (), "evidence": (), "alternatives": (), "flaws": (), "cost": None, "path": ()}
    for fields in ({}, bare, {"verdict": "unknown", "ended_ns": NOW_NS, "decides": ""}):
        one = incident(mechanism=name, kind=kind, subject=SUBJECTS[kind], **fields)
        told = runbook(one, now_ns=NOW_NS)
        assert told.name == name
        assert f"| `{one.name}`, critical, {'over since' if one.ended_ns else 'open'}" in told.text
        assert SUBJECTS[kind] in told.text
        assert one.action in told.text
        assert not re.search(r"\{\{|\}\}|\{%|None|\bnan\b", told.text)
        for seam in SEAMS:
            across = seam_runbook(incident(seam=seam, **fields), now_ns=NOW_NS)
            assert across is not None
            assert across.text.startswith("# Across the seam")


def test_the_incident_is_in_it(rendered: dict[str, str]) -> None:
    text = rendered["coolant-flow"]
    assert "- for, 1.8: flow is 88 L/min, rated 210 (since 2026-03-02T09:00:00Z)" in text
    assert "- against, 0.3: n00031 on the same loop is not late" in text
    assert (
        "- `water-0`: coolant flow is lost, and its GPUs throttle (4 %); supply temperature has not" in text
    )
    assert "12.5 GPU-hours (49.90 USD) so far" in text
    assert "an hour of it costs 518.70 USD" in text
    assert 'densewatch_cdu_coolant_flow_lpm{cdu="cdu-0000"}[60m]' in text


def test_an_unknown_mechanism_is_treated_as_unknown(incident: Make) -> None:
    assert runbook(incident(mechanism="gremlins"), now_ns=NOW_NS).name == UNKNOWN
    assert runbook(incident(mechanism="../../../etc/passwd"), now_ns=NOW_NS).name == UNKNOWN
    assert seam_runbook(incident(seam="none"), now_ns=NOW_NS) is None


def test_parts_of_a_cause_are_read_from_its_name(incident: Make) -> None:
    gpu = facts(incident(kind="gpu", subject="n00017.3"), NOW_NS)
    port = facts(incident(kind="port", subject="n00017/mlx5_3/2"), NOW_NS)
    loop = facts(incident(affected=("live/node-a", "live/node-b")), NOW_NS)
    assert (gpu.host, gpu.gpu) == ("n00017", "3")
    assert (port.host, port.device, port.port) == ("n00017", "mlx5_3", "2")
    assert (loop.host, loop.gpu, loop.hosts) == ("node-a", "", ("node-a", "node-b"))


def test_a_name_cannot_pass_for_a_line_or_a_command_of_ours(incident: Make) -> None:
    evil = incident(
        run="a; rm -rf /",
        kind="node",
        subject="n1'; reboot",
        mechanism="unknown",
        affected=("$(reboot)",),
        action="Look.\n## Act\nrm -rf /",
    )
    text = runbook(evil, now_ns=NOW_NS).text
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    words = [line for block in blocks(text, "bash") for line in block.splitlines() if "rm -rf" in line]
    assert words
    assert all("'a; rm -rf /'" in line for line in words)


def test_commands_are_sound_shell_and_verbs_exist(rendered: dict[str, str]) -> None:
    verbs = set(HOLDFAST.list_commands(None))  # type: ignore[arg-type]
    for name, text in rendered.items():
        script = "\n".join(blocks(text, "bash"))
        checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, f"{name}: {checked.stderr}"
        assert {*re.findall(r"^ *holdfast (\w+)", script, re.MULTILINE)} <= verbs


def test_every_query_is_one_that_prometheus_takes(rendered: dict[str, str], prometheus: str) -> None:
    queries = {query.strip() for text in rendered.values() for query in blocks(text, "promql")}
    assert len(queries) > 40
    for query in queries:
        url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert answer.status == 200
        except urllib.error.HTTPError as error:
            pytest.fail(f"{query}\n{error.read().decode()}")
