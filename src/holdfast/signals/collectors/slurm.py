"""Slurm: how many nodes are in which state, which are drained and why, where jobs run, what is planned.

Slurm's commands print lines in our own format, which is the same in every version (its JSON has changed
between versions). Each has a time limit: without its controller a command would wait for minutes.
"""

import os
import re
import subprocess
from collections import Counter
from datetime import UTC, datetime

import msgspec

from holdfast import wording
from holdfast.record.clock import Clock
from holdfast.record.errors import InputError
from holdfast.signals.collectors import Unavailable
from holdfast.signals.frame import Reading
from holdfast.topology.hostlist import expand
from holdfast.wording.units import SECOND_NS

COMMAND_TIMEOUT_S = 10.0
PREFIX = "slurm_nodes_"
_HINT = "Does slurmctld answer? Try `scontrol ping`."
STATES = (
    ("maint", ("maint",)),
    ("drain", ("drain",)),
    ("down", ("down", "unk", "no_respond", "powered_down", "powering_down", "boot", "reboot")),
    ("fail", ("fail",)),
    ("err", ("err", "inval")),
    ("comp", ("comp",)),
    ("alloc", ("alloc",)),
    ("mix", ("mix",)),
    ("resv", ("resv", "reserved", "planned")),
    ("idle", ("idle",)),
)
"""The names of states in vpenso's exporter, and how `sinfo`'s words for them begin; the first that fits."""
SUFFIXES = "*~#!%$@^-+"
"""What `sinfo` appends to a state, such as * for a node that does not answer."""


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """A node as Slurm sees it. state: Slurm's word; answers: whether the node responds."""

    node: str
    state: str
    answers: bool
    reason: str


class JobPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A running job and its nodes."""

    job: str
    name: str
    nodes: tuple[str, ...]


class MaintenanceWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation for maintenance: events on these nodes during it are planned."""

    name: str
    start_ns: int
    end_ns: int
    nodes: tuple[str, ...]


class SlurmView(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeState, ...] = ()
    jobs: tuple[JobPlacement, ...] = ()
    maintenance: tuple[MaintenanceWindow, ...] = ()


class SlurmCollector:
    """Queries Slurm through this machine's commands."""

    name = "Slurm"

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._view = SlurmView()

    def collect(self) -> list[Reading]:
        at_ns = self._clock.now_ns()
        self._view = SlurmView(
            nodes=parse_nodes(ask("sinfo", "--Node", "--noheader", "--format=%N|%T|%E")),
            jobs=parse_jobs(ask("squeue", "--noheader", "--states=running", "--format=%i|%N|%j")),
            maintenance=parse_reservations(ask("scontrol", "--oneliner", "show", "reservation")),
        )
        counts = Counter(state_name(node.state) for node in self._view.nodes)
        return [
            Reading(metric=PREFIX + name, labels={}, at_ns=at_ns, value=float(counts[name]))
            for name, _ in STATES
        ]

    def view(self) -> SlurmView:
        """The result of the last reading."""
        return self._view

    def close(self) -> None:
        """Does nothing: no connection stays open."""


def state_name(state: str) -> str:
    """The exporter's name for a state of `sinfo`; empty for an unknown one."""
    return next((name for name, starts in STATES if state.startswith(starts)), "")


def parse_nodes(text: str) -> tuple[NodeState, ...]:
    """From lines `node|state|reason`. A node has a line for each of its partitions, and counts once."""
    nodes: dict[str, NodeState] = {}
    for line in text.splitlines():
        node, state, reason = (*line.split("|", 2), "", "")[:3]
        if node and line.count("|") > 1:
            told = "" if reason in ("none", "") else reason
            nodes[node] = NodeState(
                node=node, state=state.rstrip(SUFFIXES).lower(), answers="*" not in state, reason=told
            )
    return tuple(nodes.values())


def parse_jobs(text: str) -> tuple[JobPlacement, ...]:
    """From lines `job|nodes|name`; a job without nodes is left out."""
    lines = (line.split("|", 2) for line in text.splitlines() if line.count("|") > 1)
    placed = ((job.strip(), name, node_names(nodes)) for job, nodes, name in lines)
    return tuple(JobPlacement(job=job, name=name, nodes=nodes) for job, name, nodes in placed if nodes)


def parse_reservations(text: str) -> tuple[MaintenanceWindow, ...]:
    """Those for maintenance, from `scontrol --oneliner show reservation` with times in UTC."""
    return tuple(window for line in text.splitlines() if (window := _window(line)) is not None)


def _window(line: str) -> MaintenanceWindow | None:
    fields = dict(re.findall(r"(\w+)=(\S*)", line))
    start_ns, end_ns = time_ns(fields.get("StartTime", "")), time_ns(fields.get("EndTime", ""))
    if "MAINT" not in fields.get("Flags", "").split(",") or start_ns is None or end_ns is None:
        return None
    return MaintenanceWindow(
        name=fields.get("ReservationName", ""),
        start_ns=start_ns,
        end_ns=end_ns,
        nodes=node_names(fields.get("Nodes", "")),
    )


def node_names(hostlist: str) -> tuple[str, ...]:
    """The names; none if the text is empty, or not a list of hosts."""
    try:
        return tuple(expand(hostlist)) if hostlist and hostlist != "(null)" else ()
    except InputError:
        return ()


def time_ns(text: str) -> int | None:
    """A time in UTC, in Slurm's format."""
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS
    except ValueError:
        return None


def ask(*command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """The output of the command, with all times in UTC."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise Unavailable(
            f"There is no command {command[0]} here.", hint="Run this where Slurm's commands are installed."
        ) from None
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"{command[0]} did not answer within {wording.number(timeout_s)} s.", hint=_HINT
        ) from None
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be run: {error.strerror}.", hint=_HINT) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise Unavailable(f"{command[0]} failed: {said or f'exit code {done.returncode}'}.", hint=_HINT)
    return done.stdout.decode("utf-8", "replace")
