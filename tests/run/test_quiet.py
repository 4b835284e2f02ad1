"""Scripts that never join and make no progress: which workers are named, when all are started again, and
that a job which is only quiet is left alone.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Start
from memory_cluster import Cluster
from quantity import sampled

from holdfast.record.events import ActionTaken, FaultObserved, MemberLost, RunEnded
from holdfast.run.happenings import FromNode, Record
from holdfast.run.kernel_view import KernelView
from holdfast.run.quiet import LOOKS
from holdfast.run.stacks import Stack, StackFrame
from holdfast.run.waits import HUNG_S_MIN, IDLE_S_MAX, LOCATE_S, QUIET_LOOK_S
from holdfast.run.wire import Located, NodeBeat

SECOND = 10**9
HANG_AFTER_S = 4.0
LATE_S = QUIET_LOOK_S + LOCATE_S + 2
"""A look may have its effect this much later than due."""

MAIN = StackFrame("/home/me/train.py", 90, "<module>", is_own=True, source="main()")
STEP = StackFrame("/home/me/train.py", 50, "step", is_own=True, source="loss.backward()")
WORK = StackFrame("/home/me/train.py", 30, "prepare", is_own=True, source="count += 1")
LOCK = StackFrame("/home/me/train.py", 40, "save", is_own=True, source="with second:")
BACKWARD = StackFrame("/v/site-packages/torch/autograd/graph.py", 800, "_engine_run_backward")
BARRIER = StackFrame("/v/site-packages/torch/distributed/distributed_c10d.py", 4800, "barrier")
LOADER = StackFrame("/v/site-packages/torch/utils/data/dataloader.py", 700, "__next__")

Sees = Callable[[int], Located]


def worker(
    name: str,
    *stacks: Stack,
    share: float = 0.0,
    moves: bool = False,
    wakes: bool = False,
    waits_for: str = "",
) -> Sees:
    """What a look sees of a worker that stays in these calls. share: of a processor that it uses. moves: it
    is in another line each time. wakes: it waits for something new each time.
    """

    def sees(now_ns: int) -> Located:
        seen = KernelView(
            state="R" if share else "S",
            cpu_s=share * now_ns / SECOND,
            waits_for=waits_for,  # type: ignore[arg-type]
        )
        caller = StackFrame("/home/me/train.py", now_ns // SECOND if moves else 60, "epoch", is_own=True)
        found = tuple((*stack, caller, MAIN) for stack in stacks)
        place = next((frame.place for frame in found[0] if frame.is_own), "") if found else ""
        return Located(member=name, place=place, stacks=found, seen=seen, was_woken=wakes)

    return sees


def in_backward(name: str, *, wakes: bool = False) -> Sees:
    return worker(name, (BACKWARD, STEP), waits_for="lock", wakes=wakes)


def up(slots: int = 2, *, hang_after_s: float | None = None, may_join: bool = False) -> Cluster:
    made = Cluster(joins=False, slots=slots, hang_after_s=hang_after_s, may_join=may_join)
    made.join_node("n0")
    made.run(lambda: len(made.processes) == slots)
    made.deliver_all("agent")
    return made


def pass_s(made: Cluster, seconds: float) -> None:
    """Let time pass while agents answer."""
    until_ns = made.now_ns + round(seconds * SECOND)
    seen = 0
    while made.now_ns < until_ns:
        new, seen = made.effects[seen:], len(made.effects)
        if any(isinstance(effect, Record) and isinstance(effect.event, ActionTaken) for effect in new):
            return
        made.wait(min(until_ns, made.now_ns + SECOND // 4))
        made.deliver_all("agent")


def show(made: Cluster, *seen: Sees) -> None:
    for process, sees in zip(made.processes.values(), seen, strict=True):
        process.sees = sees


def told(made: Cluster) -> str:
    return next((text for text in made.said if "no worker has made progress" in text), "")


def test_a_rank_that_never_comes_is_named_early_and_all_are_started_again_late() -> None:
    made = up(3)
    loader = worker("n0.1", (LOADER, WORK), waits_for="poll")
    show(made, in_backward("n0.0"), loader, in_backward("n0.2"))
    pass_s(made, 3 * QUIET_LOOK_S + LATE_S)
    assert "n0.0, n0.2 wait in _engine_run_backward() at train.py:50 for n0.1" in told(made)
    assert "n0.1 waits for its data loader, which does not return" in told(made)
    assert "started again after 1800 s (--hang-after)" in told(made)
    pass_s(made, IDLE_S_MAX - 4 * QUIET_LOOK_S - LATE_S)
    assert not made.recorded(ActionTaken)
    pass_s(made, 2 * QUIET_LOOK_S + LATE_S)
    (fault,) = made.recorded(FaultObserved)
    assert (fault.subject, fault.fault) == ("n0.1", "data loader stuck")
    assert "n0.0: meeting, at train.py:50" in fault.detail
    assert [lost.subject for lost in made.recorded(MemberLost)] == ["n0.1"]
    (restart,) = made.recorded(ActionTaken)
    assert restart.action == "restart"
    assert "n0.1 holds the others up" in restart.reason
    made.run(lambda: len(made.processes) == 3)
    assert {*made.processes} == {"n0.0+1", "n0.1+1", "n0.2+1"}


def test_a_lock_that_can_never_be_released_needs_no_patience() -> None:
    made = up()
    show(made, in_backward("n0.0"), worker("n0.1", (LOCK,), (LOCK,), waits_for="lock"))
    pass_s(made, HUNG_S_MIN + 2 * LATE_S)
    (fault,) = made.recorded(FaultObserved)
    assert (fault.subject, fault.fault) == ("n0.1", "deadlock on a lock")


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(
            (worker("n0.0", (WORK,), share=1.0, moves=True), worker("n0.1", (BARRIER, STEP))),
            id="rank 0 works",
        ),
        pytest.param((in_backward("n0.0", wakes=True), in_backward("n0.1", wakes=True)), id="steps"),
        pytest.param(
            (worker("n0.0", (WORK,), share=1.0), in_backward("n0.1", wakes=True)), id="one is slow, and steps"
        ),
        pytest.param(
            (worker("n0.0", (WORK,), share=1.0), worker("n0.1", (WORK,), share=1.0)), id="all compute"
        ),
        pytest.param((worker("n0.0", (WORK,)), worker("n0.1", (WORK,))), id="all wait for something outside"),
        pytest.param((in_backward("n0.0"), in_backward("n0.1")), id="no worker is to blame"),
        pytest.param((worker("n0.0"), worker("n0.1", share=1.0)), id="nothing can be read"),
    ],
)
def test_a_job_that_is_only_quiet_is_left_alone(seen: tuple[Sees, ...]) -> None:
    made = up()
    show(made, *seen)
    pass_s(made, 2 * IDLE_S_MAX)
    assert not made.recorded(FaultObserved)
    assert not made.recorded(ActionTaken)


def test_what_is_printed_is_progress() -> None:
    made = up(hang_after_s=60.0)
    show(made, in_backward("n0.0"), worker("n0.1", (WORK,), share=1.0))
    for _ in range(10):
        pass_s(made, 50)
        made.tell(FromNode("n0", NodeBeat(node="n0", has_printed=True)))
    assert not made.recorded(ActionTaken)
    pass_s(made, 60 + 60 / LOOKS + LATE_S)
    assert [event.fault for event in made.recorded(FaultObserved)] == ["endless loop"]


def test_a_stand_that_ends_by_itself_is_told_and_teaches_patience() -> None:
    made = up()
    show(made, in_backward("n0.0"), worker("n0.1", (WORK,), share=1.0))
    pass_s(made, 0.9 * IDLE_S_MAX)
    show(made, in_backward("n0.0", wakes=True), in_backward("n0.1", wakes=True))
    pass_s(made, 2 * LATE_S)
    assert any("the workers make progress again, after" in text for text in made.said)
    show(made, in_backward("n0.0"), worker("n0.1", (WORK,), share=1.0))
    pass_s(made, 2 * IDLE_S_MAX)
    assert not made.recorded(ActionTaken)


def test_no_worker_is_blamed_if_all_wait_and_the_users_bound_still_counts() -> None:
    made = up(hang_after_s=20.0)
    barrier = worker("n0.1", (BARRIER, WORK), waits_for="lock")
    show(made, in_backward("n0.0"), barrier)
    pass_s(made, 20 + LATE_S)
    assert "barrier() at train.py:30, for each other" in told(made)
    (fault,) = made.recorded(FaultObserved)
    assert (fault.subject, fault.fault) == ("", "no progress")
    assert not made.recorded(MemberLost)
    assert made.recorded(ActionTaken)


def test_a_script_that_may_still_join_has_its_time() -> None:
    made = up(1, hang_after_s=5.0, may_join=True)
    show(made, worker("n0.0", (WORK,), share=1.0))
    pass_s(made, 5 * HUNG_S_MIN)
    assert not made.recorded(ActionTaken)
    never = up(1, hang_after_s=5.0)
    show(never, worker("n0.0", (WORK,), share=1.0))
    pass_s(never, LATE_S)
    assert [event.fault for event in never.recorded(FaultObserved)] == ["endless loop"]


def test_most_ranks_in_one_place_are_not_to_blame() -> None:
    """As on a GPU, where they wait in a line of the script's own."""
    made = up(3, hang_after_s=20.0)
    item = StackFrame("/home/me/train.py", 55, "step", is_own=True, source="loss.item()")
    waiting = [worker(name, (item,), share=1.0) for name in ("n0.0", "n0.2")]
    show(made, waiting[0], worker("n0.1", (LOADER, WORK), waits_for="poll"), waiting[1])
    pass_s(made, HUNG_S_MIN + LATE_S)
    assert [event.subject for event in made.recorded(FaultObserved)] == ["n0.1"]


