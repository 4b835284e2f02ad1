"""A node becomes slow, and nobody is there: noticed, priced, lanes moved, migrated, drained in Slurm,
repaired, checked and restored, with the same bits. `make demo-control` runs this and draws what happened.

Real: Slurm with five nodes, the run on four of them with one to spare, Prometheus, `holdfast watch` and
`holdfast control`. This machine has no GPUs: what a lane computes on one is a time to wait, which a node's
clock multiplies.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from servers import daemon
from waiting import answers, free_port, until

from holdfast.control.controlling import acts_in
from holdfast.control.history import Act
from holdfast.dashboard.story_page import StoryMark, render
from holdfast.diagnose.lifecycle import restored
from holdfast.record.home import HomeJournal
from holdfast.record.store import Selection, Store
from holdfast.record.stores import open_store

pytestmark = [pytest.mark.soak, pytest.mark.slow]

RUN = "show"
NODES = ("n0", "n1", "n2", "n3", "n4")
MEMBERS = 4
LANE_S = 0.08
SLOW, WORSE = 2.5, 3.5
WAIT_S = 420.0
STEADY_S = 45.0
"""What is usual must be known before anything is unusual."""
FIRST = ("nice", "-n", "-15") if os.geteuid() == 0 else ()
"""The run goes before whatever else the machine has to do."""
PICTURE = "HOLDFAST_SHOW"

SCRIPT = '''
"""FOLDER LANE_S STEPS: trains until the file `enough` is there; clock-NODE says how many times as long."""
import os, pathlib, sys, time
import torch
import holdfast.train as hf

folder, lane_s, steps = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
clock = folder / ("clock-" + os.environ.get("HOLDFAST_NODE", "alone"))


def kernel():
    time.sleep(lane_s * (float(clock.read_text() or 1) if clock.exists() else 1.0))


with hf.join() as run:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
    state = run.protect(model, torch.optim.AdamW(model.parameters(), lr=0.01), lanes=16, seed=1)
    for step in state.steps(steps):
        for lane in step.lanes:
            kernel()
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step.number + lane.index))
            lane.backward((model(x) - x).square().mean())
        step.commit()
        if run.broadcast(lambda: (folder / "enough").exists()):
            break
    name = os.environ.get("HOLDFAST_MEMBER", "alone")
    (folder / ("digest-" + name)).write_text(f"{step.number} {state.digest()}")
'''
CHECK = """\
#!{python}
import json, pathlib, sys, time
clock = pathlib.Path({folder!r}) / ("clock-" + sys.argv[1])
began = time.monotonic()
time.sleep({lane_s} * (float(clock.read_text()) if clock.exists() else 1.0))
took = 1000 * (time.monotonic() - began)
ok = took < {most_ms}
names = {{"gpu-compute": ["gpu0.product", "gpu0.differing", "gpu0.sustained", "gpu0.clock"]}}.get(
    sys.argv[2], ["memory.copy", "disk.write"])
print(json.dumps({{"ok": ok, "checks": [
    {{"name": name, "value": round(took, 1), "unit": "ms", "reference": {most_ms}, "ok": ok}}
    for name in names]}}))
sys.exit(0 if ok else 1)
"""
REBOOT = '#!/bin/sh\nrm -f "{folder}/clock-$1"\n'
"""What is wrong with the node is gone after it, as it often is."""
POLICY = """\
mode = "act"
scheduler = "slurm"
gpus_per_node = 1

[out]
nodes = 1
percent = 100

[breaker]
nodes = 3
percent = 100

[waits]
hold_min = 1
settle_min = 30
cool_down_min = 0.2

[commands]
check = "{folder}/check {{node}} {{part}}"
long_check = "{folder}/check {{node}} {{part}}"
reboot = "{folder}/reboot {{node}}"
"""
TOPOLOGY = """\
nodes:
  n[0-4]: {gpus: 1}
racks:
  rack-0: all
