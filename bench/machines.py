"""Machines in network namespaces on one bridge, whose connections can be cut, slowed and healed at will.

They share this machine's processors and files; only the network is each one's own. Only root can make them.
Leftovers of a killed process are removed first, by their names.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

DEVICE = "cable"
"""A machine's end of its connection, in its namespace."""
COMMAND_S_MAX = 60.0
DROP_ALL = ("bpf", "direct-action", "bytecode", "1,6 0 0 2")
"""A packet filter of one instruction: drop (linux/filter.h, TC_ACT_SHOT)."""
DROP_SOME = (*DROP_ALL[:3], "4,32 0 0 4294963256,53 0 1 214748365,6 0 0 0,6 0 0 2")
"""One that loads a random number and drops if it is below a twentieth of the largest (SKF_AD_RANDOM)."""

Way = Literal["in", "out"]


def sh(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_S_MAX)


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A bridge and its machines. prefix: of all their names; subnet: the first three numbers of addresses.
    Two sites at a time need different ones.
    """

    prefix: str
    subnet: str

    @property
    def bridge(self) -> str:
        return f"{self.prefix}-bridge"


class NetworkedMachine:
    """One machine."""

    def __init__(self, site: Site, number: int) -> None:
        self.number = number
        self.address = f"{site.subnet}.{10 + number}"
        self._bridge = site.bridge
        self._namespace = f"{site.prefix}-n{number}"
        self._plug = f"{site.prefix}-plug{number}"

    @property
    def prefix(self) -> tuple[str, ...]:
        """The prefix that runs a command there."""
        return ("nsenter", f"--net=/run/netns/{self._namespace}")

    def plug_in(self) -> None:
        sh("ip", "netns", "add", self._namespace)
        sh("ip", "link", "add", self._plug, "type", "veth", "peer", "name", DEVICE, "netns", self._namespace)
        sh("ip", "link", "set", self._plug, "master", self._bridge, "up")
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


def can_make_machines() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "nsenter")))


@contextlib.contextmanager
def network(site: Site, count: int) -> Iterator[list[NetworkedMachine]]:
    """This many machines, for as long as the block lasts."""
    machines = [NetworkedMachine(site, number) for number in range(count)]
    _remove(site, machines)
    sh("ip", "link", "add", site.bridge, "type", "bridge")
    try:
        sh("ip", "address", "add", f"{site.subnet}.1/24", "dev", site.bridge)
        sh("ip", "link", "set", site.bridge, "up")
        for machine in machines:
            machine.plug_in()
        yield machines
    finally:
        _remove(site, machines)


def _remove(site: Site, machines: list[NetworkedMachine]) -> None:
    for machine in machines:
        machine.remove()
    if Path(f"/sys/class/net/{site.bridge}").exists():
        sh("ip", "link", "delete", site.bridge)
