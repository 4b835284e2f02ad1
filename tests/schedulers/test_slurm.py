"""Slurm: a real slurmctld with two nodes is drained, resumed and asked; and what other versions print."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples
from waiting import until

from holdfast.control.cluster import NodeView
from holdfast.control.controlling import Controlling, ControlSetting, acts_in
from holdfast.control.policy import BreakerBound, ControlPolicy, SiteCommands, Waits
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import diagnosis
from holdfast.economics.pricing.prices import DEFAULTS
from holdfast.record.clock import SystemClock
from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.events import IncidentDiagnosed
from holdfast.record.stores import open_store
from holdfast.schedulers.live_runs import LiveRuns
from holdfast.schedulers.machines import ClusterMachines
from holdfast.schedulers.scheduler import NotOurs
from holdfast.schedulers.slurm import SlurmScheduler, parse_nodes
from holdfast.wording.units import MINUTE_NS

FIRST, SECOND = "127.0.0.1", "127.0.0.2"
DATA = Path(__file__).parents[1] / "data"
REASON = "holdfast: gpu-throttle (control-1-0000000000)"
WAIT_S = 30


def scontrol(*words: str, check: bool = True) -> None:
    subprocess.run(["scontrol", *words], check=check, capture_output=True, timeout=WAIT_S)


@pytest.fixture
def scheduler(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmScheduler]:
    """With every node as before after the test."""
    monkeypatch.setenv("SLURM_CONF", str(slurm))
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    made = SlurmScheduler(gpus_per_node=8)
    yield made
    for node in (FIRST, SECOND):
        scontrol("update", f"nodename={node}", "state=resume", check=False)
    scontrol("delete", "reservation=tide", check=False)
    until(lambda: not any(one.is_out for one in seen(made).values()), lambda: seen(made))


def seen(scheduler: SlurmScheduler) -> dict[str, NodeView]:
    return dict(scheduler.look(SystemClock().now_ns()).nodes)


def test_a_node_is_drained_and_resumed_under_our_reason(scheduler: SlurmScheduler) -> None:
    before = seen(scheduler)[SECOND]
    assert not before.is_out
    assert before.gpus == 8
    assert 0 < before.since_ns < SystemClock().now_ns()
    scheduler.drain(SECOND, REASON)
    scheduler.drain(SECOND, REASON)  # again, after a crash say
    node = seen(scheduler)[SECOND]
    assert (node.is_out, node.reason) == (True, REASON)
    assert not seen(scheduler)[FIRST].is_out
    scheduler.resume(SECOND, REASON)
    until(lambda: not seen(scheduler)[SECOND].is_out, lambda: seen(scheduler))


def test_what_others_drained_keeps_their_reason(scheduler: SlurmScheduler) -> None:
    scontrol("update", f"nodename={SECOND}", "state=drain", "reason=fan 3, see ticket [417]")
    with pytest.raises(NotOurs, match="fan 3"):
        scheduler.drain(SECOND, REASON)
    with pytest.raises(NotOurs, match="not out by us"):
        scheduler.resume(SECOND, REASON)
    node = seen(scheduler)[SECOND]
    assert (node.is_out, node.reason) == (True, "fan 3, see ticket [417]")


def test_what_a_person_took_over_is_theirs(scheduler: SlurmScheduler) -> None:
    scheduler.drain(SECOND, REASON)
    scontrol("update", f"nodename={SECOND}", "state=drain", "reason=mine now")
    with pytest.raises(NotOurs, match="mine now"):
        scheduler.resume(SECOND, REASON)


def test_maintenance_is_seen(scheduler: SlurmScheduler) -> None:
    scontrol(
        *("create", "reservation", "reservationname=tide", "starttime=now", "duration=10"),
        *("flags=maint", "user=root", f"nodes={SECOND}"),
    )
    until(lambda: seen(scheduler)[SECOND].maintenance == "tide", lambda: seen(scheduler))
    assert seen(scheduler)[FIRST].maintenance == ""


def test_a_job_is_seen_and_requeued(scheduler: SlurmScheduler, tmp_path: Path) -> None:
    batch = ["sbatch", "--parsable", "--requeue", "--job-name=pretrain", f"--nodelist={SECOND}"]
    done = subprocess.run(
        [*batch, f"--output={tmp_path}/out", "--wrap=sleep 600"],
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    job = done.stdout.strip()
    until(lambda: seen(scheduler)[SECOND].jobs == (job,), lambda: seen(scheduler))
    (placed,) = scheduler.look(SystemClock().now_ns()).jobs
    assert (placed.job, placed.name, placed.nodes) == (job, "pretrain", (SECOND,))
    scheduler.requeue(job)
    until(lambda: job not in seen(scheduler)[SECOND].jobs, lambda: seen(scheduler))


def test_an_unknown_node_and_a_name_that_is_none_are_refused(scheduler: SlurmScheduler) -> None:
    with pytest.raises(HoldfastError):
        scheduler.drain("n404", REASON)
    for name in ("n[1-2]", "-oProxyCommand=x", "ALL,n1", "n1 State=DOWN", ""):
        with pytest.raises(InputError, match="is not the name"):
            scheduler.drain(name, REASON)


# ---- the whole way ---------------------------------------------------------------------------------------


class Site:
    """Control on a real Slurm, with checks that find what a file says."""

    def __init__(self, folder: Path, scheduler: SlurmScheduler, incident: Callable[..., Incident]) -> None:
        self.folder = folder
        self.scheduler = scheduler
        self.incident = incident
        self.is_sick = folder / "sick"
        check = folder / "check.sh"
        check.write_text(
            "#!/bin/bash\n"
            'ok=true; value=700; if [ -e "$(dirname "$0")/sick-$1" ]; then ok=false; value=12; fi\n'
            'printf \'{"ok": %s, "took_s": 1, "checks": [{"name": "gpu0.product", "value": %s, '
            '"unit": "TFLOP/s", "reference": 539, "ok": %s}]}\' $ok $value $ok\n'
            "$ok\n",
            encoding="utf-8",
        )
        check.chmod(0o755)
        self.policy = ControlPolicy(
            mode="act",
            scheduler="slurm",
            waits=Waits(cool_down_min=0, hold_min=0),
            breaker=BreakerBound(nodes=2, percent=100),
            commands=SiteCommands(check=f"{check} {{node}}"),
        )
        self.store = open_store(str(folder / "record.sqlite"), folder)
        self.starts = 0

    def turn(self) -> list[tuple[str, str]]:
        """A new process each time: nothing is known but by the record."""
        self.starts += 1
        machines = ClusterMachines(self.policy, self.scheduler, LiveRuns(self.folder), lambda: True)
        control = Controlling(
            ControlSetting(
                store=self.store,
                machines=machines,
                policy=self.policy,
                prices=DEFAULTS,
                token=f"control-{self.starts}",
                is_leading=lambda: True,
                take_in=lambda: None,
                say=lambda sentence: None,
            )
        )
        found = control.turn(SystemClock().now_ns())
        control.wait(SystemClock().now_ns())
        control.close()
        return [(one.action, one.target) for one in found]

    def tell(self, node: str, state: Any = "open") -> None:
        now_ns = SystemClock().now_ns()
        incident = self.incident(
            node,
            name=f"cluster/{node}",
            run="cluster",
            mechanism="gpu-fault",
            began_ns=now_ns - MINUTE_NS,
            noticed_ns=now_ns,
        )
        self.store.ingest(
            [
                IncidentDiagnosed(
                    id=f"i-{now_ns}",
                    occurred_ns=now_ns,
                    run="cluster",
                    incident=incident.name,
                    state=state,
                    diagnosis=diagnosis(incident),
                )
            ]
        )

    def acts(self) -> list[tuple[str, str, str]]:
        return [(act.action, act.stage, act.outcome) for act in acts_in(self.store)]


@pytest.fixture
def site(tmp_path: Path, scheduler: SlurmScheduler) -> Iterator[Site]:
    sample = msgspec.json.decode((DATA / "incident.json").read_bytes(), type=Incident)

    def make(node: str, mechanism: str, **fields: Any) -> Incident:
        cause = msgspec.structs.replace(sample.cause, subject=node, kind="node", mechanism=mechanism)
        usual = {"verdict": "cause", "cause": cause, "path": (node,), "confidence": 0.95, "cost": None}
        return msgspec.structs.replace(sample, **(usual | fields))

    made = Site(tmp_path, scheduler, make)
    yield made
    made.store.close()


def test_a_bad_node_is_drained_checked_and_restored_by_processes_that_know_only_the_record(
    site: Site, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    site.tell(SECOND)
    assert site.turn() == [("drain-when-done", SECOND)]
    node = seen(scheduler)[SECOND]
    assert node.is_out
    assert node.reason.startswith("holdfast: gpu-fault (control-1-")
    site.tell(SECOND, "resolved")
    sick = tmp_path / f"sick-{SECOND}"
    sick.touch()
    assert site.turn() == [("restore", SECOND)]
    assert site.acts()[0] == (
        "restore",
        "failed",
        "1 of 1 checks are not good: gpu0.product 12 TFLOP/s, wanted 539",
    )
    assert seen(scheduler)[SECOND].is_out
    sick.unlink()
    assert site.turn() == [("restore", SECOND)]
    assert site.acts()[0] == ("restore", "done", "restored: all 1 checks are good")
    until(lambda: not seen(scheduler)[SECOND].is_out, lambda: seen(scheduler))
    assert site.turn() == []


def test_a_node_that_a_person_drained_is_left_alone_and_so_is_one_that_they_took_over(
    site: Site, scheduler: SlurmScheduler
) -> None:
    scontrol("update", f"nodename={FIRST}", "state=drain", "reason=fan, jane")
    site.tell(FIRST)
    assert site.turn() == [("watch", FIRST)]
    site.tell(FIRST, "resolved")
    site.tell(SECOND)
    assert site.turn() == [("drain-when-done", SECOND)]
    scontrol("update", f"nodename={SECOND}", "state=drain", "reason=mine now, jane")
    assert site.turn() == [("watch", SECOND)]
    assert site.acts()[0] == ("drain-when-done", "over", "it is out for: mine now, jane")
    assert {name: node.reason for name, node in seen(scheduler).items()} == {
        FIRST: "fan, jane",
        SECOND: "mine now, jane",
    }


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
    for code, is_out in (("0", False), ("1", True)):
        monkeypatch.setenv("CODE", code)
        subprocess.run([CONTRIB / "health-check.sh"], check=True, timeout=WAIT_S)
        assert seen(scheduler)[SECOND].is_out is is_out
        for script in ("prolog.sh", "epilog.sh"):
            done = subprocess.run([CONTRIB / script], check=False, timeout=WAIT_S, capture_output=True)
            assert done.returncode == int(code)
    assert seen(scheduler)[SECOND].reason == "health check: disk.write 12 MB/s at least 100 NOT GOOD"


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
