"""Nodes and members that start in milliseconds: a process that has imported torch, and forks.

A line on stdin, `NAMES SLOTS HOST:PORT TOKEN JSON`, makes a node of each of the comma-separated names; an
empty line ends them. A node is a process that speaks as an agent does, and forks members, which die with it.
A node that is killed, given up, or not let in while the one before it is not yet missed, comes back by itself
a moment later. A member calls `train` of scripts.py with what the JSON says. Everything is single-threaded
until a member is its own process.
"""

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.run import kernel_view, memory, whereabouts, wire
from holdfast.run.handshake import Entry, HandshakeClient, endpoint_of
from holdfast.run.stacks import own_frame, read_stacks
from holdfast.run.startup.sitecustomize import VARIABLE

PR_SET_PDEATHSIG = 1
RETURN_S = 0.3
"""How long a killed node stays away."""
BEAT_S = 0.25
LOOK_S = 0.02
"""How often the zygote checks its nodes, as long as it has some."""
STACK_S = 1.0
"""How long a process has to write its stack."""
IMPORTED_LATER = (
    "holdfast.train.joining",
    "holdfast.train.mesh",
    "holdfast.train.pipelines",
    "torch._dynamo",
    "torch.testing",
)
"""Modules that a member imports on first use, for example in an optimizer's first step; imported here once
for all.
"""
HELD: list[memory.HeldMemory] = []
"""The memory of a node that outlives its members."""
STACK_FILES: dict[int, int] = {}
"""For the members of a node: where each writes its stack."""


class Assignment(NamedTuple):
    """What the nodes of one run have in common. nodes: how many there are."""

    nodes: int
    slots: int
    endpoint: str
    token: str
    arguments: dict[str, Any]


def die_with_parent(parent: int) -> None:
    """Die with the parent, at once if it is already dead: an orphan would hold a lost node's connection."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def serve() -> None:
    """The zygote: starts nodes, brings back those that were killed, ends them all when told to."""
    nodes: dict[int, tuple[str, Assignment]] = {}
    returning: list[tuple[float, str, Assignment]] = []
    pending = b""
    while True:
        readable, _, _ = select.select([0], [], [], LOOK_S if nodes or returning else None)
        if readable:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if not line.strip():
                    returning.clear()
                    end(nodes)
                    continue
                listed, slots, endpoint, token, arguments = line.decode().split(" ", 4)
                names = listed.split(",")
                assignment = Assignment(len(names), int(slots), endpoint, token, json.loads(arguments))
                for name in names:
                    nodes[fork_node(name, assignment)] = name, assignment
        for pid in list(nodes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                name, assignment = nodes.pop(pid)
                if status:
                    returning.append((time.monotonic() + RETURN_S, name, assignment))
        for due in [due for due in returning if due[0] <= time.monotonic()]:
            returning.remove(due)
            nodes[fork_node(due[1], due[2])] = due[1], due[2]
    end(nodes)


def end(nodes: dict[int, tuple[str, Assignment]]) -> None:
    for pid in nodes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in nodes:
        os.waitpid(pid, 0)
    nodes.clear()


def fork_node(name: str, assignment: Assignment) -> int:
    """Fork a node. It exits with 0 when it was told to end; with any other code, as when it was refused, it
    comes back.
    """
    zygote = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with_parent(zygote)
        with suppress(Exception):
            node(name, assignment)
            os._exit(0)
        os._exit(1)
    return pid


def node(name: str, assignment: Assignment) -> None:
    connection = Connection(name, assignment)
    HELD.append(memory.HeldMemory(assignment.slots if assignment.arguments["snapshot_every"] else 0))
    members: dict[int, str] = {}
    stopped: dict[int, float] = {}
    connection.say(wire.AgentJoined(node=name, slots=assignment.slots, address="127.0.0.1", port=1))
    beat_at = 0.0
    while True:
        if time.monotonic() >= beat_at:
            paused = tuple(member for pid, member in members.items() if whereabouts.is_stopped(pid))
            connection.say(wire.NodeBeat(node=name, stopped=paused))
            beat_at = time.monotonic() + BEAT_S
        readable, _, _ = select.select([connection], [], [], 0.005)
        if readable:
            for message in connection.heard():
                if not obey(connection, message, members, stopped, assignment):
                    return
        for pid in [pid for pid, due in stopped.items() if time.monotonic() >= due]:
            del stopped[pid]
            os.kill(pid, signal.SIGKILL)
        for pid in list(members):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                stopped.pop(pid, None)
                connection.say(exited(members.pop(pid), status))


class Connection:
    """An agent's connection, without threads or an event loop: members are forked beside it."""

    def __init__(self, name: str, assignment: Assignment) -> None:
        host, _, port = assignment.endpoint.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        endpoint = endpoint_of(self._socket.getpeername())
        self._entry = Entry(HandshakeClient(assignment.token, role="agent", name=name, endpoint=endpoint))
        while self._entry.run is None:
            self._socket.sendall(self._entry.take(self._read()))

    def fileno(self) -> int:
        return self._socket.fileno()

    def say(self, message: wire.AnyMessage) -> None:
        self._socket.sendall(self._entry.channel.seal(wire.frame(message)))

    def heard(self) -> Iterator[wire.AnyMessage]:
        return self._entry.frames.feed(self._entry.channel.open(self._read()))

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the coordinator has given this node up, or is gone")
        return data


