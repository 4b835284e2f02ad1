"""Coordinators whose whole machine dies or is cut off: real processes in network namespaces, and SIGKILL."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import TOKEN, Start
from networks import NetworkedRun, network
from quantity import sampled
from waiting import alone, until

from bench.machines import Way
from holdfast.record.events import MemberLost, StepCommitted
from holdfast.run.agent import EXIT_MISTAKE
from holdfast.run.estate import OUTLIVES

SLOW_S = 20.0
"""Longer than any process waits for a sign of the coordinator."""
PORT = 29464
"""For metrics: each machine has all ports to itself."""
pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def site(tmp_path: Path, need: Callable[..., None], request: pytest.FixtureRequest) -> Iterator[NetworkedRun]:
    need("iproute2", "util-linux")
    with alone("networks"), network(getattr(request, "param", 3)) as machines:
        made = NetworkedRun(tmp_path, machines)
        try:
            yield made
        except BaseException:
            print(made.tell())
            raise
        finally:
            made.close()


@pytest.mark.soak
def test_another_machine_takes_over_from_one_that_dies(site: NetworkedRun) -> None:
    site.start()
    site.until_heirs()
    site.kill(0)
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    assert len(site.coordinating()) == 1
    assert site.finish()[1:] == [0, 0]
    assert all(len({*launched.pids()}) == 1 for launched in site.launched[1:])  # the same processes


def test_what_goes_with_the_coordinator_goes_on_elsewhere(site: NetworkedRun) -> None:
    """Encryption, metrics, a storm, and viewers."""
    site.start("--tls", "--metrics-port", str(PORT), "--chaos", "0.001", "--seed", "7")
    site.until_heirs()
    site.kill(0)
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    (number,) = site.coordinating()
    there = site.machines[number]
    read = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{PORT}/metrics').read().decode())"
    page = subprocess.run(
        [*there.prefix, sys.executable, "-c", read], capture_output=True, text=True, check=True
    )
    assert 'holdfast_run_members{run="r"} 2.0' in page.stdout
    assert site.is_encrypted(number)
    lost = Start(site.folder / "0", site.machines[1].prefix)  # the home of the machine that is dead
    unable = lost.verb("stop", "r")
    assert unable.returncode == EXIT_MISTAKE
    assert there.address in unable.stderr
    looking = lost.attached("r", token=TOKEN)
    site.launched.append(looking)
    for text in (
        f"{there.address} coordinates the run now",
        f"metrics at http://127.0.0.1:{PORT}/metrics on {there.address} now",
        "chaos goes on: 0.001 faults a minute, --seed 7",
    ):
        looking.until_said(text)
    assert site.finish()[1:] == [0, 0, 0]
    assert all(len({*launched.pids()}) == 1 for launched in site.launched[1:3])  # the same processes
    printed = "\n".join(site.launched[number].err)  # its launcher prints what the first one did
    # On a busy machine the members come one after another, so this is not always the second generation.
    assert re.search(r"^holdfast: generation \d+: without n0.0 \(node lost\)", printed, re.MULTILINE)
    assert printed.count("holdfast: run r completed") == 1


@pytest.mark.soak
def test_a_run_that_is_started_again_where_it_was_lost_joins_the_others(site: NetworkedRun) -> None:
    site.start()
    site.until_heirs()
    site.kill(0)
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    site.start_again(0)
    site.until_generation("n0.0+1", "n1.0", "n2.0", among=[1, 2])
    assert site.finish()[1:] == [0, 0, 0]


def test_a_coordinator_that_is_cut_off_is_replaced_and_its_machine_comes_back(site: NetworkedRun) -> None:
    site.start("--tls")
    site.until_heirs()
    site.machines[0].cut("in", "out")
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    site.machines[0].heal()
    site.until_generation("n0.0+1", "n1.0", "n2.0")
    assert len(site.coordinating()) == 1
    site.launched[0].until_said("this machine's coordinator ends: another machine coordinates the run now")
    until(lambda: sum(OUTLIVES in line for line in tuple(site.launched[0].err)) == 2, site.tell)
    assert site.finish() == [0, 0, 0]
    record = site.record().values()  # nothing of how it looked from the machine that was cut off
    assert [event.subject for event in record if isinstance(event, MemberLost)] == ["n0.0"]
    assert len({event.step for event in record if isinstance(event, StepCommitted)}) > 1


@pytest.mark.soak
def test_a_machine_that_is_cut_off_stops_and_comes_back(site: NetworkedRun) -> None:
    site.start()
    site.until_heirs()
    site.machines[2].cut("in", "out")
    site.until_generation("n0.0", "n1.0", among=[0, 1])
    site.machines[2].heal()
    site.until_generation("n0.0", "n1.0", "n2.0+1")
    assert site.coordinating() == []
    assert site.finish() == [0, 0, 0]


@pytest.mark.soak
@pytest.mark.parametrize("way", sampled(["out", "in"], ["out"]))
def test_a_coordinator_that_is_cut_off_one_way_is_replaced(site: NetworkedRun, way: Way) -> None:
    site.start()
    site.until_heirs()
    site.machines[0].cut(way)
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    site.machines[0].heal()
    site.until_generation("n0.0+1", "n1.0", "n2.0")
    assert site.finish() == [0, 0, 0]


@pytest.mark.soak
def test_a_slow_link_changes_nothing(site: NetworkedRun) -> None:
    """Neither the coordinator's nor an heir's: their messages to each other are small."""
    site.start()
    site.until_heirs()
    for machine in site.machines[:2]:
        machine.slow("500kbit")
    time.sleep(SLOW_S)
    assert site.coordinating() == []
    assert site.finish() == [0, 0, 0]
    assert all(len({*launched.pids()}) == 1 for launched in site.launched)


@pytest.mark.soak
def test_the_loss_of_two_machines_of_three_stops_the_third(site: NetworkedRun) -> None:
    site.start()
    site.until_heirs()
    for number in (1, 2):
        site.kill(number)
    site.launched[0].until_said("this machine's coordinator ends: most of the run's machines")
    assert site.launched[0].out[-1].endswith("n2.0")  # no generation without them
