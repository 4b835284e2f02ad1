"""A watch over a cluster, with a real server that has all of its series: what a later look asks for."""

import shutil

import pytest

from bench.watch import SERVER, WatchBench, measure

pytestmark = pytest.mark.slow

LOOKS = 4


def measured(nodes: int) -> WatchBench:
    if shutil.which(SERVER) is None:
        pytest.skip(f"no {SERVER}")
    return measure(nodes, LOOKS)


@pytest.mark.soak
@pytest.mark.parametrize("nodes", [8, 2_048])
def test_a_later_look_fetches_a_fraction_also_while_an_incident_is_open(nodes: int) -> None:
    found = measured(nodes)
    for looks in (found.quiet, found.incident):
        # Of a window of 180 scrapes, the new one and those of the last minute.
        assert looks.later_samples <= 0.1 * looks.first_samples
    assert found.incident.first_samples > 1.2 * found.quiet.first_samples  # with what was before
