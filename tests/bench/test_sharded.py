"""`holdfast bench sharded`: its figures, its plan of kills, and the benchmark itself with a tiny model."""

import subprocess
import sys
from itertools import pairwise

import msgspec
import pytest

from bench.contestants import SCRIPTS
from bench.gpu_recovery import Recovered
from bench.kills import PHASES, Recovery
from bench.sharded import SIZES, ShardedBench, summary, table
from bench.sharded_parts import (
    BITS_MOMENTS,
    BITS_STEPS_PER_KILL,
    MEMBERS,
    PARTS,
    Bits,
    Lone,
    Memory,
    Mirrors,
    Recoveries,
    ReduceScatter,
    Result,
    Sides,
    Steps,
    Turn,
    contest,
    kills,
)

pytestmark = pytest.mark.slow

BENCH_S_MAX = 900


def recovery(seconds: float) -> Recovery:
    return Recovery(recovered_s=seconds, step_s=0.1, steps_lost=0)


def recovered(seconds: float) -> Recovered:
    return Recovered(recovery=recovery(seconds), phases_s=dict.fromkeys(PHASES, seconds / len(PHASES)))


def bits(*, digest: str = "aa", survivors: tuple[str, ...] = (), lost: int = 0) -> Bits:
    return Bits(
        digests=("aa", digest),
        kills=10,
        steps=60,
        steps_lost=lost,
        checkpoints_loaded=0,
        survivors_lost=list(survivors),
    )


def turn(ours_s: float, theirs_s: float) -> Turn:
    return Turn(step_s=(ours_s, theirs_s), cpu_s=(2 * ours_s, theirs_s))


SIDES = Sides(names=("holdfast", "torchrun"), replicas=2, shard=2, block=2)
MEMORY = (
    Memory(peak_bytes=55, shard_bytes=10, sheets=2, sheets_bytes=20),
    Memory(peak_bytes=40, shard_bytes=10),
)
RESULTS: dict[str, Result] = {
    "bits": bits(),
    "recovery": Recoveries(
        refilled=tuple(map(recovered, (0.5, 0.7, 9))),
        shelved=tuple(map(recovered, (0.25, 0.3, 0.2))),
        restarted=tuple(map(recovery, (7, 8, 99))),
        survivors_lost=[],
    ),
    "steps": Steps(
        hsdp=contest(SIDES, MEMORY, [turn(1.0, 1.0), turn(3.3, 3.0), turn(1.4, 1.0)]),
        fsdp=contest(SIDES, MEMORY, [turn(1.2, 1.0)]),
    ),
    "mirrors": Mirrors(contest=contest(SIDES, MEMORY, [turn(4.0, 3.0)])),
    "lone": Lone(bits=bits(), state_s=(0.5, 0.75, 3.0)),
    "reduce-scatter": ReduceScatter(ratio={2: 0.5, 4: 0.75}, seconds={2: (1, 2), 4: (3, 4)}),
}


def summed(results: dict[str, Result], errors: dict[str, str] | None = None) -> ShardedBench:
    return summary(results, errors or {}, size="tiny", device="cpu", torch="2.13")


def test_every_part_has_its_figures() -> None:
    bench = summed(RESULTS)
    assert set(RESULTS) == set(PARTS)
    assert (bench.bits_equal, bench.steps_lost, bench.kills) == (True, 0, 20)
    assert (bench.lone_bits_equal, bench.mirror_refill_s) == (True, 0.75)
    assert (bench.refill_s, bench.shelve_s, bench.torchrun_s) == (0.7, 0.25, 8)
    assert bench.refill_beyond_step_s == pytest.approx(0.6)
    assert bench.torchrun_beyond_step_s == pytest.approx(7.9)
    assert bench.refill_ratio_torchrun == pytest.approx(0.7 / 8)
    assert bench.step_ratio_fsdp == pytest.approx(1.1)
    assert bench.step_ratio_fsdp_alone == 1.2
    assert bench.mirror_stall_ratio == pytest.approx(1 / 3)
    assert (bench.memory_ratio_fsdp, bench.reduce_scatter_ratio) == (55 / 40, 0.75)
    assert bench.phases is not None
    assert list(bench.phases) == list(PHASES)
    assert sum(bench.phases.values()) == pytest.approx(0.7)


def test_a_part_that_was_not_run_has_none() -> None:
    bench = summed({})
    assert (bench.bits_equal, bench.refill_s, bench.step_ratio_fsdp) == (None, None, None)
    assert table(bench).split() == ["survivors", "lost", "0"]


def test_one_different_digest_lost_step_or_lost_survivor_shows() -> None:
    struck = bits(digest="bb", survivors=("n0.3",), lost=2)
    bench = summed({"bits": struck})
    assert (bench.bits_equal, bench.steps_lost, bench.survivors_lost) == (False, 2, ["n0.3"])
    bench = summed({"lone": Lone(bits=struck, state_s=())})
    assert (bench.lone_bits_equal, bench.steps_lost, bench.survivors_lost) == (False, 2, ["n0.3"])


def test_the_table_shows_every_figure() -> None:
    shown = table(summed(RESULTS, {"bits": "it hung"}))
    for figure in (
        "yes",
        "0.700 s",
        "0.250 s",
        "8.000 s",
        "0.087",
        "1.100",
        "1.200",
        "1.375",
        "0.750",
        "0.333",
    ):
        assert figure in shown
    assert "2 sheets" in shown
    assert "bits failed: it hung" in shown


def test_kills_are_one_at_a_time_in_every_moment_and_the_same_each_time() -> None:
    faults = kills(12)
    assert faults == kills(12)
    assert {fault.moment for fault in faults} == set(BITS_MOMENTS)
    assert all(0 <= fault.rank < MEMBERS for fault in faults)
    steps = [fault.step for fault in faults]
    assert all(after - before > BITS_STEPS_PER_KILL // 2 for before, after in pairwise(steps))


@pytest.mark.soak
def test_the_sizes_are_those_of_the_scripts() -> None:
    program = "from gpu_model import SIZES; print(*SIZES)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=SCRIPTS, capture_output=True, check=True, text=True
    )
    assert set(done.stdout.split()) == set(SIZES)


@pytest.mark.soak
def test_killed_ranks_leave_no_trace() -> None:
    """The benchmark itself, once."""
    bench = [sys.executable, "-m", "holdfast", "bench", "sharded", "--json"]
    once = ["--size", "tiny", "--repetitions", "1", "--kills", "4"]
    done = subprocess.run(bench + once, capture_output=True, check=False, timeout=BENCH_S_MAX, text=True)
    assert done.returncode == 0, done.stderr
    result = msgspec.json.decode(done.stdout, type=ShardedBench)
    assert (result.bits_equal, result.steps_lost, result.survivors_lost) == (True, 0, [])
    assert result.kills == 4
    assert result.refill_s is not None
    assert result.torchrun_s is not None
    assert 0 < result.refill_s < result.torchrun_s
    assert result.reduce_scatter_ratio is not None
    assert result.step_ratio_fsdp is not None
