"""The faults that the nanoGPT port is put through, each made for real in a run of its own."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from port_run import Ended, PortRun, Scale
from unruly import Act, Plan, Spot

from holdfast.cli.run import command as run_command
from holdfast.record.events import CheckpointFailed, MemberLost

PAUSE_S = 2.0
HANG_AFTER_S = 8
SMALL_DISK = "256k"
"""Less than one checkpoint of the port."""
VICTIM = "n0.1"
TWO_NODES = ("--nodes", 2, "--nproc-per-node", 2)


@dataclass(frozen=True, kw_only=True)
class Played:
    """A run that had its fault. onset_ns: when that was made, by the wall clock."""

    ended: Ended
    onset_ns: int


Play = Callable[[Path, Scale], Played]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong. ends: the run is meant to fail, because going on would hide a mistake.

    needs: a flag of `holdfast run` without which it cannot be tried. settings: of the script, where they
    change the bits.
    """

    name: str
    what: str
    play: Play
    ends: bool = False
    needs: str = ""
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def is_possible(self) -> bool:
        return not self.needs or self.needs in _flags()


@cache
def _flags() -> frozenset[str]:
    return frozenset(name for option in run_command.params for name in option.opts)


# ---- how a fault is made -------------------------------------------------------------------------------


def planned(*faults: str, flags: Sequence[object] = (), settings: dict[str, object] | None = None) -> Play:
    """A fault inside Holdfast's own code, as `--chaos` makes it: each is one line of its plan."""

    def play(folder: Path, scale: Scale) -> Played:
        plan = folder / "plan.toml"
        tables = (f"step = {scale.strike_step}, {fault}".replace(", ", "\n") for fault in faults)
        plan.write_text("".join(f"[[fault]]\n{table}\n" for table in tables), encoding="utf-8")
        all_flags = (*(flags or scale.one_node), "--chaos", plan)
        with PortRun(folder, scale, all_flags, settings=settings) as run:
            ended = run.ended()
        return Played(ended=ended, onset_ns=_first_loss_ns(ended))

    return play


def signalled(strike: Callable[[PortRun], None], settings: dict[str, object] | None = None) -> Play:
    """A signal from outside."""

    def play(folder: Path, scale: Scale) -> Played:
        with PortRun(folder, scale, scale.one_node, settings=settings) as run:
            run.await_strike()
            onset_ns = time.time_ns()
            strike(run)
            return Played(ended=run.ended(), onset_ns=onset_ns)

    return play


def scripted(
    act: Act,
    spot: Spot,
    *,
    member: str = VICTIM,
    again: bool = False,
    flags: Sequence[object] = (),
) -> Play:
    """Something that the script itself does. member: empty for rank 0."""

    def play(folder: Path, scale: Scale) -> Played:
        plan = Plan(act=act, spot=spot, step=scale.strike_step, member=member, again=again, marks=str(folder))
        with PortRun(folder, scale, (*scale.one_node, *flags), unruly=plan) as run:
            ended = run.ended()
            return Played(ended=ended, onset_ns=run.struck_ns() or _first_loss_ns(ended))

    return play


def resumed(strike: Callable[[PortRun], None]) -> Play:
    """The run is ended, and started again under its name; the seconds are those from the second start."""

    def play(folder: Path, scale: Scale) -> Played:
        with PortRun(folder, scale, scale.one_node) as run:
            run.await_strike()
            strike(run)
            run.ended()
        with PortRun(folder, scale, scale.one_node) as run:
            return Played(ended=run.ended(), onset_ns=run.began_ns)

    return play


def full_disk(folder: Path, scale: Scale) -> Played:
    """Checkpoints go to a file system of their own that is too small, in a mount namespace of the run."""
    disk = folder / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={SMALL_DISK} tmpfs "$0" && exec "$@"'
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    prefix = [*namespace, "sh", "-c", mount, str(disk)]
    with PortRun(folder, scale, (*scale.one_node, "--checkpoints", disk), prefix=prefix) as run:
        ended = run.ended()
    failed = [event.occurred_ns for event in ended.events if isinstance(event, CheckpointFailed)]
    return Played(ended=ended, onset_ns=min(failed, default=run.began_ns))


def failing_save(folder: Path, scale: Scale) -> Played:
    """A directory stands where rank 0 wants to write ckpt.pt."""
    (folder / "out" / "ckpt.pt.new").mkdir(parents=True)
    with PortRun(folder, scale, scale.one_node) as run:
        ended = run.ended()
    return Played(ended=ended, onset_ns=_first_loss_ns(ended))


def _first_loss_ns(ended: Ended) -> int:
    lost = [event for event in ended.events if isinstance(event, MemberLost)]
    return min((event.onset_ns or event.occurred_ns for event in lost), default=0)