def obey(
    connection: Connection,
    message: wire.AnyMessage,
    members: dict[int, str],
    stopped: dict[int, float],
    assignment: Assignment,
) -> bool:
    """Do what the coordinator says. False: the run is over. stopped: when members that were told to end are
    killed.
    """
    if isinstance(message, wire.StartWorker):
        pid = fork_member(message, assignment)
        members[pid] = message.member
        connection.say(wire.WorkerStarted(member=message.member, pid=pid))
    elif isinstance(message, wire.StopWorker):
        for pid in [pid for pid, member in members.items() if member == message.member]:
            os.kill(pid, signal.SIGTERM if message.grace_s else signal.SIGKILL)
            stopped[pid] = time.monotonic() + message.grace_s
    elif isinstance(message, wire.Locate):
        for pid in [pid for pid, member in members.items() if member == message.member]:
            connection.say(located(pid, message.member))
    elif isinstance(message, wire.StrikeWorker):
        for pid in [pid for pid, member in members.items() if member == message.member]:
            os.kill(pid, signal.SIGSTOP if message.fault == "pause" else signal.SIGKILL)
    elif isinstance(message, wire.StrikeNode):
        os.kill(os.getpid(), signal.SIGKILL)
    return not isinstance(message, wire.EndNode)


def located(pid: int, member: str) -> wire.Located:
    """Like `Worker.locate`, without an event loop."""
    seen = kernel_view.view(pid)
    before, text, file = "", "", STACK_FILES[pid]
    if seen.state != whereabouts.STOPPED and whereabouts.ask(pid, file, all_threads=not seen.runs_threads):
        due_s = time.monotonic() + STACK_S
        while time.monotonic() < due_s and not (text and text == before):
            time.sleep(0.02)
            before, text = text, whereabouts.answer(file)
    stacks = read_stacks(text)
    frame = own_frame(stacks[0]) if stacks else None
    place = frame.place if frame is not None else ""
    return wire.Located(member=member, place=place, stacks=stacks, seen=seen)


def fork_member(start: wire.StartWorker, assignment: Assignment) -> int:
    node = os.getpid()
    file = whereabouts.stack_file()
    pid = os.fork()
    STACK_FILES[pid] = file
    if pid == 0:
        die_with_parent(node)
        code = 1
        try:
            os.environ.update(start.environment)
            os.environ.update(
                HOLDFAST_COORDINATOR=assignment.endpoint,
                HOLDFAST_TOKEN=assignment.token,
                HOLDFAST_MEMBER=start.member,
                HOLDFAST_ADDRESS="127.0.0.1",
                HOLDFAST_LOCAL_NODE=f"{number_of(start.member)}/{assignment.nodes}",
                OMP_NUM_THREADS="1",
                **{
                    VARIABLE: str(file),
                    memory.VARIABLE: HELD[0].told,
                    "HOLDFAST_NODE": node_of(start.member),
                },
            )
            SCRIPTS["train"](**assignment.arguments)
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return pid


def node_of(member: str) -> str:
    return member.partition(".")[0]


def number_of(member: str) -> int:
    """The number of the node that the member is on: 2 for n2.0+1."""
    return int(node_of(member).removeprefix("n"))


def exited(member: str, status: int) -> wire.WorkerExited:
    if os.WIFSIGNALED(status):
        return wire.WorkerExited(member=member, signal=os.WTERMSIG(status))
    code = os.WEXITSTATUS(status)
    return wire.WorkerExited(member=member, code=code)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR2)  # inherited by all forks: prints where a run is stuck
    die_with_parent(os.getppid())
    SCRIPTS = runpy.run_path(str(Path(__file__).with_name("scripts.py")))  # imports torch
    for name in IMPORTED_LATER:
        importlib.import_module(name)
    gc.freeze()  # a garbage collection would copy all imported objects into each member
    print("ready", flush=True)
    serve()
