"""Coordinators whose whole machine dies or is cut off: real processes in network namespaces, and SIGKILL."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from networks import NetworkedRun, Way, network
from quantity import sampled
from waiting import alone

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


def test_another_machine_takes_over_from_one_that_dies(site: NetworkedRun) -> None:
    site.start()
    site.until_heirs()
    site.kill(0)
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    assert len(site.coordinating()) == 1
    assert site.finish()[1:] == [0, 0]
    assert all(len({*launched.pids()}) == 1 for launched in site.launched[1:])  # the same processes


def test_a_run_that_is_started_again_where_it_was_lost_joins_the_others(site: NetworkedRun) -> None:
    site.start()
    site.until_heirs()
    site.kill(0)
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    site.start_again(0)
    site.until_generation("n0.0", "n1.0", "n2.0", among=[1, 2])
    assert site.finish()[1:] == [0, 0, 0]


def test_a_coordinator_that_is_cut_off_is_replaced_and_its_machine_comes_back(site: NetworkedRun) -> None:
    site.start()
    site.until_heirs()
    site.machines[0].cut("in", "out")
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    site.machines[0].heal()
    site.until_generation("n0.0+1", "n1.0", "n2.0")
    assert len(site.coordinating()) == 1
    site.launched[0].until_said("this machine's coordinator ends: another machine coordinates the run now")
    assert site.finish() == [0, 0, 0]


def test_a_machine_that_is_cut_off_stops_and_comes_back(site: NetworkedRun) -> None:
    site.start()
    site.until_heirs()
    site.machines[2].cut("in", "out")
    site.until_generation("n0.0", "n1.0", among=[0, 1])
    site.machines[2].heal()
    site.until_generation("n0.0", "n1.0", "n2.0+1")
    assert site.coordinating() == []
    assert site.finish() == [0, 0, 0]


@pytest.mark.parametrize("way", sampled(["out", "in"], ["out"]))
def test_a_coordinator_that_is_cut_off_one_way_is_replaced(site: NetworkedRun, way: Way) -> None:
    site.start()
    site.until_heirs()
    site.machines[0].cut(way)
    site.until_generation("n1.0", "n2.0", among=[1, 2])
    site.machines[0].heal()
    site.until_generation("n0.0+1", "n1.0", "n2.0")
    assert site.finish() == [0, 0, 0]