def test_if_torch_gives_up_first_its_failure_names_who_was_waited_for() -> None:
    made = up()
    show(made, in_backward("n0.0"), worker("n0.1", (LOADER, WORK), waits_for="poll"))
    pass_s(made, 600)
    made.leave("n0.0", code=1, complaint="Traceback:\nRuntimeError: Timed out waiting for recv")
    made.run(lambda: bool(made.recorded(ActionTaken)))
    (restart,) = made.recorded(ActionTaken)
    assert restart.reason.startswith("n0.0 failed (exit 1); before that n0.0 waits in")
    assert "for n0.1" in restart.reason


def test_one_that_is_stopped_is_waited_for_a_minute_and_all_of_them_for_ever() -> None:
    made = up()
    made.processes["n0.1"].is_paused = True
    pass_s(made, HUNG_S_MIN - 2)
    assert not made.recorded(ActionTaken)
    made.processes["n0.0"].is_paused = True
    pass_s(made, 2 * IDLE_S_MAX)
    assert not made.recorded(ActionTaken)
    made.processes["n0.0"].is_paused = False
    pass_s(made, 5)
    assert [(lost.subject, lost.reason) for lost in made.recorded(MemberLost)] == [
        ("n0.1", "stopped by SIGSTOP")
    ]


# ---- with torch --------------------------------------------------------------------------------------------

