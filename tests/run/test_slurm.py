"""`srun holdfast run` in place of torchrun, under a real Slurm with two nodes."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest
from launching import descendants
from waiting import free_port, until

from holdfast.record.events import Event, GenerationOpened, MemberLost, RunEnded
from holdfast.record.journal import Damage, read_directory
from holdfast.run.endpoint import find_endpoint

pytestmark = pytest.mark.slow

POLL_INTERVAL_S = 0.02
LANES = 8
STEPS = 20
HOLDFAST = (sys.executable, "-m", "holdfast", "run")
ON_BOTH_NODES = ("srun", "--nodes=2", "--ntasks-per-node=1", "--kill-on-bad-exit=0")

Kind = TypeVar("Kind", bound=Event)

PLAIN = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
PROTECTED = f'''
"""MEMBERS: train in so many of them, and tell what comes of it in files WHAT-MEMBER."""
import os, pathlib, sys, time
import torch
import holdfast.train as hf


def tell(what, text):
    pathlib.Path(what + "-" + os.environ.get("HOLDFAST_MEMBER", "alone")).write_text(text)


def wait_for(pattern, count):
    while len(list(pathlib.Path().glob(pattern))) < count:
        time.sleep({POLL_INTERVAL_S})


with hf.join() as run:
    tell("started", "")
    wait_for("started-*", int(sys.argv[1]))  # not before: a node that joins late is only taken in after that
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
    state = run.protect(model, torch.optim.AdamW(model.parameters(), lr=0.01), lanes={LANES}, seed=1)
    computed = 0
    for step in state.steps({STEPS}):
        for lane in step.lanes:
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step.number + lane.index))
            lane.backward((model(x) - x).square().mean())
            computed += 1
        if step.number == {STEPS // 2}:
            tell("halfway", str(os.getpid()))
            wait_for("go", 1)
        step.commit()
    tell("digest", state.digest())
    tell("lanes", str(computed))
'''
ENDLESS = f'''
"""STEPS: at most so many, until the file `enough` is there."""
import os, pathlib, sys, time
import torch
import holdfast.train as hf

member = os.environ.get("HOLDFAST_MEMBER", "alone")
pathlib.Path("started-" + member).write_text(str(os.getpid()))
with hf.join() as run:
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 8)
    state = run.protect(model, torch.optim.AdamW(model.parameters(), lr=0.01), lanes={LANES}, seed=1)
    for step in state.steps(int(sys.argv[1])):
        for lane in step.lanes:
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step.number + lane.index))
            lane.backward((model(x) - x).square().mean())
            time.sleep(0 if member == "alone" else {POLL_INTERVAL_S})
        step.commit()
        if run.broadcast(lambda: pathlib.Path("enough").exists()):
            break
    pathlib.Path("digest-" + member).write_text(f"{{step.number}} {{state.digest()}}")
'''
CONTRIB = Path(__file__).parents[2] / "contrib" / "slurm"
THREE_NODES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


class Job:
    """One use of the cluster, in a folder: the script, its and Slurm's output, and Holdfast's home."""

    def __init__(self, folder: Path, settings: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        others = ("HOLDFAST", "SLURM")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        self.environment = {
            **kept,
            "HOLDFAST_HOME": str(self.home),
            "HOLDFAST_TOKEN": "a token for tests",
            "SLURM_CONF": str(settings),
        }

    @contextmanager
    def started(self, *command: str, script: str) -> Iterator["subprocess.Popen[bytes]"]:
        (self.folder / "script.py").write_text(script, encoding="utf-8")
        with (self.folder / "output").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def run(self, *command: str, script: str) -> int:
        with self.started(*command, script=script) as process:
            return self.wait(process)

    def ask(self, *command: str) -> str:
        """Ask Slurm with one of its commands."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def wait(self, process: "subprocess.Popen[bytes]") -> int:
        self.until(lambda: process.poll() is not None)
        return process.wait()

    def let_go(self) -> None:
        """Let the script continue when it is halfway through."""
        (self.folder / "go").touch()

    def told(self, what: str) -> dict[str, str]:
        """The values that members reported, by member."""
        paths = self.folder.glob(f"{what}-*")
        return {path.name.removeprefix(f"{what}-"): path.read_text(encoding="utf-8") for path in paths}

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, lambda: self.output)

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(encoding="utf-8")

    @property
    def logs(self) -> str:
        """The logs of this job and of those that it has submitted."""
        return "\n".join(path.read_text(encoding="utf-8") for path in self.folder.glob("*out*"))

    def events(self, kind: type[Kind]) -> list[Kind]:
        read = [item for item in read_directory(self.home / "journal", {}) if not isinstance(item, Damage)]
        return [event for event in read if isinstance(event, kind)]


