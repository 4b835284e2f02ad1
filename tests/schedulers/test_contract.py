"""What control relies on, of every scheduler: on a real Slurm, by its commands and by slurmrestd, and on a
real Kubernetes API server.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from holdfast.control.controlling import Controlling, ControlSetting, acts_in
from holdfast.control.policy import BreakerBound, ControlPolicy, SiteCommands, Waits
from holdfast.diagnose.lifecycle import diagnosis
from holdfast.economics.pricing.prices import DEFAULTS
from holdfast.record.clock import SystemClock
from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.events import IncidentDiagnosed
from holdfast.record.stores import open_store
from holdfast.schedulers.live_runs import LiveRuns
from holdfast.schedulers.machines import ClusterMachines
from holdfast.schedulers.scheduler import NotOurs
from tests.schedulers.conftest import MakeIncident, TriedCluster, seen

REASON = "holdfast: gpu-throttle (control-1-0000000000)"


@pytest.fixture(
    params=[
        pytest.param("slurm_nodes", marks=pytest.mark.server, id="slurm"),
        pytest.param("slurm_rest_nodes", marks=[pytest.mark.server, pytest.mark.root], id="slurmrestd"),
        pytest.param("kubernetes_nodes", marks=pytest.mark.kubernetes, id="kubernetes"),
    ]
)
def cluster(request: pytest.FixtureRequest) -> TriedCluster:
    found: TriedCluster = request.getfixturevalue(request.param)
    return found


def test_a_node_is_drained_and_resumed_under_our_reason(cluster: TriedCluster) -> None:
    scheduler, second = cluster.scheduler, cluster.second
    before = seen(scheduler)[second]
    assert not before.is_out
    assert before.gpus == 8
    assert 0 <= before.since_ns < SystemClock().now_ns()  # Slurm forgets it when a node is resumed
    scheduler.drain(second, REASON)
    scheduler.drain(second, REASON)  # again, after a crash say
    node = seen(scheduler)[second]
    assert (node.is_out, node.reason) == (True, REASON)
    assert not seen(scheduler)[cluster.first].is_out
    scheduler.resume(second, REASON)
    until(lambda: not seen(scheduler)[second].is_out, lambda: seen(scheduler))


def test_what_others_drained_keeps_their_reason(cluster: TriedCluster) -> None:
    scheduler, second = cluster.scheduler, cluster.second
    cluster.take_out(second, "fan 3, see ticket [417]")
    with pytest.raises(NotOurs, match="fan 3"):
        scheduler.drain(second, REASON)
    with pytest.raises(NotOurs, match="no longer out because of us"):
        scheduler.resume(second, REASON)
    node = seen(scheduler)[second]
    assert (node.is_out, node.reason) == (True, "fan 3, see ticket [417]")


def test_what_a_person_took_over_is_theirs(cluster: TriedCluster) -> None:
    scheduler, second = cluster.scheduler, cluster.second
    scheduler.drain(second, REASON)
    cluster.take_over(second, "mine now")
    with pytest.raises(NotOurs, match="mine now"):
        scheduler.resume(second, REASON)
    node = seen(scheduler)[second]
    assert (node.is_out, node.reason) == (True, "mine now")


def test_a_job_is_seen_and_requeued(cluster: TriedCluster) -> None:
    scheduler, second = cluster.scheduler, cluster.second
    job = cluster.place("pretrain", second)
    until(lambda: seen(scheduler)[second].jobs == (job,), lambda: seen(scheduler))
    (placed,) = scheduler.look(SystemClock().now_ns()).jobs
    assert (placed.job, placed.name, placed.nodes) == (job, "pretrain", (second,))
    scheduler.requeue(job)
    until(lambda: job not in seen(scheduler)[second].jobs, lambda: seen(scheduler))


def test_what_runs_on_a_node_is_ended_there(cluster: TriedCluster) -> None:
    scheduler, second = cluster.scheduler, cluster.second
    job = cluster.place("pretrain", second)
    until(lambda: seen(scheduler)[second].jobs == (job,), lambda: seen(scheduler))
    scheduler.drain(second, REASON)
    scheduler.clear(second, (job,))
    until(lambda: not seen(scheduler)[second].jobs, lambda: seen(scheduler))
    assert seen(scheduler)[second].reason == REASON


def test_an_unknown_node_and_a_name_that_is_none_are_refused(cluster: TriedCluster) -> None:
    with pytest.raises(HoldfastError):
        cluster.scheduler.drain("n404", REASON)
    for name in ("n[1-2]", "-oProxyCommand=x", "ALL,n1", "n1 State=DOWN", "../pods", "n1/status", ""):
        with pytest.raises(InputError, match="is not the name"):
            cluster.scheduler.drain(name, REASON)
    with pytest.raises(InputError, match="is not the name"):
        cluster.scheduler.requeue("../nodes n1")


# ---- the whole way ---------------------------------------------------------------------------------------


class Site:
    """Control on a real cluster, with checks that find what a file says."""

    def __init__(self, folder: Path, cluster: TriedCluster, incident: MakeIncident) -> None:
        self.folder = folder
        self.scheduler = cluster.scheduler
        self.incident = incident
        check = folder / "check.sh"
        check.write_text(
            "#!/bin/bash\n"
            'ok=true; value=700; if [ -e "$(dirname "$0")/sick-$1" ]; then ok=false; value=12; fi\n'
            'good() { printf \'{"name": "%s", "value": 0, "ok": true},\' "$@"; }\n'
            'printf \'{"ok": %s, "took_s": 1, "checks": [\' $ok\n'
            '[ "$2" = gpu ] && good gpu0.differing gpu0.wrong kernel.faults\n'
            'printf \'{"name": "gpu0.product", "value": %s, "unit": "TFLOP/s", "reference": 539, '
            '"ok": %s}]}\' $value $ok\n'
            "$ok\n",
            encoding="utf-8",
        )
        check.chmod(0o755)
        self.policy = ControlPolicy(
            mode="act",
            waits=Waits(cool_down_min=0, hold_min=0),
            breaker=BreakerBound(nodes=2, percent=100),
            commands=SiteCommands(check=f"{check} {{node}} {{part}}"),
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
            began_ns=now_ns,
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
def site(tmp_path: Path, cluster: TriedCluster, make_incident: MakeIncident) -> Iterator[Site]:
    made = Site(tmp_path, cluster, make_incident)
    yield made
    made.store.close()


def test_a_bad_node_is_drained_checked_and_restored_by_processes_that_know_only_the_record(
    site: Site, cluster: TriedCluster, tmp_path: Path
) -> None:
    scheduler, second = cluster.scheduler, cluster.second
    site.tell(second)
    assert site.turn() == [("drain-when-done", second)]
    node = seen(scheduler)[second]
    assert node.is_out
    assert node.reason.startswith("holdfast: gpu-fault (control-1-")
    site.tell(second, "resolved")
    sick = tmp_path / f"sick-{second}"
    sick.touch()
    assert site.turn() == [("restore", second)]
    assert site.acts()[0] == (
        "restore",
        "failed",
        "1 of 4 checks are not good: gpu0.product 12 TFLOP/s, wanted 539",
    )
    assert seen(scheduler)[second].is_out
    sick.unlink()
    assert site.turn() == [("restore", second)]
    assert site.acts()[0] == ("restore", "done", "restored: all 4 checks are good")
    until(lambda: not seen(scheduler)[second].is_out, lambda: seen(scheduler))
    assert site.turn() == []


def test_a_node_that_a_person_drained_is_left_alone_and_so_is_one_that_they_took_over(
    site: Site, cluster: TriedCluster
) -> None:
    first, second = cluster.first, cluster.second
    cluster.take_out(first, "fan, jane")
    site.tell(first)
    assert site.turn() == [("watch", first)]
    site.tell(first, "resolved")
    site.tell(second)
    assert site.turn() == [("drain-when-done", second)]
    cluster.take_over(second, "mine now, jane")
    assert site.turn() == [("watch", second)]
    assert site.acts()[0] == ("drain-when-done", "over", "it is out for: mine now, jane")
    assert {name: node.reason for name, node in seen(cluster.scheduler).items()} == {
        first: "fan, jane",
        second: "mine now, jane",
    }
