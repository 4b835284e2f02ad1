"""Slurm by its commands: reads JSON if the version prints it, else lines that all versions print alike.

The output of the commands decides: `scontrol --json` exists from 23.02 on; in 22.05 `sinfo --json` lists
nodes, which prints something else in later versions. After a failure the choice is made again: Slurm may have
been updated, or the answer may have been too long to come in time.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.control.cluster import NodeView
from holdfast.control.seeing import PlacedJob
from holdfast.record.errors import HoldfastError
from holdfast.schedulers.scheduler import require_name
from holdfast.schedulers.slurm_documents import (
    OUT_STATES,
    SlurmDocument,
    jobs_of,
    nodes_of,
    read_document,
    windows_of,
)
from holdfast.signals.collectors.slurm import (
    SUFFIXES,
    MaintenanceWindow,
    ask,
    parse_jobs,
    parse_reservations,
    time_ns,
)
from holdfast.topology.discovery.slurm import gpu_count

NODES_JSON = (("scontrol", "--json", "show", "nodes"), ("sinfo", "--json"))
NODES_TEXT = ("scontrol", "--oneliner", "show", "node")
JOBS_JSON = (("squeue", "--json"),)
JOBS_TEXT = ("squeue", "--noheader", "--states=running,completing", "--format=%i|%N|%j")
RESERVATIONS_JSON = (("scontrol", "--json", "show", "reservations"),)
RESERVATIONS_TEXT = ("scontrol", "--oneliner", "show", "reservation")
_FIELD = re.compile(r"(?:^|\s)(NodeName|State|BootTime)=(\S*)")
_REASON = re.compile(r"\sReason=(.*?)(?:\s\[[^\[\]]*@[^\[\]]*\])?(?:\s+(?:Comment|Extra)=.*)?\s*$")
T = TypeVar("T")


def parse_nodes(text: str, gpus_per_node: int = 0) -> dict[str, NodeView]:
    """Parse `scontrol --oneliner show node`, with times in UTC. gpus_per_node: for nodes without a count."""
    found = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if not (name := fields.get("NodeName")):
            continue
        reason = _REASON.search(line)
        states = {state.rstrip(SUFFIXES) for state in fields.get("State", "").split("+")}
        found[name] = NodeView(
            name=name,
            gpus=gpu_count(line) or gpus_per_node,
            is_out=bool(states & OUT_STATES),
            reason=reason[1] if reason else "",
            since_ns=time_ns(fields.get("BootTime", "")) or 0,
        )
    return found


class SlurmCommands:
    """The Slurm that this machine's commands reach."""

    def __init__(self, gpus_per_node: int) -> None:
        self._gpus_per_node = gpus_per_node
        self._chosen: dict[str, tuple[str, ...]] = {}

    def nodes(self) -> dict[str, NodeView]:
        return self._told(
            "nodes",
            (NODES_JSON, NODES_TEXT),
            lambda document: None if document.nodes is None else nodes_of(document, self._gpus_per_node),
            lambda text: parse_nodes(text, self._gpus_per_node),
        )

    def jobs(self) -> tuple[PlacedJob, ...]:
        return self._told(
            "jobs",
            (JOBS_JSON, JOBS_TEXT),
            lambda document: None if document.jobs is None else jobs_of(document),
            lambda text: tuple(
                PlacedJob(job=one.job, name=one.name, nodes=one.nodes) for one in parse_jobs(text)
            ),
        )

    def windows(self) -> tuple[MaintenanceWindow, ...]:
        return self._told(
            "reservations",
            (RESERVATIONS_JSON, RESERVATIONS_TEXT),
            lambda document: None if document.reservations is None else windows_of(document),
            parse_reservations,
        )

    def update(self, node: str, state: str, reason: str = "") -> None:
        """state: DRAIN, with a reason, or RESUME."""
        ask(
            *("scontrol", "update", f"NodeName={require_name(node)}", f"State={state}"),
            *([f"Reason={reason}"] if reason else ()),
        )

    def requeue(self, job: str) -> None:
        ask("scontrol", "requeue", require_name(job))

    def _told(
        self,
        what: str,
        ways: tuple[Sequence[tuple[str, ...]], tuple[str, ...]],
        of_document: Callable[[SlurmDocument], T | None],
        of_text: Callable[[str], T],
    ) -> T:
        """Ask the command that was chosen; the first time, choose the first that answers. If none answers, as
        without slurmctld, none is chosen.
        """
        documents, text = ways
        chosen = self._chosen.pop(what, None)
        if chosen is not None and chosen != text:
            found = of_document(read_document(ask(*chosen).encode(), who=" ".join(chosen)))
            if found is None:
                raise HoldfastError(f"{' '.join(chosen)} printed no {what}.", hint="It is asked again.")
            self._chosen[what] = chosen
            return found
        for command in documents if chosen is None else ():
            try:
                found = of_document(read_document(ask(*command).encode(), who=command[0]))
            except HoldfastError:
                continue
            if found is not None:
                self._chosen[what] = command
                return found
        told = of_text(ask(*text))
        self._chosen[what] = text
        return told