"""


class Show:
    """All that runs, in one folder."""

    def __init__(self, folder: Path, settings: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST", "SLURM"))}
        self.environment = {
            **kept,
            "HOLDFAST_HOME": str(self.home),
            "HOLDFAST_TOKEN": "a token for tests",
            "SLURM_CONF": str(settings),
        }
        self.marks: list[StoryMark] = []
        (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
        (folder / "topology.yaml").write_text(TOPOLOGY, encoding="utf-8")
        (folder / "control.toml").write_text(POLICY.format(folder=folder), encoding="utf-8")
        most_ms = LANE_S * 1000 * 1.5 + 30
        check = CHECK.format(python=sys.executable, folder=str(folder), lane_s=LANE_S, most_ms=most_ms)
        for name, text in (("check", check), ("reboot", REBOOT.format(folder=folder))):
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o755)

    @contextmanager
    def started(self, name: str, *command: str) -> Iterator["subprocess.Popen[bytes]"]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def mark(self, what: str) -> None:
        self.marks.append(StoryMark(at_ns=time.time_ns(), what=what, kind="fault"))

    def set_clock(self, node: str, times: float) -> None:
        part = self.folder / "clock.part"
        part.write_text(str(times), encoding="ascii")
        part.rename(self.folder / f"clock-{node}")

    @contextmanager
    def store(self) -> Iterator[Store]:
        with open_store(None, self.home) as store:
            HomeJournal(store, self.home, lambda damages: None).take_in()
            yield store

    def events(self, *kinds: str, run: str | None = RUN) -> list[Any]:
        with self.store() as store:
            return list(store.select(Selection(run=run, kinds=kinds)))

    def acts(self) -> list[Act]:
        with self.store() as store:
            return sorted(acts_in(store), key=lambda act: act.at_ns)

    def done(self, action: str, node: str) -> list[Act]:
        acts = [act for act in self.acts() if act.target == node and act.stage == "done"]
        return [act for act in acts if act.action == action]

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        def tell() -> str:
            logs = "\n".join(
                f"--- {path.name}\n{path.read_text(encoding='utf-8', errors='replace')[-2500:]}"
                for path in sorted(self.folder.glob("*.log"))
            )
            return f"{what}: not in time\n{self.acts()}\n{logs}"

        def slowly() -> Any:
            time.sleep(0.5)  # each look opens the record
            return condition()

        return until(slowly, tell, wait_s=WAIT_S)

    def members(self) -> tuple[str, ...]:
        opened = self.events("generation.opened")
        return opened[-1].members if opened else ()

    def scontrol(self, node: str) -> str:
        done = subprocess.run(
            ["scontrol", "--oneliner", "show", "node", node],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout


def node_of(member: str) -> str:
    return member.partition(".")[0]


@contextmanager
def running(show: Show) -> Iterator["subprocess.Popen[bytes]"]:
    """Slurm's job, Prometheus, the watch and control."""
    metrics, coordinator, prometheus = free_port(), free_port(), free_port()
    flags = (
        f"--nnodes 2:{MEMBERS} --nproc-per-node 1 --warm 0 --coordinator 127.0.0.1:{coordinator} --run {RUN}"
    )
    holdfast = (sys.executable, "-m", "holdfast")
    words = " ".join((*FIRST, *holdfast, "run", flags))
    run = f"exec {words} --metrics-port {metrics} --node-rank $SLURM_NODEID"
    srun = ("srun", f"--nodes={len(NODES)}", "--ntasks-per-node=1", "--no-kill", f"--job-name={RUN}")
    scrape = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "run", "static_configs": [{"targets": [f"127.0.0.1:{metrics}"]}]}],
    }
    (show.folder / "prometheus.json").write_text(json.dumps(scrape), encoding="utf-8")
    url = f"http://127.0.0.1:{prometheus}"
    with ExitStack() as stack:
        server = [
            "prometheus",
            f"--config.file={show.folder}/prometheus.json",
            f"--storage.tsdb.path={show.folder}/tsdb",
        ]
        stack.enter_context(daemon([*server, f"--web.listen-address=127.0.0.1:{prometheus}"], show.folder))
        script = f"{run} script.py {show.folder} {LANE_S} 100000"
        job = stack.enter_context(show.started("run", *srun, "bash", "-c", script))
        until(lambda: answers(f"{url}/-/ready"))
        show.until(lambda: len(show.members()) == MEMBERS, "four members")
        steady(show)
        look = ("--every", "3s", "--window", "3m", "--step", "1s")
        topology = ("--topology", str(show.folder / "topology.yaml"))
        listen = f"127.0.0.1:{free_port()}"
        watch = (*holdfast, "watch", RUN, "--prometheus", url, *topology, *look, "--listen", listen)
        stack.enter_context(show.started("watch", *watch))
        control = (*holdfast, "control", "--policy", str(show.folder / "control.toml"), "--every", "1s")
        stack.enter_context(show.started("control", *control))
        show.until(lambda: has_looked(f"http://{listen}/metrics"), "the watch's first look")
        show.until(lambda: [*show.home.glob("*.lead")], "control leads")
        yield job


