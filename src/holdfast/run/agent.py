"""The agent of a node: starts the script's processes, watches them and ends them as the coordinator says.

It decides nothing. An exit is told the moment the kernel knows of it. Its workers die with it, so a node is
lost as a whole. It ends with the launcher that started it, unless the run is to outlive that. `python -m
holdfast.run.agent` is private to the launcher, which writes an `Assignment` to its stdin.
"""

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.record.errors import HoldfastError
from holdfast.record.kernel import Xid
from holdfast.run import memory, visible, wire
from holdfast.run.dial import Connection, dial
from holdfast.run.handshake import Rejected, Unreachable
from holdfast.run.kernel_log import KernelLog
from holdfast.run.kin import adopt_orphans, children, end_children, reap, wake_with
from holdfast.run.lines import KeptLines
from holdfast.run.output import LastWords, Printer, Stream, View
from holdfast.run.prover import ProofOrder, Prover
from holdfast.run.seeking import SEEK_WAIT_S, Address
from holdfast.run.worker import Program, Worker, open_log

BEAT_INTERVAL_S = 0.25
STOPS_BEATS = 4
"""At every so manieth heartbeat the kernel is asked who is stopped."""
END_WAIT_S = 5.0
"""How long killed processes may take to be gone; one that the kernel cannot end is left to it."""
JOIN_INTERVAL_S = 1.0
"""How often a node that was cut off tries to come back."""
NAMES_MAX = 64
"""So many nodes may be on one host: each tries one name after the other."""

