"""Machines in network namespaces on one bridge, for tests of network cuts: their connections can be changed
at will.

Only root can make them. Every name begins with `hh-`; leftovers of a killed test are removed first.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from launching import JOINS, TOKEN, Launched, Start, descendants
from waiting import WAIT_S, until

from holdfast.run.endpoint import find_endpoint
from holdfast.run.estate import OUTLIVES

NETWORK = "10.78.0"
BRIDGE = "hh-bridge"
DEVICE = "hh-cable"
DROP_ALL = ("bpf", "direct-action", "bytecode", "1,6 0 0 2")
"""A packet filter of one instruction: drop (linux/filter.h, TC_ACT_SHOT)."""
DROP_SOME = (*DROP_ALL[:3], "4,32 0 0 4294963256,53 0 1 214748365,6 0 0 0,6 0 0 2")
"""One that loads a random number and drops if it is below a twentieth of the largest (SKF_AD_RANDOM)."""

COORDINATES = "holdfast: this machine ("
"""What a machine's launcher prints when its heir takes over."""

Way = Literal["in", "out"]


def sh(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)


class NetworkedMachine:
    """One machine."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = f"{NETWORK}.{10 + number}"
        self._namespace = f"hh-n{number}"
        self._plug = f"hh-plug{number}"

    @property
    def prefix(self) -> tuple[str, ...]:
        """The prefix that runs a command there."""
        return ("nsenter", f"--net=/run/netns/{self._namespace}")

    def plug_in(self) -> None:
        sh("ip", "netns", "add", self._namespace)
        sh("ip", "link", "add", self._plug, "type", "veth", "peer", "name", DEVICE, "netns", self._namespace)
        sh("ip", "link", "set", self._plug, "master", BRIDGE, "up")
        inside = ("ip", "-n", self._namespace)
        sh(*inside, "address", "add", f"{self.address}/24", "dev", DEVICE)
        sh(*inside, "link", "set", DEVICE, "up")
        sh(*inside, "link", "set", "lo", "up")

    def remove(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            sh("ip", "link", "delete", self._plug)
        with contextlib.suppress(subprocess.CalledProcessError):
            sh("ip", "netns", "delete", self._namespace)

    def cut(self, *ways: Way) -> None:
        """Drop everything that goes in, or out."""
        for way in ways:
            tc, device = self._end(way)
            sh(*tc, "qdisc", "add", "dev", device, "ingress")
            sh(*tc, "filter", "add", "dev", device, "ingress", *DROP_ALL)

    def heal(self) -> None:
        for way in ("in", "out"):
            tc, device = self._end(way)
            with contextlib.suppress(subprocess.CalledProcessError):  # that way was open
                sh(*tc, "qdisc", "del", "dev", device, "ingress")

    def slow(self, rate: str) -> None:
        """Limit its sending rate, for example to `200kbit`."""
        shape = ("rate", rate, "burst", "4kb", "latency", "500ms")
        sh(*self.prefix, "tc", "qdisc", "replace", "dev", DEVICE, "root", "tbf", *shape)

    def hurry(self) -> None:
        """Remove the limit."""
        sh(*self.prefix, "tc", "qdisc", "del", "dev", DEVICE, "root")

    def lose(self) -> None:
        """Lose a twentieth of what it receives."""
        sh(*self.prefix, "tc", "qdisc", "add", "dev", DEVICE, "ingress")
        sh(*self.prefix, "tc", "filter", "add", "dev", DEVICE, "ingress", *DROP_SOME)

    def _end(self, way: Way | str) -> tuple[tuple[str, ...], str]:
        return ((*self.prefix, "tc"), DEVICE) if way == "in" else (("tc",), self._plug)


@contextlib.contextmanager
def network(count: int) -> Iterator[list[NetworkedMachine]]:
    """This many machines, for as long as the block lasts."""
    machines = [NetworkedMachine(number) for number in range(count)]
    _remove(machines)
    sh("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        sh("ip", "address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        sh("ip", "link", "set", BRIDGE, "up")
        for machine in machines:
            machine.plug_in()
        yield machines
    finally:
        _remove(machines)


def _remove(machines: list[NetworkedMachine]) -> None:
    for machine in machines:
        machine.remove()
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        sh("ip", "link", "delete", BRIDGE)


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
