"""Makes the fault of each scenario, or refuses it: everything that touches machines.

A scenario touches only what it declares. If that cannot be guaranteed, or if root or a namespace is missing,
nothing is struck and one sentence says why.
"""

import asyncio
import errno
import json
import os
import random
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import assert_never

import msgspec

from holdfast import wording
from holdfast.drills.live.keeping import (
    Continue,
    DrillNote,
    PutBack,
    Remove,
    Ungroup,
    Unshape,
    in_namespace,
    kept,
    note_path,
    process,
    read_note,
)
from holdfast.drills.live.scenarios import FOR_S_MAX, LiveScenario
from holdfast.drills.live.scene import LiveMember, LiveScene, parent_of
from holdfast.record.errors import HoldfastError, InputError
from holdfast.run.dial import asked
from holdfast.run.endpoint import Endpoint
from holdfast.run.wire import Strike

LINK_RATE = "20mbit"
DEVICE_BYTES_PER_S = 1_000_000
FILL_BYTES_MAX = 8 << 30
FILL_BLOCK_BYTES = 1 << 20
DEFAULT_QUEUES = frozenset({"noqueue", "pfifo_fast", "fq_codel", "mq", "fq", "pfifo"})
"""The queueing disciplines of an unshaped device."""
BLKIO = Path("/sys/fs/cgroup/blkio")
FILL_FILE = ".holdfast-drill"
ASK_S_MAX = 20.0
AGAIN_S = 0.2
_BLKIO_LINE = re.compile(r"^\d+:(?:[^:]*,)?blkio(?:,[^:]*)?:(.*)$", re.MULTILINE)


class StrikeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """id: of the drill. endpoint: read anew each time, because a successor may have taken over."""

    id: str
    home: Path
    scenario: LiveScenario
    scene: LiveScene
    target: str
    for_s: float
    endpoint: Callable[[], Endpoint]


class LiveStrike(msgspec.Struct, frozen=True, kw_only=True):
    """at_ns, ends_ns: by the wall clock. subjects: the members or nodes that the record must name. again_ns:
    when the fault was made again."""

    at_ns: int
    ends_ns: int
    subjects: tuple[str, ...]
    node: str
    again_ns: tuple[int, ...] = ()


def chosen_target(scenario: LiveScenario, scene: LiveScene, target: str, seed: int) -> str:
    """The member or node to strike; at random if none is named."""
    match scenario.reach:
        case "member" | "coordinator-and-member":
            known = sorted(one.name for one in scene.members)
        case "node":
            known = list(scene.nodes)
        case "coordinator" | "storage":
            if target:
                raise InputError(f"{scenario.name} has no target.", hint="Leave --target out.")
            return scenario.reach
        case _:
            assert_never(scenario.reach)
    if target and target not in known:
        raise InputError(
            f"{scene.run} has no {scenario.reach} {target!r}.", hint=f"There are {', '.join(known)}."
        )
    if not known:
        raise InputError(f"{scene.run} has no members right now.", hint="Try again when it steps.")
    return target or random.Random(seed).choice(known)


def misfit(scenario: LiveScenario, scene: LiveScene) -> str:
    """Why a run of this shape cannot have the fault with any target; empty if it can."""
    if len(scene.members) < scenario.members_min:
        return f"the run has {wording.many(len(scene.members), 'member')}, and no other holds its state"
    if len(scene.nodes) < scenario.nodes_min:
        return (
            f"the run has {wording.many(len(scene.nodes), 'node')}, "
            f"and {scenario.name} needs {scenario.nodes_min}"
        )
    return ""


def refusal(scenario: LiveScenario, scene: LiveScene, target: str, for_s: float) -> str:
    """Why the drill would exceed what the scenario may touch; empty if it would not."""
    if for_s > FOR_S_MAX:
        return f"a fault may last {FOR_S_MAX:g} s at most, not {wording.number(for_s)} s"
    if why := misfit(scenario, scene):
        return why
    if scenario.reach == "node" and 2 * len(scene.on(target)) > len(scene.members):
        return f"{target} has more than half of the members"
    if scenario.reach in ("coordinator", "coordinator-and-member") and not scene.successor:
        return "the coordinator has no successor at this moment"
    if scene.step_s is None:
        return "the run has made no steps lately: nothing could be compared"
    if scenario.needs_checkpoint and scene.saves_s is not None and scene.saves_s > for_s:
        return (
            f"checkpoints are {wording.lasting(scene.saves_s)} apart, and the fault lasts "
            f"{wording.number(for_s)} s: none would feel it"
        )
    return ""