GPU_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""What a process may die of when its GPU fails in the middle of a library."""
GPU_WORDS = ("CUDA error", "CUDA out of memory", "CUBLAS_STATUS_", "CUDNN_STATUS_", "NCCL error")

EXIT_MISTAKE = 2
EXIT_DISCONNECTED = 75
"""The coordinator is gone; sysexits.h calls this a temporary failure."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a launcher tells its agent. Not by arguments: anybody can read those, and with them the token.

    launcher: its process, with which the agent ends; 0: it outlives that. lines: the file in which the lines
    of the run are kept for `holdfast attach`; empty: none. node: its name; empty: the agent takes the host's.
    command: the script, ready to be started. checkpoints: the directories; checkpoint_every: so many steps;
    checkpoint_rate: bytes a second that all members together may write. role: what torchrun calls so.
    address: where others reach this node; empty: as the way to the coordinator tells. log_directory: where
    to write the members' lines, too. local: which of the launcher's nodes this is, and how many they are:
    they share this machine's GPUs. view: what of the members' output is shown. is_virtual: a member sees no
    GPU but its own. grace_s: what workers have between SIGTERM and SIGKILL when their node leaves a run
    that goes on. wait_s: how long a coordinator is looked for that the run may have elsewhere by then.
    snapshot_every: so many steps; None: by cost; 0: no memory is held for any.
    proof: what to prove now and then; None: another agent does, or none.
    """

    launcher: int
    host: str
    port: int
    token: str
    node: str
    slots: int
    command: tuple[str, ...]
    checkpoints: str
    checkpoint_every: int | None = None
    checkpoint_rate: float | None = None
    role: str = "default"
    address: str = ""
    log_directory: str = ""
    local: tuple[int, int] = (0, 1)
    view: View = View()
    is_virtual: bool = False
    grace_s: float = 10.0
    wait_s: float = 0.0
    lines: str = ""
    snapshot_every: int | None = None
    proof: ProofOrder | None = None


def encoded(assignment: Assignment) -> bytes:
    """As an agent's `main` reads it. Arguments and paths need not be text, which msgspec's JSON must be."""
    return json.dumps(msgspec.to_builtins(assignment)).encode()


class Agent:
    """One node of the run, for as long as its connection to the coordinator lasts."""

    def __init__(
        self, assignment: Assignment, node: str, connection: Connection, held: memory.HeldMemory
    ) -> None:
        """held: what outlives the workers, and this agent's connection."""
        self._assignment = assignment
        self._held = held
        self._node = node
        self._connection = connection
        self._address = assignment.address or connection.own_address
        self._workers: dict[str, Worker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._printer = Printer(on_room=self._resume_soon)
        self._kernel_log = KernelLog()
        self._copies: dict[Stream, int] = {}
        self._prover = None if assignment.proof is None else Prover(assignment.proof, connection.send)
        self._kept = KeptLines.opened(Path(assignment.lines)) if assignment.lines else None

    async def serve(self) -> int:
        """Do what the coordinator says until it ends the node. Returns the exit code."""
        self._connection.send(
            wire.AgentJoined(
                node=self._node,
                slots=self._assignment.slots,
                address=self._address,
                port=free_port(),
            )
        )
        beating = asyncio.create_task(self._beat())
        proving = None if self._prover is None else asyncio.create_task(self._prover.keep())
        obeying = asyncio.create_task(self._obey())
        self._loop.add_signal_handler(signal.SIGTERM, obeying.cancel)
        self._watch_launcher(obeying)
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap_orphans)
        try:
            await asyncio.wait([obeying])
            if not obeying.cancelled():
                return obeying.result()
            await self._connection.close()  # the others go on without this node, from now on
            await self._end_workers(self._assignment.grace_s)
            return 128 + signal.SIGTERM
        finally:
            beating.cancel()
            if proving is not None:
                proving.cancel()
                await asyncio.wait([proving])
            await self._end_workers(0)
            await self._connection.close()
            self._printer.close()
            if self._kept is not None:
                self._kept.close()
            self._kernel_log.close()

    def _watch_launcher(self, obeying: asyncio.Task[int]) -> None:
        """Without its launcher the node leaves the run, and nothing of it is left."""
        if not self._assignment.launcher:
            return
        try:
            launcher = os.pidfd_open(self._assignment.launcher)
        except ProcessLookupError:
            obeying.cancel()
            return

        def gone() -> None:
            self._loop.remove_reader(launcher)
            os.close(launcher)
            obeying.cancel()
            for worker in self._workers.values():
                worker.stop(0)

        self._loop.add_reader(launcher, gone)

    async def _beat(self) -> None:
        stopped: tuple[str, ...] = ()
        for beats in itertools.count():
            if beats % STOPS_BEATS == 0:
                stopped = tuple(name for name, worker in self._workers.items() if worker.is_stopped())
            printed = [worker.has_printed() for worker in self._workers.values()]
            self._connection.send(wire.NodeBeat(node=self._node, stopped=stopped, has_printed=any(printed)))
            await asyncio.sleep(BEAT_INTERVAL_S)

    async def _obey(self) -> int:
        while True:
            message = await self._connection.receive()
            match message:
                case None:
                    if not await self._connection.resume():
                        return EXIT_DISCONNECTED
                case wire.StartWorker():
                    self._start(message)
                case wire.ShowWorker(member=member, slot=slot):
                    if worker := self._workers.get(member):
                        worker.show(slot)
                case wire.StopWorker(member=member, grace_s=grace_s):
                    if worker := self._workers.get(member):
                        worker.stop(grace_s)
                case wire.StrikeWorker(member=member):
                    if worker := self._workers.get(member):
                        worker.strike(message)
                case wire.Locate():
                    self._spawn(self._locate(message))
                case wire.StrikeNode():
                    self._die()
                case wire.EndNode(code=code):
                    return code

    def _start(self, order: wire.StartWorker) -> None:
        assignment = self._assignment
        directory = Path(assignment.log_directory) if assignment.log_directory else None
        try:
            program = Program(
                command=assignment.command,
                environment=self._environment(order),
                slot=order.slot,
                is_muted=order.is_warm,
                view=assignment.view,
                copies=self._open_copies(directory) if directory else {},
                kept=self._kept,
                log_directory=directory,
                held=self._held.descriptors,
            )
            worker = Worker(order.member, program, self._printer, partial(self._exited, order.member))
        except OSError as error:
            what = error.filename or assignment.command[0]
            complaint = f"holdfast: {what} cannot be used: {error.strerror}."
            self._exited(order.member, EXIT_MISTAKE, LastWords(tail=(), complaint=complaint))
            return
        self._workers[order.member] = worker
        self._connection.send(wire.WorkerStarted(member=order.member, pid=worker.pid))

    def _open_copies(self, directory: Path) -> dict[Stream, int]:
        """The files for lines that are picked out by a word, one for all members."""
        for stream in self._assignment.view.copied.keys() - self._copies.keys():
            directory.mkdir(parents=True, exist_ok=True)
            self._copies[stream] = open_log(directory / f"filtered_{stream}.log")
        return self._copies

    def _environment(self, order: wire.StartWorker) -> dict[str, str]:
        assignment = self._assignment
        if others := sorted(order.environment.keys() - wire.WORKER_VARIABLES):
            raise HoldfastError(
                f"The coordinator wants to set {others[0]} for a worker, which is not its to set: this node"
                " leaves the run.",
                hint="Use the same version of Holdfast on all nodes.",
            )
        every = assignment.checkpoint_every
        number = None if order.is_warm else assignment.local[0] * assignment.slots + order.slot
        return {
            "OMP_NUM_THREADS": "1",  # as with torchrun: members would take each other's cores
            **os.environ,
            **order.environment,
            "ROLE_NAME": assignment.role,
            "HOLDFAST_COORDINATOR": "{}:{}".format(*self._connection.place),
            "HOLDFAST_TOKEN": assignment.token,
            "HOLDFAST_CHECKPOINTS": assignment.checkpoints,
            "HOLDFAST_LOCAL_NODE": "{}/{}".format(*assignment.local),
            **({"HOLDFAST_CHECKPOINT_EVERY": str(every)} if every else {}),
            **({"HOLDFAST_CHECKPOINT_RATE": str(rate)} if (rate := assignment.checkpoint_rate) else {}),
            memory.VARIABLE: self._held.told,
            memory.EVERY_VARIABLE: str(assignment.snapshot_every or ""),
            **(visible.virtual(os.environ, number) if assignment.is_virtual else {}),
        }

    def _exited(self, member: str, returncode: int, words: LastWords) -> None:
        worker = self._workers.get(member)
        self._connection.send(
            wire.WorkerExited(
                member=member,
                code=returncode if returncode >= 0 else None,
                signal=-returncode if returncode < 0 else None,
                tail=words.tail,
                complaint=words.complaint,
                port=free_port(),
                xid=self._xid_of(worker.pid) if worker and may_be_gpus(returncode, words) else None,
            )
        )
        if worker is not None:
            self._spawn(self._forget(member, worker))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _locate(self, order: wire.Locate) -> None:
        found = wire.Located(member=order.member, place="")
        if (worker := self._workers.get(order.member)) is not None:
            found = await worker.locate(is_gentle=order.is_gentle)
        self._connection.send(found)

    def _xid_of(self, pid: int) -> Xid | None:
        """What the kernel says about the process's GPU. Its clock is that of /dev/kmsg."""
        return self._kernel_log.xid_of(pid, time.clock_gettime(time.CLOCK_MONOTONIC))

    async def _forget(self, member: str, worker: Worker) -> None:
        await worker.gone()
        self._workers.pop(member, None)

    def _reap_orphans(self) -> None:
        """What workers left behind has ended: as long as nobody knows, it would seem to be there still."""
        ours = frozenset() if self._prover is None else self._prover.pids
        reap(children() - {worker.pid for worker in self._workers.values()} - ours)

    def _resume_soon(self) -> None:
        """Called from the printer's thread."""
        self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        for worker in self._workers.values():
            worker.resume()

    def _die(self) -> None:
        """Chaos: as in a power cut. The kernel kills the workers with us; this is only quicker."""
        for worker in self._workers.values():
            worker.stop(0)
        os.kill(os.getpid(), signal.SIGKILL)

    async def _end_workers(self, grace_s: float) -> None:
        workers = tuple(self._workers.values())
        for worker in workers:
            worker.stop(grace_s)
        if workers:
            waits = [asyncio.create_task(worker.gone()) for worker in workers]
            await asyncio.wait(waits, timeout=grace_s + END_WAIT_S)