JOB = """
import os, sys, threading, time

ACT = "{act}"
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if ATTEMPT:  # that it is started again is what counts
    print("done, attempt", ATTEMPT)
    sys.exit()

import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

IS_ODD = os.environ["RANK"] == "1"
PAUSE_S = 0.5 if ACT == "quiet" else 0.0


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if ACT == "loader" and IS_ODD and index == 40:
            time.sleep(3600)
        return torch.ones(4)


def spin():
    count = 0
    while True:
        count += 1


first, second, flushing = threading.Lock(), threading.Lock(), threading.Event()


def flush():
    with second:
        flushing.set()
        with first:
            pass


def save():
    with first:
        threading.Thread(target=flush, daemon=True).start()
        flushing.wait()
        with second:
            pass


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1 if ACT == "loader" else 0)
for number, batch in enumerate(loader):
    if IS_ODD and number == 8:
        if ACT == "loop":
            spin()
        elif ACT == "lock":
            save()
        elif ACT == "stop":
            os.kill(os.getpid(), 19)
    time.sleep(PAUSE_S if os.environ["RANK"] == "0" else 0)
    model(batch).sum().backward()
    optimizer.step()
print("done, attempt", ATTEMPT)
dist.destroy_process_group()
"""
KINDS = {
    "loop": ("endless loop", "n0.1 computes at script.py:", "in spin()"),
    "loader": (
        "data loader stuck",
        "n0.1 waits for its data loader, which does not return",
        "batch in enumerate(loader)",
    ),
    "lock": ("deadlock on a lock", "for a lock that is never released", "`with first:`"),
    "stop": ("stopped", "stopped by SIGSTOP", "state T"),
}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    starts = Start(tmp_path)
    yield starts
    for launched in starts.launched:
        launched.close()


