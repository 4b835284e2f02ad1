"""Slurm: a real slurmctld with two nodes is asked and its scripts are run; and what other versions print."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples
from waiting import WAIT_S, until

from holdfast.control.cluster import NodeView
from holdfast.record.errors import HoldfastError
from holdfast.schedulers.slurm import SlurmScheduler
from holdfast.schedulers.slurm_commands import NODES_TEXT, SlurmCommands, parse_nodes
from holdfast.signals.collectors.slurm import ask
from tests.schedulers.conftest import SLURM_NODES, SlurmCluster, scontrol, seen

FIRST, SECOND = SLURM_NODES


@pytest.fixture
def scheduler(slurm_nodes: SlurmCluster) -> SlurmScheduler:
    return slurm_nodes.scheduler


def test_maintenance_is_seen(scheduler: SlurmScheduler) -> None:
    scontrol(
        *("create", "reservation", "reservationname=tide", "starttime=now", "duration=10"),
        *("flags=maint", "user=root", f"nodes={SECOND}"),
    )
    until(lambda: seen(scheduler)[SECOND].maintenance == "tide", lambda: seen(scheduler))
    assert seen(scheduler)[FIRST].maintenance == ""


# ---- scripts ---------------------------------------------------------------------------------------------

CONTRIB = Path(__file__).parents[2] / "contrib" / "slurm"


def test_the_health_check_drains_a_node_that_is_not_good(
    scheduler: SlurmScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "holdfast"
    fake.write_text('#!/bin/bash\necho "disk.write  12 MB/s  at least 100  NOT GOOD"\nexit ${CODE:-0}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("HOLDFAST", str(fake))
    monkeypatch.setenv("SLURMD_NODENAME", SECOND)
    for code, is_out in (("0", False), ("2", False), ("1", True)):
        monkeypatch.setenv("CODE", code)
        subprocess.run([CONTRIB / "health-check.sh"], check=True, timeout=WAIT_S)
        assert seen(scheduler)[SECOND].is_out is is_out
        for script in ("prolog.sh", "epilog.sh"):
            done = subprocess.run([CONTRIB / script], check=False, timeout=WAIT_S, capture_output=True)
            assert done.returncode == int(is_out)
    assert seen(scheduler)[SECOND].reason == "health check: disk.write 12 MB/s at least 100 NOT GOOD"


def test_a_mistake_in_a_script_is_logged_and_drains_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be on every node."""
    for name, text in (
        ("holdfast", 'echo "holdfast: --peer and --answer need a token." >&2; exit 2'),
        ("scontrol", f"touch {tmp_path / 'drained'}"),
        ("logger", f"cat > {tmp_path / 'logged'}"),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n", encoding="ascii")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    subprocess.run([CONTRIB / "health-check.sh"], check=True, timeout=WAIT_S)
    said = (tmp_path / "logged").read_text(encoding="ascii")
    assert said == "holdfast: --peer and --answer need a token.\n"
    assert not (tmp_path / "drained").exists()


# ---- as JSON, or as lines --------------------------------------------------------------------------------


def test_what_is_told_as_json_is_what_the_lines_tell(
    scheduler: SlurmScheduler, slurm_nodes: SlurmCluster
) -> None:
    slurm_nodes.take_out(SECOND, "fan 3, see ticket [417]")
    job = slurm_nodes.place("tide", FIRST)
    until(lambda: seen(scheduler)[FIRST].jobs == (job,), lambda: seen(scheduler))
    by_lines = parse_nodes(ask(*NODES_TEXT), 8)
    commands = SlurmCommands(8)
    assert commands.nodes() == by_lines
    assert [one.job for one in commands.jobs()] == [job]


class FakeCommands:
    """Commands that print what a version prints; `down` has none of them answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.down = folder / "down"
        self.asked = folder / "asked"

    def make(self, name: str, json: str, lines: str) -> None:
        path = self.folder / name
        path.write_text(
            f'#!/bin/bash\necho "{name} $*" >> {self.asked}\n[ -e {self.down} ] && exit 1\n'
            f"case \"$*\" in *--json*) {json or 'exit 1'};; *) cat <<'END'\n{lines}\nEND\n;; esac\n"
        )
        path.chmod(0o755)

    def take_asked(self) -> list[str]:
        text = self.asked.read_text() if self.asked.exists() else ""
        self.asked.unlink(missing_ok=True)
        return text.splitlines()


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCommands:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return FakeCommands(tmp_path)


LINE = "NodeName=n1 State=IDLE+DRAIN Reason=lines [root@2026-11-17T12:00:00]"
NODE = '{"nodes": [{"name": "n1", "state": ["IDLE", "DRAIN"], "reason": "json"}]}'


def test_a_version_without_json_is_asked_for_lines_from_then_on(fakes: FakeCommands) -> None:
    fakes.make("scontrol", "", LINE)
    fakes.make("sinfo", """echo '{"sinfo": []}'""", "")  # as from 23.11 on: not nodes
    commands = SlurmCommands(8)
    assert [commands.nodes()["n1"].reason for _ in range(2)] == ["lines", "lines"]
    text = "scontrol --oneliner show node"
    assert fakes.take_asked() == ["scontrol --json show nodes", "sinfo --json", text, text]


def test_nothing_is_chosen_while_nobody_answers_and_half_an_answer_is_told(fakes: FakeCommands) -> None:
    fakes.make("scontrol", f"echo '{NODE}'", LINE)
    fakes.make("sinfo", "exit 1", "")
    fakes.down.touch()
    commands = SlurmCommands(8)
    with pytest.raises(HoldfastError, match="scontrol failed"):
        commands.nodes()
    fakes.down.unlink()
    fakes.take_asked()
    assert [commands.nodes()["n1"].reason for _ in range(2)] == ["json", "json"]
    assert fakes.take_asked() == ["scontrol --json show nodes"] * 2
    fakes.make("scontrol", f"echo '{NODE[:40]}'", LINE)
    with pytest.raises(HoldfastError, match="show nodes did not answer with the JSON that was expected"):
        commands.nodes()
    fakes.make("scontrol", f"echo '{NODE}'", LINE)
    assert commands.nodes()["n1"].reason == "json"
    fakes.make("scontrol", """echo '{"errors": []}'""", LINE)
    with pytest.raises(HoldfastError, match="show nodes printed no nodes"):
        commands.nodes()


def test_a_way_that_fails_is_not_taken_again(fakes: FakeCommands) -> None:
    """As after another version was installed, or where a queue has grown too long to be told in time."""
    fakes.make("scontrol", f"echo '{NODE}'", LINE)
    fakes.make("sinfo", "exit 1", "")
    commands = SlurmCommands(8)
    assert commands.nodes()["n1"].reason == "json"
    fakes.make("scontrol", "exit 1", LINE)
    with pytest.raises(HoldfastError, match="scontrol failed"):
        commands.nodes()
    assert commands.nodes()["n1"].reason == "lines"


def test_an_empty_list_beside_an_error_is_not_believed(fakes: FakeCommands) -> None:
    """Nodes would seem to have no jobs, and could be rebooted under them."""
    failed = '{"jobs": [], "errors": [{"description": "Unable to contact slurm controller"}]}'
    fakes.make("squeue", f"echo '{failed}'", "7|n1|tide")
    commands = SlurmCommands(8)
    assert [one.job for one in commands.jobs()] == ["7"]
    fakes.make("squeue", """echo '{"jobs": []}'""", "")
    commands = SlurmCommands(8)
    assert commands.jobs() == ()
    fakes.make("squeue", f"echo '{failed}'", "")
    with pytest.raises(HoldfastError, match="squeue --json answers: Unable to contact slurm controller"):
        commands.jobs()


# ---- what it prints --------------------------------------------------------------------------------------


def test_lines_of_other_versions_are_read() -> None:
    text = (
        "NodeName=gpu-1 Arch=x86_64 Gres=gpu:h100:8(S:0-1) State=MIXED+DRAIN*  ThreadsPerCore=2 "
        "BootTime=2026-11-01T08:00:00 SlurmdStartTime=2026-11-02T08:00:00 "
        "Reason=holdfast: nvlink (control-1-0000000002) [slurm@2026-11-17T12:00:00] Comment=x\n"
        "NodeName=gpu-2 State=IDLE+CLOUD BootTime=None\n"
        "NodeName=gpu-3 State=DOWN* Reason=Not responding [slurm@2026-11-17T12:00:00]\n"
    )
    nodes = parse_nodes(text, gpus_per_node=4)
    assert nodes["gpu-1"] == NodeView(
        name="gpu-1",
        gpus=8,
        is_out=True,
        reason="holdfast: nvlink (control-1-0000000002)",
        since_ns=1_793_520_000 * 10**9,
    )
    assert nodes["gpu-2"] == NodeView(name="gpu-2", gpus=4)
    assert (nodes["gpu-3"].is_out, nodes["gpu-3"].reason) == (True, "Not responding")


@settings(max_examples=examples(200))
@given(st.text(alphabet=st.sampled_from("NodeName=State+ \n[]@DRAINn1Reason:0-9T"), max_size=200))
def test_no_line_is_too_odd(text: str) -> None:
    assert all(name for name in parse_nodes(text))
