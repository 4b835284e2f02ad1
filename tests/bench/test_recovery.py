import subprocess
import sys

import msgspec
import pytest
from click.testing import CliRunner

from bench.contestants import PEERS, Contestant
from bench.kills import PHASES, Recovery, Survival, Undisturbed
from bench.recovery import RecoveryBench, command, present, summary, table

pytestmark = pytest.mark.slow

CALM = Undisturbed(step_s=0.03, digest="aa")
BENCH_S_MAX = 400


def recovery(seconds: float, *, lost: int = 0, shrunk_s: float | None = None) -> Recovery:
    return Recovery(recovered_s=seconds, step_s=0.03, steps_lost=lost, shrunk_s=shrunk_s)


def survival(seconds: float, *, digest: str = "aa", lost: int = 0) -> Survival:
    phases_s = dict.fromkeys(PHASES, seconds / len(PHASES))
    return Survival(
        worker=recovery(seconds, lost=lost), node=recovery(seconds / 2), phases_s=phases_s, digest=digest
    )


def test_every_figure_is_a_median() -> None:
    runs = [survival(seconds) for seconds in (0.3, 0.2, 0.9)]
    peers = {
        "torchrun": (recovery(7), recovery(8), recovery(99)),
        "nvrx": (recovery(2.5), recovery(1.5)),
        "torchft": (recovery(9, shrunk_s=0.6), recovery(10)),
    }
    bench = summary(4, CALM, runs, peers)
    assert (bench.holdfast_s, bench.shrink_s, bench.floor_s) == (0.3, 0.15, 0.03)
    assert (bench.torchrun_s, bench.nvrx_s, bench.torchft_s) == (8, 2, 9.5)
    assert (bench.torchft_shrink_s, bench.torchft_spare_s) == (0.6, None)
    assert bench.phases == dict.fromkeys(PHASES, pytest.approx(0.3 / len(PHASES)))
    assert bench.ratio_torchrun == pytest.approx(0.3 / 8)
    assert bench.ratio_best_peer == pytest.approx(0.3 / 2)
    assert (bench.steps_lost, bench.bits_equal) == (0, True)


def test_one_different_digest_or_lost_step_shows() -> None:
    bench = summary(4, CALM, [survival(0.3), survival(0.3, digest="bb", lost=2)], {})
    assert (bench.steps_lost, bench.bits_equal) == (2, False)
    assert (bench.torchrun_s, bench.ratio_torchrun, bench.ratio_best_peer) == (None, None, None)


def test_the_table_shows_every_figure() -> None:
    bench = summary(4, CALM, [survival(0.3)], {"torchrun": (recovery(7.25),), "nvrx": ()})
    rows = {line.split("  ")[0]: line for line in table(bench).splitlines()}
    assert "0.300 s" in rows["holdfast"]
    assert "0.150 s" in rows["holdfast, a node lost"]
    assert "7.250 s" in rows["torchrun"]
    assert rows["nvrx"].split()[1] == "-"
    assert rows["the same bits"].split()[-1] == "yes"
    assert rows["of the best peer"].split()[-1] == "0.04"


def test_a_peer_that_is_not_installed_is_left_out_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    absent = Contestant(name="absent", needs="no_such_module", launches=lambda _: ())
    assert present([absent], sys.executable) == []
    assert "absent is left out" in capsys.readouterr().err


def test_an_unknown_peer_is_refused() -> None:
    refused = CliRunner().invoke(command, ["--peer", "horovod"])
    assert refused.exception is not None
    assert "horovod is not a peer" in str(refused.exception)


@pytest.mark.soak
def test_a_killed_worker_and_a_lost_node_leave_no_trace() -> None:
    """The benchmark itself, once, with few members and the peer that is there wherever torch is."""
    bench = [sys.executable, "-m", "holdfast", "bench", "recovery", "--json"]
    once = ["--repetitions", "1", "--members", "2", "--peer", PEERS[0].name]
    done = subprocess.run(bench + once, capture_output=True, check=False, timeout=BENCH_S_MAX, text=True)
    assert done.returncode == 0, done.stderr
    result = msgspec.json.decode(done.stdout, type=RecoveryBench)
    assert (result.members, result.bits_equal, result.steps_lost) == (2, True, 0)
    assert result.torchrun_s is not None
    assert 0 < result.holdfast_s < result.torchrun_s
    assert 0 < result.shrink_s < result.torchrun_s
    assert sum(result.phases.values()) == pytest.approx(result.holdfast_s)
    assert done.stderr == ""