@pytest.mark.slow
@pytest.mark.parametrize("act", sampled([*KINDS], ["loop"]))
def test_a_job_that_stands_is_explained_and_started_again(start: Start, act: str) -> None:
    fault, *words = KINDS[act]
    job = start(
        "--nproc-per-node",
        "2",
        "--hang-after",
        str(HANG_AFTER_S),
        "--run",
        "ddp",
        script=JOB.replace("{act}", act),
    )
    assert job.wait() == 0, job.err
    # On a busy machine a start may take longer than the bound, too, and is then tried again.
    assert all(re.fullmatch(r"\[n0\.[01]\+([1-3])\] done, attempt \1", line) for line in job.out), job.out
    found, *_ = start.events(FaultObserved)
    assert (found.subject, found.fault) == ("n0.1", fault), job.err
    assert found.onset_ns is not None
    assert all(word in found.detail for word in words), found.detail
    if act != "stop":
        assert "n0.0 waits in backward() at script.py:" in "\n".join(job.err)
    assert {event.action for event in start.events(ActionTaken)} == {"restart"}
    assert {event.outcome for event in start.events(RunEnded)} == {"failed", "completed"}


@pytest.mark.soak
def test_a_job_that_prints_nothing_is_left_alone_as_long_as_it_steps(start: Start) -> None:
    """For four times as long as a job may stand still."""
    job = start(
        "--nproc-per-node", "2", "--hang-after", str(HANG_AFTER_S), script=JOB.replace("{act}", "quiet")
    )
    assert job.wait() == 0, job.err
    assert sorted(job.out) == ["[n0.0] done, attempt 0", "[n0.1] done, attempt 0"]
    assert not start.events(FaultObserved)


@pytest.mark.slow
@pytest.mark.parametrize("has_path", [False, True])
def test_a_worker_finds_its_environment_as_without_holdfast(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_path: bool
) -> None:
    """So do processes that it starts; and the user's own `sitecustomize` is run."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os; os.environ['SITE'] = 'mine'\n", encoding="utf-8")
    script = "import os, sys; print([os.environ.get('PYTHONPATH'), os.environ.get('SITE')], *sys.path)"
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if has_path:
        monkeypatch.setenv("PYTHONPATH", str(own))
    job = start(script=script)
    assert job.wait() == 0
    (line,) = job.out
    found = str([str(own), "mine"] if has_path else [None, None])
    assert line.startswith(f"[n0.0] {found} "), line
    assert "startup" not in line


def test_a_rank_that_computes_for_hours_is_told_of_and_left_alone() -> None:
    """It may build an index, and the script may have given torch a long enough timeout."""
    made = up(2)
    show(made, in_backward("n0.0"), worker("n0.1", (WORK,), share=1.0))
    pass_s(made, 5 * IDLE_S_MAX)
    assert "it may be at work, so all are left alone until torch gives up" in told(made)
    assert not made.recorded(ActionTaken)