def require(scenario: LiveScenario, scene: LiveScene, target: str, for_s: float) -> None:
    if why := refusal(scenario, scene, target, for_s):
        raise InputError(
            f"{scenario.name} is refused: {why}.", hint=f"This drill affects at most {scenario.radius}."
        )


def require_alone(home: Path, run: str) -> None:
    """Refuse a second drill of a run at the same time."""
    if read_note(note_path(home, run)) is not None:
        raise InputError(
            f"A drill of {run} is under way.", hint="Wait for its end, or put everything back with --abort."
        )


def struck(order: StrikeOrder) -> LiveStrike:
    """Make the fault. Returns when it is made."""
    require(order.scenario, order.scene, order.target, order.for_s)
    require_alone(order.home, order.scene.run)
    match order.scenario.name:
        case "worker-killed":
            at_ns = _asked(order, "kill")
            return _made(order, at_ns)
        case "node-lost" | "bad-node":
            at_ns = _asked(order, "node")
            return _made(order, at_ns)
        case "coordinator-killed":
            return _made(order, _killed(order))
        case "two-at-once":
            at_ns = _asked(order, "kill")
            _killed(order)
            return _made(order, at_ns)
        case "agent-frozen":
            agent = process(_here(order, order.scene.on(order.target)[0]).agent)
            _keep(order, (Continue(process=agent),))
            agent.signalled(signal.SIGSTOP)
        case "half-speed":
            member = order.scene.member(order.target)
            assert member is not None
            slowed = process(_here(order, member).pid)
            _keep(order, (Continue(process=slowed),), slowed=True)
        case "slow-link":
            _slow_link(order)
        case "slow-storage":
            _slow_device(order)
        case "full-disk":
            _fill(order)
        case name:
            raise InputError(
                f"No live scenario is called {name!r}.", hint="`holdfast drill list` names them."
            )
    return _made(order, time.time_ns())


def _made(order: StrikeOrder, at_ns: int) -> LiveStrike:
    return LiveStrike(
        at_ns=at_ns, ends_ns=at_ns + round(order.for_s * 1e9), subjects=_subjects(order), node=_node(order)
    )


def _subjects(order: StrikeOrder) -> tuple[str, ...]:
    match order.scenario.reach:
        case "member" | "coordinator-and-member" | "node":
            return (order.target,)
        case "coordinator" | "storage":
            return ()
    assert_never(order.scenario.reach)


def _node(order: StrikeOrder) -> str:
    member = order.scene.member(order.target)
    return member.node if member is not None else order.target if order.scenario.reach == "node" else ""


# -- processes -----------------------------------------------------------------------------------------


def _asked(order: StrikeOrder, fault: str) -> int:
    """Ask the coordinator for the fault, and return when; retry while a node is on its way back."""
    strike = Strike(fault="kill" if fault == "kill" else "node", target=order.target, for_s=order.for_s)
    due_s = time.monotonic() + ASK_S_MAX
    while True:
        at_ns = time.time_ns()
        answer = asyncio.run(asked(order.endpoint(), order.scene.run, strike))
        if answer.ok:
            return at_ns
        if time.monotonic() > due_s:
            raise HoldfastError(f"Nothing was struck: {answer.sentence}.")
        time.sleep(AGAIN_S)


def _killed(order: StrikeOrder) -> int:
    at_ns = time.time_ns()
    os.kill(order.endpoint().pid, signal.SIGKILL)
    return at_ns


def _here(order: StrikeOrder, member: LiveMember) -> LiveMember:
    if not member.pid:
        raise InputError(
            f"{order.scenario.name} needs the processes of {member.name}, which are not on this machine.",
            hint="Run the drill on that machine, with the same HOLDFAST_HOME and as the same user.",
        )
    return member


def _keep(order: StrikeOrder, put_back: tuple[PutBack, ...], *, slowed: bool = False) -> DrillNote:
    first = put_back[0]
    note = DrillNote(
        id=order.id,
        run=order.scene.run,
        scenario=order.scenario.name,
        target=order.target,
        due_ns=time.time_ns() + round(order.for_s * 1e9),
        put_back=put_back,
        slowed=first.process if slowed and isinstance(first, Continue) else None,
    )
    return kept(note_path(order.home, order.scene.run), note)


# -- links ---------------------------------------------------------------------------------------------