@pytest.fixture
def job(tmp_path: Path, slurm: Path) -> Job:
    return Job(tmp_path, slurm)


@pytest.fixture(name="free_port")
def give_free_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the script alone, with neither Slurm nor `holdfast run`."""
    alone = Job(tmp_path_factory.mktemp("alone"), Path(os.devnull))
    alone.let_go()
    assert alone.run(sys.executable, "script.py", "1", script=PROTECTED) == 0, alone.output
    return alone.told("digest")["alone"]


def parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return int(stat.rpartition(")")[2].split()[1])


@pytest.mark.soak
def test_the_nodes_of_a_job_make_one_run(job: Job, free_port: int, digest: str) -> None:
    job.let_go()
    shape = ("--nnodes", "2", "--nproc-per-node", "1", "--warm", "0")
    flags = (*shape, "--coordinator", f"127.0.0.1:{free_port}")
    code = job.run(*ON_BOTH_NODES, *HOLDFAST, *flags, "script.py", "2", script=PROTECTED)
    assert code == 0, job.output
    lanes = [int(computed) for computed in job.told("lanes").values()]
    assert lanes == [STEPS * LANES // 2] * 2
    assert [*job.told("digest").values()] == [digest] * 2


def test_the_loss_of_a_task_leaves_the_other_going(job: Job, free_port: int, digest: str) -> None:
    flags = ("--run", "goes-on", "--nnodes", "1:2", "--coordinator", f"127.0.0.1:{free_port}", "--warm", "0")
    with job.started(*ON_BOTH_NODES, *HOLDFAST, *flags, "script.py", "2", script=PROTECTED) as srun:
        job.until(lambda: len([pid for pid in job.told("halfway").values() if pid]) == 2)
        launchers = {member: parent(parent(int(pid))) for member, pid in job.told("halfway").items()}
        holder = find_endpoint(job.home, "goes-on").launcher
        (lost,) = [member for member, launcher in launchers.items() if launcher != holder]
        os.kill(launchers[lost], signal.SIGKILL)
        job.until(lambda: " lost " in job.output)
        job.let_go()
        code = job.wait(srun)
    assert code == 128 + signal.SIGKILL, job.output  # srun tells the worst of its tasks
    (survivor,) = launchers.keys() - {lost}
    assert job.told("digest") == {survivor: digest}
    assert [event.subject for event in job.events(MemberLost)] == [lost]
    assert [{*event.members} for event in job.events(GenerationOpened)][-2:] == [
        {survivor, lost},
        {survivor},
    ]
    assert [event.outcome for event in job.events(RunEnded)] == ["completed"]


def test_a_batch_script_names_its_first_node(job: Job, free_port: int) -> None:
    batch = f"""#!/bin/bash
