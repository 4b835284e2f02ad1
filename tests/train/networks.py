"""A run on machines in network namespaces (`bench/machines.py`), for tests of network cuts.

Only root can make them. Every name begins with `hh-`; leftovers of a killed test are removed first.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
from launching import JOINS, TOKEN, Launched, Start, descendants
from waiting import WAIT_S, until

from bench.machines import NetworkedMachine, Site
from bench.machines import network as machines_at
from holdfast.record.events import KnownEvent
from holdfast.record.journal import JOURNAL_DIRECTORY, read_directory
from holdfast.run.endpoint import find_endpoint
from holdfast.run.estate import OUTLIVES

SITE = Site(prefix="hh", subnet="10.78.0")

COORDINATES = "holdfast: this machine ("
"""What a machine's launcher prints when its heir takes over."""


def network(count: int) -> AbstractContextManager[list[NetworkedMachine]]:
    """This many machines, for as long as the block lasts."""
    return machines_at(SITE, count)


class NetworkedRun:
    """The machines of one run, with a launcher each. The first one has the coordinator."""

    def __init__(self, folder: Path, machines: list[NetworkedMachine]) -> None:
        self.folder, self.machines = folder, machines
        self.launched: list[Launched] = []
        self._flags: tuple[str, ...] = ()

    def start(self, *flags: str, script: str = JOINS) -> None:
        """flags: for all machines."""
        self._flags = flags
        for machine in self.machines:
            (self.folder / str(machine.number)).mkdir()
            self.start_again(machine.number, script)
            if not machine.number:
                self.launched[0].until_said("coordinator at")

    def start_again(self, number: int, script: str = JOINS) -> None:
        """Start the launcher of a machine."""
        place, nodes = f"{self.machines[0].address}:29400", f"1:{len(self.machines)}"
        enough = script.replace('"enough"', repr(str(self.folder / "enough")))
        start = Start(self.folder / str(number), self.machines[number].prefix)
        self.launched.append(
            start(
                *("--nnodes", nodes, "--warm", "0", "--coordinator", place, "--run", "r", "--wait", "120"),
                *("--node-rank", str(number), *self._flags),
                script=enough,
                token=TOKEN,
            )
        )

    def until_generation(self, *names: str, among: Sequence[int] | None = None) -> None:
        """Wait until the last generation that members on these machines, or all, were told of has these
        members.
        """

        def is_so(launched: Launched) -> bool:
            told = [
                line.partition(" generation ")[2] for line in tuple(launched.out) if " generation " in line
            ]
            return bool(told) and sorted(told[-1].split()) == sorted(names)

        for number in range(len(self.launched)) if among is None else among:
            until(lambda: is_so(self.launched[number]), self.tell)  # noqa: B023

    def until_heirs(self) -> None:
        """Wait until the run would outlive the coordinator's machine, and has a member on each."""
        self.launched[0].until_said(f"{len(self.machines)} members")
        self.launched[0].until_said(OUTLIVES)

    def coordinating(self) -> list[int]:
        """The machines that have taken over, by number."""
        return [
            number
            for number, launched in enumerate(self.launched)
            if any(COORDINATES in line for line in tuple(launched.err))
        ]

    def record(self) -> dict[str, KnownEvent]:
        """What all coordinators together have recorded, each event once."""
        events: dict[str, KnownEvent] = {}
        for journal in self.folder.glob(f"*/home/{JOURNAL_DIRECTORY}"):
            for event in read_directory(journal):
                assert isinstance(event, KnownEvent)
                same = msgspec.structs.replace(event, recorded_ns=0, source="")
                assert events.setdefault(event.id, same) == same
        return events

    def is_encrypted(self, number: int) -> bool:
        """Whether the coordinator on that machine uses TLS, as a client finds by connecting."""
        found = find_endpoint(self.folder / str(number) / "home", "r")
        call = f"dial({found.host!r}, {found.port}, {found.token!r}, role='operator')"
        program = (
            f"import asyncio; from holdfast.run.dial import dial; print(asyncio.run({call}).is_encrypted)"
        )
        command = [*self.machines[number].prefix, sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
        return done.stdout == "True\n"

    def kill(self, number: int) -> None:
        """Cut the machine's power: everything on it is gone at once."""
        for pid in descendants(self.launched[number].process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def tell(self) -> str:
        return "\n".join(
            f"--- {number}\n" + "\n".join((*launched.out, *launched.err))
            for number, launched in enumerate(self.launched)
        )

    def finish(self) -> list[int]:
        (self.folder / "enough").touch()
        return [launched.wait() for launched in self.launched]

    def close(self) -> None:
        for machine in self.machines:
            machine.heal()
        for number, launched in enumerate(self.launched):
            self.kill(number)
            launched.close()