def may_be_gpus(returncode: int, words: LastWords) -> bool:
    """Whether a process that ended like this may have done so because of its GPU."""
    if returncode == wire.CODE_DEVICE_FAILED or -returncode in GPU_SIGNALS:
        return True
    return returncode > 0 and any(sign in words.complaint for sign in GPU_WORDS)


def free_port() -> int:
    """One that nobody has at the moment, for a script that makes its own process group.

    On all addresses, as such scripts listen: the one by which others reach this node need not be its own.
    """
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def _join(assignment: Assignment, places: Sequence[Address]) -> tuple[str, Connection]:
    """The node's name and its connection to the coordinator, at the first of these places that has it."""
    host = socket.gethostname().partition(".")[0]
    others = () if assignment.node else tuple(f"{host}-{number}" for number in range(2, NAMES_MAX))
    for name in (assignment.node or host, *others):
        try:
            return name, await _dial(assignment, name, places)
        except Rejected as error:
            rejection = error
    raise rejection


async def _dial(assignment: Assignment, name: str, places: Sequence[Address]) -> Connection:
    *before, last = places
    for host, port in before:
        with suppress(Unreachable):
            return await dial(host, port, assignment.token, role="agent", name=name, wait_s=SEEK_WAIT_S)
    return await dial(*last, assignment.token, role="agent", name=name)


async def _join_again(assignment: Assignment, line: Sequence[Address]) -> tuple[str, Connection]:
    """The run has given this node up, or its coordinator could not be found: as if it came anew."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + assignment.wait_s
    while True:
        await asyncio.sleep(JOIN_INTERVAL_S)
        try:
            return await _join(assignment, line)
        except (Unreachable, Rejected):  # the name may be taken until the node's lease ends
            if loop.time() >= due_s:
                raise


async def _serve(assignment: Assignment) -> int:
    held = memory.HeldMemory(0 if assignment.snapshot_every == 0 else assignment.slots)
    try:
        node, connection = await _join(assignment, [(assignment.host, assignment.port)])
        while True:
            code = await Agent(assignment, node, connection, held).serve()
            if code != EXIT_DISCONNECTED or not connection.line:
                return code
            node, connection = await _join_again(assignment, connection.line)
    finally:
        held.close()


def main() -> int:
    """What the launcher starts as a process of its own."""
    assignment = msgspec.convert(json.load(sys.stdin.buffer), Assignment)
    if assignment.launcher:
        wake_with(assignment.launcher)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher hears it and says what to do
    try:
        return asyncio.run(_serve(assignment))
    except Unreachable:
        return EXIT_DISCONNECTED
    except HoldfastError as error:
        print(error.told, file=sys.stderr)
        return EXIT_MISTAKE
    finally:
        if os.getppid() != assignment.launcher:  # nobody else would adopt, and end, what workers have started
            end_children()


if __name__ == "__main__":
    sys.exit(main())