# ---- what signals hit ----------------------------------------------------------------------------------


def kill_all(run: PortRun) -> None:
    for pid in [run.pid_of(member) for member in run.members()]:
        os.kill(pid, signal.SIGKILL)


def pause(run: PortRun) -> None:
    pid = run.pid_of(VICTIM)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(PAUSE_S)
    os.kill(pid, signal.SIGCONT)


def stop_member(run: PortRun) -> None:
    os.kill(run.pid_of(VICTIM), signal.SIGSTOP)


def kill_agent(run: PortRun) -> None:
    os.kill(run.agent_of(VICTIM), signal.SIGKILL)


def stop_agent(run: PortRun) -> None:
    os.kill(run.agent_of(VICTIM), signal.SIGSTOP)


def kill_launcher(run: PortRun) -> None:
    run.process.kill()


def interrupt(run: PortRun) -> None:
    run.process.send_signal(signal.SIGINT)


def in_moment(moment: str, rank: int = 1) -> str:
    return f'moment = "{moment}", rank = {rank}'


COMPILED: dict[str, object] = {"compile": True}
LONG: dict[str, object] = {"max_iters": 250, "lr_decay_iters": 250}
"""Members go on while their agent is stopped: the run must not be over before that is noticed."""
HANG = ("--hang-after", HANG_AFTER_S)
FAULTS = (
    Fault(name="kill-lane", what="SIGKILL of a member, in a lane", play=planned(in_moment("lane"))),
    Fault(name="kill-reduce", what="… in the reduction", play=planned(in_moment("reduce"))),
    Fault(name="kill-commit", what="… in `commit`", play=planned(in_moment("commit"))),
    Fault(name="kill-between", what="… between two steps", play=scripted("kill", "between")),
    Fault(name="kill-main", what="SIGKILL of rank 0", play=planned(in_moment("lane", 0))),
    Fault(
        name="kill-evaluation",
        what="… in the middle of an evaluation",
        play=scripted("kill", "evaluation", member=""),
    ),
    Fault(
        name="kill-two",
        what="SIGKILL of two members of three at once",
        play=planned(in_moment("lane"), in_moment("lane", 2)),
    ),
    Fault(name="kill-all", what="SIGKILL of all members at once", play=signalled(kill_all)),
    Fault(
        name="node",
        what="One of two nodes lost, and back after 3 s",
        play=planned('fault = "node", rank = 2', flags=TWO_NODES),
    ),
    Fault(name="kill-agent", what="SIGKILL of the only node's agent", play=signalled(kill_agent)),
    Fault(name="pause", what="SIGSTOP of a member for 2 s", play=signalled(pause)),
    Fault(name="stop", what="SIGSTOP of a member for ever", play=signalled(stop_member)),
    Fault(
        name="stop-agent",
        what="SIGSTOP of the only node's agent",
        play=signalled(stop_agent, settings=LONG),
        settings=LONG,
    ),
    Fault(name="exception", what="An exception in the script, once", play=scripted("exception", "lane")),
    Fault(
        name="exception-again",
        what="An exception in the script, each time",
        play=scripted("exception", "lane", member="", again=True),
        ends=True,
    ),
    Fault(name="save", what="The script's own save fails on rank 0", play=failing_save, ends=True),
    Fault(name="exit", what="`sys.exit(0)` on one member", play=scripted("exit", "between"), ends=True),
    Fault(name="os-exit", what="`os._exit(0)` on one member", play=scripted("os-exit", "lane")),
    Fault(name="break", what="`break` on one member", play=scripted("break", "between"), ends=True),
    Fault(name="gil", what="A member holds the GIL for 10 s", play=scripted("gil", "between")),
    Fault(
        name="loop",
        what=f"An endless loop on one member, `--hang-after {HANG_AFTER_S}`",
        play=scripted("loop", "between", flags=HANG),
        needs="--hang-after",
    ),
    Fault(
        name="slow",
        what="A member takes 0.1 s longer for each lane",
        play=scripted("slow", "lane", again=True),
    ),
    Fault(name="disk", what="The disk for checkpoints is full", play=full_disk),
    Fault(
        name="kill-compiled",
        what="SIGKILL of a member, with `torch.compile`",
        play=planned(in_moment("lane"), settings={**COMPILED, "rehearse": False}),
        settings=COMPILED,
    ),
    Fault(
        name="kill-rehearsed",
        what="… which warm processes do before, `join(warm=...)`",
        play=planned(in_moment("lane"), settings=COMPILED),
        settings=COMPILED,
    ),
    Fault(
        name="kill-launcher",
        what="SIGKILL of `holdfast run`, then started again",
        play=resumed(kill_launcher),
    ),
    Fault(name="interrupt", what="Ctrl-C, then started again", play=resumed(interrupt)),
)
