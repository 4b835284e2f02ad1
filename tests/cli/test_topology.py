"""`holdfast topology` as a user runs it: files, a real Slurm, answers of Prometheus and Redfish."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from waiting import until

Holdfast = Callable[..., Any]

LAB = """
nodes:
  n[1-4]: {gpus: 2, ports: 'mlx5_[0-1]'}
racks:
  rack-[1-2]: 2 each
loops:
  cdu-1: all
leaves:
  leaf-1: all
mounts:
  fs-1: all
runs:
  job: {nodes: 'n[1-4]'}
milestones:
  release: job
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    path = tmp_path / "lab.yaml"
    path.write_text(LAB, encoding="utf-8")
    return path


@contextmanager
def serving(answers: Mapping[str, object]) -> Iterator[str]:
    """A server on loopback that has these resources; what it was asked is in `asked`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            known = path in answers
            self.send_response(200 if known else 404)
            self.end_headers()
            asked = parse_qs(urlsplit(self.path).query)
            answer = answers.get(path)
            self.wfile.write(msgspec.json.encode(answer(asked) if callable(answer) else answer))

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self.path += f"?{form}"
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_show_tells_what_there_is_and_whose(holdfast: Holdfast, lab: Path) -> None:
    done = holdfast("topology", "show", "--topology", lab)
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert ["gpu", "8", "hardware", "n[1-4].[0-1]"] in lines
    assert ["rack", "→", "node", "facilities", "hardware", "4"] in lines
    shown = holdfast("topology", "show", "--topology", lab, "--json").json
    assert shown["kinds"]["port"] == {"count": 8, "owners": {"network": 8}}
    assert shown["subjects"] == sum(kind["count"] for kind in shown["kinds"].values())
    assert [seam["cause_owner"] for seam in shown["seams"] if seam["cause_kind"] == "mount"] == ["storage"]


def test_show_a_subject_tells_its_needs_and_its_blast_radius(holdfast: Holdfast, lab: Path) -> None:
    done = holdfast("topology", "show", "n3", "--topology", lab)
    assert "└── rack rack-2  facilities" in done.out
    assert ["member", "1", "training", "job/n3"] in [line.split() for line in done.out.splitlines()]
    shown = holdfast("topology", "show", "rack-1", "--topology", lab, "--json").json
    assert (shown["kind"], shown["owner"]) == ("rack", "facilities")
    assert shown["depends_on"] == {"loop": ["cdu-1"]}
    assert shown["blast_radius"]["node"] == ["n1", "n2"]
    assert "Nothing depends on it." in holdfast("topology", "show", "release", "--topology", lab).out


@pytest.mark.parametrize("words", [["show"], ["show", "job"]])
def test_nothing_is_wider_than_the_terminal(holdfast: Holdfast, lab: Path, words: list[str]) -> None:
    done = holdfast("topology", *words, "--topology", lab, COLUMNS="50")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 50


def test_a_path_marks_the_seams(holdfast: Holdfast, lab: Path) -> None:
    done = holdfast("topology", "path", "cdu-1", "release", "--topology", lab)
    assert done.code == 0
    assert [line.split()[1] for line in done.out.splitlines() if "seam" not in line][1:] == [
        "rack-1",
        "n1",
        "n1.0",
        "job/n1",
        "job",
        "release",
    ]
    assert "── seam: facilities │ hardware ──" in done.out
    shown = holdfast("topology", "path", "leaf-1", "job", "--topology", lab, "--json").json
    assert [step["owner"] for step in shown["path"]] == ["network", "network", "training", "training"]
    assert shown["seams"] == [["n1/mlx5_0", "job/n1"]]


def test_no_path_is_told_and_signalled(holdfast: Holdfast, lab: Path) -> None:
    done = holdfast("topology", "path", "release", "cdu-1", "--topology", lab)
    assert (done.code, done.out) == (1, "release does not reach cdu-1 (the other way round it does).\n")
    assert holdfast("topology", "path", "fs-1", "n1", "--topology", lab, "--json").json["path"] == []


def test_check_signals_doubts(holdfast: Holdfast, lab: Path) -> None:
    done = holdfast("topology", "check", "--topology", lab)
    assert (done.code, done.out) == (0, "")
    assert "0 doubts" in done.err
    lab.write_text(LAB.replace("rack-[1-2]: 2", "rack-[1-2]: 3"), encoding="utf-8")
    done = holdfast("topology", "check", "--topology", lab)
    assert (done.code, done.out) == (
        1,
        "grouping: line 5: 3 each does not come out even: rack-2 has 1 of 3.\n",
    )
    shown = holdfast("topology", "check", "--topology", lab, "--json")
    assert (shown.code, [doubt["kind"] for doubt in shown.json["doubts"]]) == (1, ["grouping"])


def test_the_file_is_found_at_home_or_by_the_environment(
    holdfast: Holdfast, lab: Path, tmp_path: Path
) -> None:
    done = holdfast("topology", "check")
    assert done.code == 2
    assert "The topology cannot be read from" in done.err
    assert "holdfast topology show --example" in done.err
    assert holdfast("topology", "check", HOLDFAST_TOPOLOGY=str(lab)).code == 0
    (tmp_path / "home").mkdir()
    lab.rename(tmp_path / "home" / "topology.yaml")
    assert holdfast("topology", "check").code == 0


def test_the_example_passes_the_check_and_the_schema_is_printed(holdfast: Holdfast, tmp_path: Path) -> None:
    example = holdfast("topology", "show", "--example")
    (tmp_path / "example.yaml").write_text(example.out, encoding="utf-8")
    assert holdfast("topology", "check", "--topology", "example.yaml").code == 0
    assert holdfast("topology", "show", "--schema").json["$ref"] == "#/$defs/TopologyFile"


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("nodes: [", ["show"], "mine.yaml: line 2: This is not YAML"),
        ("nodes:\n  n1:", ["show", "n2"], "The topology has no subject 'n2'."),
        (
            "nodes:\n  n1:",
            ["show", "--prometheus", "http://127.0.0.1:9"],
            "http://127.0.0.1:9 cannot be reached: ",
        ),
        (
            "nodes:\n  n1:",
            ["show", "--prometheus", "http://[::1"],
            "Invalid Prometheus URL: 'http://[::1'.",
        ),
        ("nodes:\n  n1:", ["show", "--redfish", "http://[::1"], "Invalid --redfish URL: 'http://[::1'."),
        (
            "nodes:\n  n1:",
            ["show", "--redfish", "http://127.0.0.1:9"],
            "127.0.0.1:9 does not answer",
        ),
        ("nodes:\n  n1:", ["show", "--kubernetes", "no.json"], "The nodes cannot be read from no.json"),
    ],
)
def test_mistakes_are_one_sentence_and_a_hint(
    holdfast: Holdfast, tmp_path: Path, text: str, words: list[str], told: str
) -> None:
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    done = holdfast("topology", *words, "--topology", "mine.yaml")
    assert done.code == 2
    assert told in done.err
    assert "  hint: " in done.err
    assert "Traceback" not in done.err


def test_prometheus_and_redfish_add_what_the_file_does_not_say(holdfast: Holdfast, tmp_path: Path) -> None:
    asked: list[Mapping[str, list[str]]] = []

    def series(query: Mapping[str, list[str]]) -> object:
        asked.append(query)
        gpus = [{"__name__": "DCGM_FI_DEV_GPU_TEMP", "Hostname": "n1", "gpu": str(gpu)} for gpu in range(2)]
        rack = {"__name__": "densewatch_topology_info", "Hostname": "n1", "rack": "rack-1", "cdu": "cdu-9"}
        return {"status": "success", "data": [*gpus, rack]}

    cdus = "/redfish/v1/ThermalEquipment/CDUs"
    connectors = f"{cdus}/cdu-1/SecondaryCoolantConnectors"
    service = {
        cdus: {"Members": [{"@odata.id": f"{cdus}/cdu-1"}]},
        f"{cdus}/cdu-1": {"Id": "cdu-1", "SecondaryCoolantConnectors": {"@odata.id": connectors}},
        connectors: {"Members": [{"@odata.id": f"{connectors}/1"}]},
        f"{connectors}/1": {"Links": {"ConnectedChassis": [{"@odata.id": "/redfish/v1/Chassis/rack-1"}]}},
    }
    with serving({"/api/v1/series": series, **service}) as url:
        done = holdfast("topology", "path", "cdu-9", "n1.1", "--prometheus", url)
        assert [line.split()[1] for line in done.out.splitlines()[1:2]] == ["rack-1"]
        both = holdfast("topology", "check", "--redfish", url, "--prometheus", url, "--json")
    assert 'node_mountstats_nfs_operations_requests_total{operation="READ"}' in asked[0]["match[]"]
    assert float(asked[0]["start"][0]) > 1e9
    texts = [doubt["text"] for doubt in both.json["doubts"]]
    assert "rack-1 is on loop cdu-9 (Prometheus), and on cdu-1 (Redfish)." in texts


def test_what_is_no_prometheus_is_refused(holdfast: Holdfast) -> None:
    with serving({"/api/v1/series": {"status": "error"}}) as url:
        done = holdfast("topology", "show", "--prometheus", url)
    assert done.code == 2
    assert "answered 200: OK." in done.err


def test_a_redfish_without_cooling_units_is_told(holdfast: Holdfast) -> None:
    with serving({"/redfish/v1/ThermalEquipment/CDUs": "<html>"}) as url:
        done = holdfast("topology", "show", "--redfish", url)
    assert done.code == 2
    assert "has no cooling unit that could be read." in done.err


@pytest.mark.parametrize("system", ["--prometheus", "--redfish"])
def test_passwords_are_told_nobody(holdfast: Holdfast, system: str) -> None:
    done = holdfast("topology", "show", system, "http://ada:tide@127.0.0.1:9")
    assert done.code == 2
    assert "127.0.0.1:9" in done.err
    assert "tide" not in done.err


def test_a_chain_is_shown_as_far_as_it_is_a_picture(holdfast: Holdfast, tmp_path: Path) -> None:
    links = [f"  s{number}: {{depends_on: s{number - 1}}}" for number in range(1, 3000)]
    (tmp_path / "chain.yaml").write_text("\n".join(["subjects:", "  s0: {}", *links]), encoding="utf-8")
    done = holdfast("topology", "show", "s2999", "--topology", "chain.yaml")
    assert (done.code, "s2980" in done.out, "…" in done.out) == (0, True, True)


def test_slurm_is_asked_for_nodes_and_jobs(holdfast: Holdfast, slurm: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "SLURM_CONF": str(slurm)}
    submit = ["sbatch", "--nodes=2", "--job-name=pretrain", f"--output={tmp_path}/out", "--wrap=sleep 300"]
    subprocess.run(submit, env=environment, check=True, capture_output=True)
    await_running(environment)
    shown = holdfast("topology", "show", "pretrain", "--slurm", "--json", SLURM_CONF=str(slurm)).json
    assert shown["kind"] == "run"
    assert shown["depends_on"]["node"] == ["127.0.0.1", "127.0.0.2"]


def await_running(environment: Mapping[str, str]) -> None:
    def states() -> list[str]:
        command = ["timeout", "10", "squeue", "--noheader", "--format=%t"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    until(lambda: states() == ["R"], states)


def test_where_slurm_is_not_there_it_is_told(holdfast: Holdfast, tmp_path: Path) -> None:
    done = holdfast("topology", "show", "--slurm", PATH=str(tmp_path))
    assert done.code == 2
    assert "There is no command scontrol here." in done.err
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    done = holdfast("topology", "show", "--slurm", PATH=str(tmp_path))
    assert "scontrol failed: Unable to contact slurm controller." in done.err


def test_a_name_that_is_no_text_is_survived(holdfast: Holdfast, tmp_path: Path) -> None:
    for command, printed in (("scontrol", r"NodeName=n\377 Gres=gpu:2\n"), ("squeue", '{"jobs":[]}')):
        (tmp_path / command).write_text(f"#!/bin/sh\nprintf '{printed}'\n", encoding="utf-8")
        (tmp_path / command).chmod(0o755)
    done = holdfast("topology", "show", "--slurm", "--json", PATH=str(tmp_path))
    assert done.json["kinds"]["gpu"]["count"] == 2