def has_looked(url: str) -> bool:
    """Whether the watch has made an evaluation."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
        told = [line for line in lines if line.startswith("holdfast_watch_last_success_timestamp_seconds ")]
        return any(float(line.split()[1]) > 0 for line in told)
    return False


def steady(show: Show) -> None:
    began_ns = time.time_ns()

    def is_so() -> bool:
        return time.time_ns() - began_ns > STEADY_S * 1e9 and steps_since(show, began_ns) > 60

    show.until(is_so, "steady steps")


def steps_since(show: Show, at_ns: int) -> int:
    return sum(one.occurred_ns > at_ns for one in show.events("step.committed"))


def test_a_slow_node_is_dealt_with_from_the_first_lane_to_its_return(
    tmp_path: Path, slurm_of: Callable[..., AbstractContextManager[Path]]
) -> None:
    with slurm_of(NODES) as settings:
        show = Show(tmp_path, settings)
        with running(show) as job:
            node = play(show)
            (tmp_path / "enough").touch()
            show.until(lambda: job.poll() is not None, "the end of the run")
    judge(show, node)
    if path := os.environ.get(PICTURE):
        Path(path).write_text(picture(show, node), encoding="utf-8")


def play(show: Show) -> str:
    """What is done to the node; everything else is done by what is being shown. Which node it was."""
    node = node_of(show.members()[-1])
    show.mark(f"{node} becomes slow: {SLOW:g} times as long for everything")
    show.set_clock(node, SLOW)
    show.until(lambda: show.done("rebalance", node), "lanes moved")
    show.mark(f"{node} becomes worse: {WORSE:g} times")
    show.set_clock(node, WORSE)
    show.until(lambda: show.done("migrate", node), "migrated to the spare")
    show.until(lambda: node not in map(node_of, show.members()), "gone from the run")
    show.until(lambda: show.done("drain-when-done", node), "drained")
    assert "DRAIN" in show.scontrol(node)
    assert "Reason=holdfast: " in show.scontrol(node)
    show.until(lambda: show.done("reboot", node), "rebooted after a check that failed")
    show.until(lambda: show.done("restore", node), "restored after a check that passed")
    show.until(lambda: "DRAIN" not in show.scontrol(node), "back in Slurm")
    at_ns = time.time_ns()
    show.until(lambda: len(show.members()) == MEMBERS and steps_since(show, at_ns) > 20, "full size")
    return node


def judge(show: Show, node: str) -> None:
    acts = [act.action for act in show.acts() if act.stage == "done" and act.target == node]
    wanted = ["rebalance", "migrate", "drain-when-done", "reboot", "restore"]
    assert [*dict.fromkeys(acts)] == wanted
    assert not [act for act in show.acts() if act.action == "call-a-person"]
    moved = next(act for act in show.acts() if act.action == "migrate")
    assert moved.decision is not None
    assert len(moved.decision.alternatives) > 2
    assert "GPU-hours" in moved.decision.reason
    failed = [act for act in show.acts() if act.action == "restore" and act.stage == "failed"]
    assert [act.target for act in failed] == [node]
    digests = {path.read_text(encoding="ascii") for path in show.folder.glob("digest-n*")}
    (told,) = digests
    step, digest = told.split()
    assert reference(show, int(step)) == digest
    ended = show.events("run.ended")
    assert [one.outcome for one in ended] == ["completed"]


def reference(show: Show, steps: int) -> str:
    """By one member alone, to which nothing happened."""
    alone = show.folder / "alone"
    alone.mkdir()
    environment = {**show.environment, "HOLDFAST_HOME": str(alone / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(show.folder / "script.py"), str(alone), "0", str(steps)]
    subprocess.run(command, env=environment, check=True, timeout=WAIT_S, capture_output=True)
    return (alone / "digest-alone").read_text(encoding="ascii").split()[1]


def picture(show: Show, node: str) -> str:
    marks = [*show.marks, *(acted(act) for act in show.acts() if is_first(act, show.acts()))]
    marks += [
        StoryMark(
            at_ns=one.at_ns,
            what=f"diagnosis {one.incident.name} is {one.state}: {one.incident.cause.subject}",
            detail=one.incident.cause.title,
            kind="noticed",
        )
        for one in restored(show.events("incident.diagnosed"))
    ]
    marks += [
        StoryMark(
            at_ns=one.occurred_ns, what=f"{one.subject}: {one.fault}", detail=one.detail, kind="noticed"
        )
        for one in show.events("fault.observed")
    ]
    marks += [
        StoryMark(
            at_ns=one.occurred_ns,
            what=f"the run: {one.action} {one.subject}",
            detail=one.reason,
            kind="other",
        )
        for one in show.events("action.taken")
        if one.action in ("rebalance", "drain", "migrate", "restore")
    ]
    lede = (
        f"One of four nodes, {node}, became slow and then slower. The run moved lanes off it. Control priced "
        "what could be done, moved the run to its spare, drained the node in Slurm, had it checked, rebooted "
        "and checked again, and gave it back. The weights are the same bits as those of a run to which "
        "nothing happened."
    )
    commits = [one.occurred_ns for one in show.events("step.committed")]
    shown = [one for one in marks if one.at_ns <= max(commits)]
    return render("A slow node, and nobody there", lede, commits, shown)


def is_first(act: Act, acts: list[Act]) -> bool:
    """Not the same once more: lanes are left to the run again and again while it has them to move."""
    before = [one for one in acts if one.at_ns < act.at_ns and one.target == act.target]
    return act.action != "rebalance" or not [one for one in before if one.action == "rebalance"]


def acted(act: Act) -> StoryMark:
    is_priced = act.decision is not None and act.action in ("rebalance", "migrate")
    why = act.decision.reason if act.decision is not None and is_priced else ""
    told = f"control: {act.action} {act.target}: {act.outcome or act.stage}"
    return StoryMark(at_ns=act.changed_ns, what=told, detail=why, kind="done")
