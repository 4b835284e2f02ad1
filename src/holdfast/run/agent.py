"""The agent of a node: starts the script's processes, watches them and ends them as the coordinator says.

The agent decides nothing. It reports an exit as soon as the kernel does. Its workers die with it, so a node
is lost as a whole. It ends with the launcher that started it, unless the run should outlive the launcher.
`python -m holdfast.run.agent` is private to the launcher, which writes an `Assignment` to the agent's stdin.
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
"""Once in this many heartbeats the agent asks the kernel which workers are stopped."""
END_WAIT_S = 5.0
"""How long killed processes may take to end. The agent stops waiting for one that the kernel cannot end."""
JOIN_INTERVAL_S = 1.0
"""How often a node that was cut off tries to come back."""
NAMES_MAX = 64
"""The most nodes on one host: an agent without a given name tries one name after the other."""

GPU_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""Signals that may end a process when its GPU fails inside a library."""
GPU_WORDS = ("CUDA error", "CUDA out of memory", "CUBLAS_STATUS_", "CUDNN_STATUS_", "NCCL error")

EXIT_MISTAKE = 2
EXIT_DISCONNECTED = 75
"""The coordinator is gone; sysexits.h calls this a temporary failure."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a launcher tells its agent. Not in arguments, because every user of the machine could read the
    token there.

    launcher: its process, with which the agent ends; 0 if the agent outlives it. lines: the file that keeps
    the run's lines for `holdfast attach`; empty for no file. node: its name; empty to use the host's name.
    command: the script, ready to be started. checkpoints: the directories. checkpoint_every: in steps.
    checkpoint_rate: bytes a second that all members together may write. role: torchrun's role name.
    address: where others reach this node; empty to use the address that the connection to the coordinator
    has. log_directory: where the members' lines are also written. local: this node's number among the
    launcher's nodes and how many there are; they share this machine's GPUs. view: which part of the members'
    output is shown. is_virtual: a member sees only its own GPU. grace_s: the time workers have between
    SIGTERM and SIGKILL when their node leaves a run that continues. wait_s: how long to look for a
    coordinator, which may run on another machine by then. snapshot_every: in steps; None to choose by cost;
    0 to hold no memory for snapshots. proof: what to prove regularly; None if another agent does it or
    nothing is to be proved.
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
    """The JSON that an agent's `main` reads. Arguments and paths may not be valid UTF-8, which msgspec's JSON
    requires.
    """
    return json.dumps(msgspec.to_builtins(assignment)).encode()


class Agent:
    """One node of the run, for as long as its connection to the coordinator lasts."""

    def __init__(
        self,
        assignment: Assignment,
        node: str,
        connection: Connection,
        held: memory.HeldMemory,
        launcher: int,
    ) -> None:
        """held: memory that outlives the workers and this agent's connection. launcher: the process that
        started this one.
        """
        self._assignment = assignment
        self._held = held
        self._node = node
        self._connection = connection
        self._address = assignment.address or connection.own_address
        self._workers: dict[str, Worker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._printer = Printer(on_room=self._resume_soon, shower=launcher)
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
                host=socket.gethostname(),
                device=visible.device_seen(os.environ),
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
        """Leave the run and end all workers when the launcher dies."""
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
        """The files for lines that a filter picks out: one per stream, for all members."""
        for stream in self._assignment.view.copied.keys() - self._copies.keys():
            directory.mkdir(parents=True, exist_ok=True)
            self._copies[stream] = open_log(directory / f"filtered_{stream}.log")
        return self._copies

    def _environment(self, order: wire.StartWorker) -> dict[str, str]:
        assignment = self._assignment
        if others := sorted(order.environment.keys() - wire.WORKER_VARIABLES):
            raise HoldfastError(
                f"The coordinator tried to set {others[0]} for a worker, which it must not do: this node"
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
        """The GPU error that the kernel logged for this process. /dev/kmsg uses CLOCK_MONOTONIC."""
        return self._kernel_log.xid_of(pid, time.clock_gettime(time.CLOCK_MONOTONIC))

    async def _forget(self, member: str, worker: Worker) -> None:
        await worker.gone()
        self._workers.pop(member, None)

    def _reap_orphans(self) -> None:
        """Reap processes that workers left behind and that have ended; until then they seem to be running."""
        ours = frozenset() if self._prover is None else self._prover.pids
        reap(children() - {worker.pid for worker in self._workers.values()} - ours)

    def _resume_soon(self) -> None:
        """Resume the workers. The printer's thread calls this."""
        self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        for worker in self._workers.values():
            worker.resume()

    def _die(self) -> None:
        """Simulate a power cut. The kernel would kill the workers with us; this is only faster."""
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
    """Whether the GPU may be why a process ended like this."""
    if returncode == wire.CODE_DEVICE_FAILED or -returncode in GPU_SIGNALS:
        return True
    return returncode > 0 and any(sign in words.complaint for sign in GPU_WORDS)


def free_port() -> int:
    """A port that is free at the moment, for a script that makes its own process group.

    It is free on all addresses, because such scripts listen on all of them: the address by which others reach
    this node may not be one of its own.
    """
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def _join(assignment: Assignment, places: Sequence[Address]) -> tuple[str, Connection]:
    """The node's name and its connection to the coordinator, found at the first place that answers."""
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
    """Join as a new node after the run gave this one up or its coordinator could not be found."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + assignment.wait_s
    while True:
        await asyncio.sleep(JOIN_INTERVAL_S)
        try:
            return await _join(assignment, line)
        except (Unreachable, Rejected):  # the name may be taken until the node's lease ends
            if loop.time() >= due_s:
                raise


async def _serve(assignment: Assignment, launcher: int) -> int:
    held = memory.HeldMemory(0 if assignment.snapshot_every == 0 else assignment.slots)
    try:
        node, connection = await _join(assignment, [(assignment.host, assignment.port)])
        while True:
            code = await Agent(assignment, node, connection, held, launcher).serve()
            if code != EXIT_DISCONNECTED or not connection.line:
                return code
            node, connection = await _join_again(assignment, connection.line)
    finally:
        held.close()


def main() -> int:
    """Run the agent as a process that the launcher starts."""
    launcher = os.getppid()  # before the assignment is read, which the launcher lives to write
    assignment = msgspec.convert(json.load(sys.stdin.buffer), Assignment)
    if assignment.launcher:
        wake_with(assignment.launcher)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles it
    try:
        return asyncio.run(_serve(assignment, launcher))
    except Unreachable:
        return EXIT_DISCONNECTED
    except HoldfastError as error:
        print(error.told, file=sys.stderr)
        return EXIT_MISTAKE
    finally:
        if os.getppid() != assignment.launcher:  # no other process would adopt and end what workers started
            end_children()


if __name__ == "__main__":
    sys.exit(main())
