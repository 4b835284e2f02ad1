"""The live testbed, in short: a fault made for real is found, and nothing is left of it all.

It needs root, namespaces and a real Prometheus, which is installed like the servers of the whole suite.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import WAIT_S, alone, until

pytestmark = [pytest.mark.root, pytest.mark.slow]

LIVE = Path(__file__).parents[2] / "testbed" / "live.py"
PLAY_WAIT_S = 300.0
TRIES = 2
SLOWER_MIN = 2.0


@pytest.fixture
def live(need: Callable[..., None]) -> Iterator[list[str]]:
    """The command, once all it needs is there, and no other worker's testbed."""
    need("iproute2", "util-linux", "e2fsprogs", "prometheus", "prometheus-node-exporter")
    with alone("testbed"):
        yield [sys.executable, str(LIVE)]


def leftovers() -> list[str]:
    """What has a testbed's name."""
    places = ["/run/netns/hf-*", "/sys/class/net/hf-*", "/sys/fs/cgroup/hf-*", "/sys/fs/cgroup/*/hf-*"]
    found = [path for place in places for path in Path("/").glob(place.removeprefix("/"))]
    found += Path("/dev/shm").glob("hf-testbed-*")
    loops = subprocess.run(["losetup", "--all"], capture_output=True, text=True, check=True).stdout
    return [*map(str, found), *(loop for loop in loops.splitlines() if "hf-testbed-" in loop)]


@pytest.mark.soak
def test_a_slow_link_is_found_behind_the_node_that_has_it(live: list[str]) -> None:
    """In one of two tries: other tests may take the machine from the nodes while the fault is there."""
    told = []
    for _ in range(TRIES):
        done = subprocess.run(
            [*live, "--brief", "--fault", "link", "--json"],
            capture_output=True,
            text=True,
            timeout=PLAY_WAIT_S,
            check=False,
        )
        told.append(done.stdout + done.stderr)
        until(lambda: not leftovers(), leftovers)
        if done.returncode == 0 and json.loads(done.stdout)[0]["slowdown"] > SLOWER_MIN:
            return
    pytest.fail("\n\n".join(told))


@pytest.mark.soak
@pytest.mark.parametrize(
    "fault", ["cooling", "storage", "loader", "gc", "loss", "disk", "memory", "rollout", "hang"]
)
def test_every_other_fault_is_found_too(live: list[str], fault: str) -> None:
    done = subprocess.run(
        [*live, "--fault", fault, "--json"], capture_output=True, text=True, timeout=PLAY_WAIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (verdict,) = json.loads(done.stdout)
    assert (verdict["fault"], verdict["is_right"]) == (fault, True)
    until(lambda: not leftovers(), leftovers)


@pytest.mark.soak
def test_a_testbed_that_is_stopped_removes_everything(live: list[str]) -> None:
    process = subprocess.Popen(live, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert "started" in process.stderr.readline()
        assert leftovers()
        second = subprocess.run(
            live, capture_output=True, text=True, timeout=WAIT_S, check=False
        )  # must not take the first one's nodes for what was left behind
        assert (second.returncode, second.stderr) == (2, "testbed: another testbed runs on this machine\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 128 + signal.SIGINT
        assert "everything is removed" in process.stderr.read()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()
    until(lambda: not leftovers(), leftovers)