export HOLDFAST_TOKEN=$(openssl rand -hex 16)
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun {shlex.join(HOLDFAST)} --nnodes "$SLURM_JOB_NUM_NODES" --coordinator "$first:{free_port}" script.py
"""
    (job.folder / "batch.sh").write_text(batch, encoding="utf-8")
    flags = ("--wait", "--nodes=2", "--ntasks-per-node=1", "--output=output", "--open-mode=append")
    assert job.run("sbatch", *flags, "batch.sh", script=PLAIN) == 0, job.output
    ranks = [line.partition("rank ")[2] for line in job.output.splitlines() if "rank " in line]
    assert sorted(ranks) == ["0 of 2", "1 of 2"]


# ---- a node is lost, and another job adds one --------------------------------------------------------------


@pytest.mark.soak
def test_a_node_is_lost_the_run_shrinks_a_job_brings_another_and_the_run_grows(
    tmp_path: Path, free_port: int, slurm_of: Callable[..., AbstractContextManager[Path]]
) -> None:
    with slurm_of(THREE_NODES) as settings:
        job = elastic(tmp_path, settings, free_port)
        flags = ("--nodes=2", "--job-name=elastic", "--output=output", "--open-mode=append")
        words = ("--nproc-per-node", "1", "--warm", "0", "script.py", "100000")
        assert job.run("sbatch", *flags, str(CONTRIB / "run.sh"), *words, script=ENDLESS) == 0, job.output
        until(lambda: len(members(job)) == 2, lambda: job.logs)
        (lost,) = members(job) - {"n0.0"}
        end_node(THREE_NODES[1], settings, int(job.told("started")[lost]))
        until(lambda: members(job) == {"n0.0"}, lambda: job.logs)
        # What slurmctld does by itself when SlurmdTimeout is over.
        job.ask("scontrol", "update", f"nodename={THREE_NODES[1]}", "state=down", "reason=not responding")
        until(lambda: len(members(job)) == 2, lambda: job.logs)
        (tmp_path / "enough").touch()
        until(lambda: not job.ask("squeue", "--noheader"), lambda: job.logs)
        assert " ExitCode=0:0" in job.ask("scontrol", "--oneliner", "show", "job", "1"), job.logs
    told = {digest for member, digest in job.told("digest").items() if member != "alone"}
    assert len(told) == 1, job.logs
    steps, digest = told.pop().split()
    alone = Job(tmp_path / "alone", Path(os.devnull))
    alone.folder.mkdir()
    assert alone.run(sys.executable, "script.py", steps, script=ENDLESS) == 0, alone.output
    assert alone.told("digest")["alone"] == f"{steps} {digest}"
    assert [event.outcome for event in job.events(RunEnded)] == ["completed"]
    assert [*tmp_path.glob("elastic-join-1-*.out")]


IN_TURN = f"""\
#!/bin/bash
# All nodes are this machine here, and the first launcher would start the coordinator.
until [[ -z ${{SLURM_STEP_ID:-}} ]] || grep -q "coordinator at" output; do sleep {POLL_INTERVAL_S}; done
exec {sys.executable} -m holdfast "$@"
"""


def elastic(folder: Path, settings: Path, port: int) -> Job:
    job = Job(folder, settings)
    command = folder / "holdfast"
    command.write_text(IN_TURN, encoding="utf-8")
    command.chmod(0o755)
    own = {"HOLDFAST": str(command), "HOLDFAST_NNODES": "1:2", "HOLDFAST_PORT": str(port)}
    job.environment |= {**own, "HOLDFAST_LOOK_S": "1"}
    return job


def members(job: Job) -> set[str]:
    """The members of the present generation."""
    opened = job.events(GenerationOpened) if (job.home / "journal").exists() else []
    return {*opened[-1].members} if opened else set()


def end_node(node: str, settings: Path, member: int) -> None:
    """End a node as in a power cut: Slurm's processes first, so that none reports the end of the others."""
    launcher = parent(parent(member))
    for pid in (slurmd(node, settings), parent(launcher), *descendants(launcher)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def slurmd(node: str, settings: Path) -> int:
    wanted = f"-f\0{settings}\0-N\0{node}\0".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().endswith(wanted):
                return int(path.parent.name)
    raise AssertionError(f"no slurmd of {node}")