def _slow_link(order: StrikeOrder) -> None:
    member = _here(order, order.scene.on(order.target)[0])
    _require_root(order)
    if _namespace(member.pid) == _namespace(os.getpid()):
        raise InputError(
            f"slow-link is refused: {order.target} shares its network with this whole machine.",
            hint="It needs a node in a network namespace of its own.",
        )
    for command in ("nsenter", "ip", "tc"):
        if which(command) is None:
            raise InputError(
                f"slow-link needs the command {command}.", hint="apt-get install iproute2 util-linux"
            )
    device = _device_of(member)
    inside = tuple(process(pid) for pid in (parent_of(member.agent), member.agent, member.pid))
    _keep(order, (Unshape(inside=inside, device=device),))
    shape = ("tbf", "rate", LINK_RATE, "burst", "64kb", "latency", "50ms")
    in_namespace(member.pid, "tc", "qdisc", "replace", "dev", device, "root", *shape)


def _namespace(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def _device_of(member: LiveMember) -> str:
    """The network device of the member's address. A device that is shaped already is refused."""
    try:
        found = json.loads(in_namespace(member.pid, "ip", "-json", "-4", "address"))
        devices = [
            one["ifname"] for one in found if member.address in {it.get("local") for it in one["addr_info"]}
        ]
        shown = in_namespace(member.pid, "tc", "qdisc", "show", "dev", devices[0], "root")
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"slow-link is refused: the device of {member.node} is not known ({type(error).__name__}).",
            hint="`ip address` in its network namespace shows its devices.",
        ) from None
    queue = shown.split()[1] if len(shown.split()) > 1 else "noqueue"
    if queue not in DEFAULT_QUEUES:
        raise InputError(
            f"slow-link is refused: {devices[0]} is shaped already ({queue}).",
            hint="Remove that first: the drill could not restore it.",
        )
    return str(devices[0])


# -- storage -------------------------------------------------------------------------------------------


def _slow_device(order: StrikeOrder) -> None:
    _require_root(order)
    folder = _checkpoints(order)
    if not (BLKIO / "cgroup.procs").exists():
        raise InputError(
            "slow-storage needs the kernel's blkio control groups of version 1, which this machine has not.",
            hint="The other scenarios do without.",
        )
    number = folder.stat().st_dev
    if not os.major(number):
        raise InputError(
            f"slow-storage is refused: {folder} is not on a block device of its own.",
            hint="Put --checkpoints on a mounted disk.",
        )
    members = [_here(order, member) for member in order.scene.members]
    homes = tuple((member.pid, _blkio_home(member.pid)) for member in members)
    group = BLKIO / f"holdfast-drill-{secrets.token_hex(4)}"
    _keep(order, (Ungroup(group=str(group), homes=homes),))
    group.mkdir()
    for direction in ("read", "write"):
        limit = group / f"blkio.throttle.{direction}_bps_device"
        limit.write_text(f"{os.major(number)}:{os.minor(number)} {DEVICE_BYTES_PER_S}", encoding="ascii")
    for pid, _ in homes:
        (group / "cgroup.procs").write_text(str(pid), encoding="ascii")


def _blkio_home(pid: int) -> str:
    found = _BLKIO_LINE.search(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"))
    home = BLKIO / found[1].lstrip("/") if found else BLKIO
    return str(home if home.exists() else BLKIO)


def _fill(order: StrikeOrder) -> None:
    folder = _checkpoints(order)
    mount = folder
    while not mount.is_mount():
        mount = mount.parent
    if mount == Path("/") or order.home.stat().st_dev == folder.stat().st_dev:
        raise InputError(
            f"full-disk is refused: the file system of {folder} has more than checkpoints on it.",
            hint="It needs --checkpoints on a mount of its own, without HOLDFAST_HOME on it.",
        )
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize > FILL_BYTES_MAX:
        raise InputError(
            f"full-disk is refused: {mount} has more than {FILL_BYTES_MAX >> 30} GiB of room.",
            hint=f"This drill affects at most {order.scenario.radius}.",
        )
    path = folder / FILL_FILE
    _keep(order, (Remove(path=str(path)),))
    with path.open("wb", buffering=0) as file:
        for size in (FILL_BLOCK_BYTES, 4096, 1):
            _write_until_full(file.fileno(), size)


def _write_until_full(file: int, size: int) -> None:
    block = bytes(size)
    try:
        while os.write(file, block) == size:
            pass
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _checkpoints(order: StrikeOrder) -> Path:
    """The directory of the last checkpoint. Raises `InputError` if there is none on this machine."""
    folder = Path(order.scene.place).parent
    if not order.scene.place or not folder.is_dir():
        raise InputError(
            f"{order.scenario.name} is refused: {order.scene.run} has no checkpoint on this machine yet.",
            hint="Wait until it has saved one.",
        )
    return folder


def _require_root(order: StrikeOrder) -> None:
    if os.geteuid() != 0:
        raise InputError(f"{order.scenario.name} needs root.", hint="The kernel allows only root to do it.")
