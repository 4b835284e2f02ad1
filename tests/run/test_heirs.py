"""Coordinators whose whole machine dies or is cut off: real processes in network namespaces, and SIGKILL."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from launching import JOINS, TOKEN, Launched, Start, descendants
from networks import NetworkedMachine, Way, network
from waiting import alone, until

from holdfast.run.estate import OUTLIVES

pytestmark = [pytest.mark.root, pytest.mark.slow]

COORDINATES = "coordinates the run now"


class Site:
    """Machines with a launcher each, of one run. The first one has the coordinator."""

    def __init__(self, folder: Path, machines: list[NetworkedMachine]) -> None:
        self.folder, self.machines = folder, machines
        self.launched: list[Launched] = []

    def start(self, *flags: str, script: str = JOINS) -> None:
        place = f"{self.machines[0].address}:29400"
        nodes = f"1:{len(self.machines)}"
        for machine in self.machines:
            folder = self.folder / str(machine.number)
            folder.mkdir()
            enough = script.replace('"enough"', repr(str(self.folder / "enough")))
            launched = Start(folder, machine.prefix)(
                *("--nnodes", nodes, "--warm", "0", "--coordinator", place, "--run", "r", "--wait", "120"),
                *("--node-rank", str(machine.number), *flags),
                script=enough,
                token=TOKEN,
            )
            self.launched.append(launched)
            if not machine.number:
                launched.until_said("coordinator at")

    def until_generation(self, *names: str, among: Sequence[int] | None = None) -> None:
        """Until the members on these machines, or all, were last told that they are these."""

        def is_so(launched: Launched) -> bool:
            told = [
                line.partition(" generation ")[2] for line in tuple(launched.out) if " generation " in line
            ]
            return bool(told) and sorted(told[-1].split()) == sorted(names)

        for number in range(len(self.launched)) if among is None else among:
            until(lambda: is_so(self.launched[number]), self.tell)  # noqa: B023

    def until_heirs(self) -> None:
        """Until the run would outlive the coordinator's machine, and has every machine."""
        self.until_generation(*(f"n{machine.number}.0" for machine in self.machines))
        self.launched[0].until_said(OUTLIVES)

    def coordinating(self) -> list[int]:
        """The machines that have taken over, in this order."""
        return [
            number
            for number, launched in enumerate(self.launched)
            if any(COORDINATES in line for line in tuple(launched.err))
        ]

    def kill(self, number: int) -> None:
        """The machine's power is cut: everything on it is gone at once."""
        for pid in descendants(self.launched[number].process.pid):
            with suppress(ProcessLookupError):
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


@pytest.fixture
def site(tmp_path: Path, need: Callable[..., None], request: pytest.FixtureRequest) -> Iterator[Site]:
    need("iproute2", "util-linux")
    with alone("networks"), network(getattr(request, "param", 3)) as machines:
        made = Site(tmp_path, machines)
        try:
            yield made
        except BaseException:
            print(made.tell())
            raise
        finally:
            made.close()


def test_another_machine_takes_over_from_one_that_dies(site: Site) -> None:
    site.start()
    site.until_heirs()
    site.kill(0)
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    assert len(site.coordinating()) == 1
    assert site.finish()[1:] == [0, 0]
    assert all(len({*launched.pids()}) == 1 for launched in site.launched[1:])  # the same processes


def test_a_coordinator_that_is_cut_off_is_replaced_and_its_machine_comes_back(site: Site) -> None:
    site.start()
    site.until_heirs()
    site.machines[0].cut("in", "out")
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    site.machines[0].heal()
    site.until_generation("n0.0+1", "n1.0", "n2.0")
    assert len(site.coordinating()) == 1
    site.launched[0].until_said("this machine's coordinator ends: another machine coordinates the run now")
    assert site.finish() == [0, 0, 0]


def test_a_machine_that_is_cut_off_stops_and_comes_back(site: Site) -> None:
    site.start()
    site.until_heirs()
    site.machines[2].cut("in", "out")
    site.until_generation("n0.0", "n1.0", among=[0, 1])
    site.machines[2].heal()
    site.until_generation("n0.0", "n1.0", "n2.0+1")
    assert site.coordinating() == []
    assert site.finish() == [0, 0, 0]


@pytest.mark.parametrize("way", ["out", "in"])
def test_a_coordinator_that_is_cut_off_one_way_is_replaced(site: Site, way: Way) -> None:
    site.start()
    site.until_heirs()
    site.machines[0].cut(way)
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    site.machines[0].heal()
    site.until_generation("n0.0+1", "n1.0", "n2.0")
    assert site.finish() == [0, 0, 0]
