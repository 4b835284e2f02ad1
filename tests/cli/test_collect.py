"""`holdfast collect`: printed, served, stored and recorded, by a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import WAIT_S, until

from holdfast.cli import main
from holdfast.record.events import encode
from holdfast.record.store import Selection
from holdfast.record.stores import open_store
from holdfast.signals.frame import Reading
from holdfast.signals.store import SignalStore

ROOT = Path(__file__).parents[2]
XID = "[  1.5] NVRM: Xid (PCI:0000:9b:00): {}, pid=1, name=python, text"


@pytest.fixture
def ports(data: Path) -> Path:
    return data / "sysfs-infiniband-h100"


@pytest.fixture
def xids(data: Path) -> Path:
    return data / "kernel-logs" / "dmesg-xid-119.log"


@pytest.fixture
def cdu() -> Iterator[str]:
    command = [sys.executable, str(ROOT / "testbed" / "cdu.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@contextmanager
def collecting(environment: dict[str, str], *arguments: str | Path, log: Path) -> Iterator[None]:
    """The command at work; at the end it is interrupted as by a person, and must go in peace."""
    command = [sys.executable, "-m", "holdfast", "collect", *map(str, arguments)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    with process:
        try:
            yield
            assert process.poll() is None, log.read_text(encoding="utf-8")
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 130, log.read_text(encoding="utf-8")
        finally:
            process.kill()


def await_found(pattern: str, look: Callable[[], str]) -> "re.Match[str]":
    found = until(lambda: re.search(pattern, look()), look)
    assert found is not None
    return found


def test_all_is_read_once_for_programs(
    holdfast: Callable[..., Any], ports: Path, xids: Path, cdu: str
) -> None:
    done = holdfast(
        "collect", "--infiniband", ports, "--kernel-log", xids, "--redfish", f"cdu-7={cdu}", "--host=n17",
        "--once", "--json",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    found = done.json
    metrics = {reading["metric"] for reading in found["readings"]}
    assert {"node_infiniband_symbol_error_total", "DCGM_EXP_XID_ERRORS_COUNT", "HeatRemovedkW"} <= metrics
    assert [event["code"] for event in found["events"]] == [119] * 5
    assert found["cooling"][0]["cdu"] == "cdu-7"
    assert found["problems"] == []
    assert found["slurm"] is None


def test_all_is_read_once_for_people(holdfast: Callable[..., Any], ports: Path, xids: Path) -> None:
    done = holdfast("collect", "--infiniband", ports, "--kernel-log", xids, "--host=n17", "--once")
    lines = done.out.splitlines()
    assert 'node_infiniband_state_id{device="mlx5_0",instance="n17",port="1"} 4' in lines
    assert len([line for line in lines if line.startswith("xid-119 on n17 at 0000:9b:00.0: NVRM: Xid")]) == 5


def test_one_source_that_fails_does_not_cost_the_others(
    holdfast: Callable[..., Any], ports: Path, tmp_path: Path
) -> None:
    done = holdfast("collect", "--infiniband", ports, "--kernel-log", tmp_path / "none", "--once", "--json")
    assert done.code == 0
    assert len(done.json["readings"]) == 102
    assert done.err.startswith(f"holdfast: The kernel log {tmp_path}/none cannot be read")
    assert done.json["problems"][0].startswith("The kernel log")


def test_sources_that_all_fail_are_a_failure(holdfast: Callable[..., Any], tmp_path: Path) -> None:
    done = holdfast("collect", "--kernel-log", tmp_path / "none", "--once")
    assert (done.code, done.out) == (2, "")
    assert "cannot be read: No such file or directory." in done.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "No collector was requested."),
        (["--slurm", "--once", "--listen", "127.0.0.1:0"], "--listen serves nothing with --once."),
        (["--slurm", "--listen", "9470"], "'9470' is not in the form HOST:PORT."),
        (["--slurm", "--listen", "127.0.0.1:99999"], "'127.0.0.1:99999' is not in the form HOST:PORT."),
        (["--redfish", "cdu-1=10.0.0.7"], "Invalid --redfish URL: '10.0.0.7'."),
        (["--redfish", "https://[", "--once"], "Invalid --redfish URL: 'https://['."),
        (["--redfish", "http://10.0.0.7", "--redfish", "http://10.0.0.7/"], "10.0.0.7 occurs twice."),
        (["--slurm", "--every", "0"], "'0' must be above 0"),
        (["--slurm", "--keep", "1d"], "--keep needs stored readings."),
        (["--slurm", "--listen", "a..b:80"], "Metrics cannot be served at a..b:80"),
        (
            ["--slurm", "--record", "--xid-policy", "gone.toml"],
            "The XID policy cannot be read from gone.toml",
        ),
    ],
)
def test_mistakes_are_told(capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["collect", *arguments])
    assert exit_.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_log_comes_through_a_pipe(shell: Callable[..., Any], xids: Path) -> None:
    done = shell(f"holdfast collect --kernel-log - --once --json < {xids}")
    assert len(done.json["events"]) == 5
    done = shell(f"cat {xids} | holdfast collect --kernel-log - --once --json")
    assert len(done.json["events"]) == 5


def test_faults_are_recorded_once_by_the_policy(
    holdfast: Callable[..., Any], xids: Path, tmp_path: Path
) -> None:
    log = tmp_path / "kern.log"
    log.write_text(
        xids.read_text(encoding="utf-8") + f"[Sun Feb 23 16:31:00 2025] {XID.format(63)}\n", encoding="utf-8"
    )
    for _ in range(2):
        assert holdfast("collect", "--kernel-log", log, "--host=n17", "--once", "--record").code == 0
    events = [json.loads(line) for line in recorded(tmp_path / "home" / "record.sqlite")]
    assert len(events) == 5
    assert {(event["subject"], event["fault"], event.get("severity", "fatal")) for event in events} == {
        ("n17/0000:9b:00.0", "xid-119", "fatal")
    }
    assert events[0]["occurred_ns"] == 1_740_327_858 * 10**9
    assert "run" not in events[0]


def recorded(store: Path) -> list[str]:
    """The lines of all faults of the cluster as a whole, which belong to no run."""
    with open_store(str(store), store.parent) as opened:
        return [encode(event).decode() for event in opened.select(Selection(kinds=("fault.observed",)))]


def test_a_sites_policy_and_a_store_that_was_named(
    holdfast: Callable[..., Any], xids: Path, tmp_path: Path
) -> None:
    policy, store = tmp_path / "xids.toml", tmp_path / "faults.sqlite"
    policy.write_text('[xid.119]\nseverity = "degraded"\n', encoding="utf-8")
    done = holdfast(
        "collect", "--kernel-log", xids, "--once", "--record", "--store", store, "--xid-policy", policy
    )
    assert done.code == 0
    events = [json.loads(line) for line in recorded(store)]
    assert [event["severity"] for event in events] == ["degraded"] * 5


def test_prometheus_is_served_and_faults_are_followed(
    environment: dict[str, str], ports: Path, cdu: str, tmp_path: Path
) -> None:
    log, kernel_log = tmp_path / "log", tmp_path / "kern.log"
    kernel_log.write_text("", encoding="utf-8")
    arguments = ["--infiniband", str(ports), "--redfish", cdu, "--kernel-log", str(kernel_log), "--host=n17"]
    with collecting(environment, *arguments, "--every=200ms", "--listen=127.0.0.1:0", "--record", log=log):
        url = await_found(r"http://127.0.0.1:\d+/metrics", log.read_text)[0]

        def metrics() -> str:
            return httpx.get(url).text

        await_found(r'densewatch_cdu_coolant_flow_lpm{cdu="cdu-0000",protocol="redfish"} 42', metrics)
        await_found(r'node_infiniband_symbol_error_total{device="mlx5_0",port="1"} 0', metrics)
        assert "DCGM_EXP_XID_ERRORS_COUNT" not in metrics()
        with kernel_log.open("a", encoding="utf-8") as file:
            file.write(XID.format(79) + "\n")
        await_found(r"DCGM_EXP_XID_ERRORS_COUNT{.*xid=\"79\".*} 1", metrics)
        httpx.put(f"{cdu}/state", json={"cdu": "cdu-0000", "passage": 0.5})
        await_found(r"densewatch_cdu_coolant_flow_lpm{[^}]*} 21", metrics)
    (event,) = recorded(tmp_path / "home" / "record.sqlite")
    assert json.loads(event)["fault"] == "xid-79"


def test_a_source_that_goes_and_comes_back_is_told_once(
    environment: dict[str, str], ports: Path, tmp_path: Path
) -> None:
    log, root = tmp_path / "log", tmp_path / "infiniband"
    out = tmp_path / "signals"
    with collecting(environment, "--infiniband", root, "--every=100ms", "--signals", out, log=log):
        await_found("cannot be read, so no ports are read", log.read_text)
        time.sleep(0.5)
        root.symlink_to(ports)
        await_found("InfiniBand can be read again", log.read_text)
    assert log.read_text(encoding="utf-8").count("cannot be read") == 1


def test_readings_are_stored_where_the_other_verbs_look(
    holdfast: Callable[..., Any], cdu: str, tmp_path: Path
) -> None:
    for more in ([], [tmp_path / "other"]):
        done = holdfast("collect", "--redfish", cdu, "--once", "--json", "--signals", *more)
        assert done.code == 0
        at_ns = done.json["at_ns"]
        with SignalStore(more[0] if more else tmp_path / "home" / "signals") as store:
            frame = store.frame("FlowLitersPerMinute", (at_ns - 60 * 10**9, at_ns + 10**9))
        assert frame is not None
        assert frame.subjects == ("cdu-0000",)  # and not the water of the facility


def test_what_is_older_than_it_is_kept_for_is_deleted(
    holdfast: Callable[..., Any], ports: Path, tmp_path: Path
) -> None:
    signals = tmp_path / "signals"
    with SignalStore(signals) as store:
        store.append([Reading(metric="old", labels={}, at_ns=10**18, value=1.0)])
    arguments = ("collect", "--infiniband", ports, "--once", "--json", "--signals", signals)
    assert holdfast(*arguments).code == 0
    with SignalStore(signals) as store:
        assert "old" in store.metrics()
    assert holdfast(*arguments, "--keep=30d").code == 0
    with SignalStore(signals) as store:
        assert "old" not in store.metrics()
        assert len(store.metrics()) > 1


def test_rounds_are_printed_where_nothing_else_was_asked_for(
    environment: dict[str, str], ports: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with collecting(environment, "--infiniband", ports, "--every=100ms", "--json", log=log):
        # A round that a busy machine does not finish in time has none.
        await_found(r"(?s)node_infiniband_info.*\n.*node_infiniband_info.*\n", log.read_text)
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    told = (json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n"))
    first, second = [one for one in told if one["readings"]][:2]
    assert len(first["readings"]) == len(second["readings"]) == 102
    assert first["at_ns"] < second["at_ns"]


def test_passwords_come_from_the_environment(holdfast: Callable[..., Any]) -> None:
    command = [sys.executable, str(ROOT / "testbed" / "cdu.py"), "--user=ada", "--password=tide"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        arguments = ("collect", "--redfish", url, "--once", "--json")
        assert holdfast(*arguments).code == 2
        secrets = {"HOLDFAST_REDFISH_USER": "ada", "HOLDFAST_REDFISH_PASSWORD": "tide"}
        assert holdfast(*arguments, **secrets).code == 0
        assert holdfast(*arguments, "--redfish-session", **secrets).code == 0
        os.kill(process.pid, signal.SIGTERM)


def test_this_machine_is_read_under_the_exporters_names(holdfast: Callable[..., Any]) -> None:
    lines = holdfast("collect", "--node", "--host", "n17", "--once").out.splitlines()
    assert any(line.startswith('node_memory_MemTotal_bytes{instance="n17"} ') for line in lines)
    assert any(line.startswith("node_disk_io_time_seconds_total{") for line in lines)
