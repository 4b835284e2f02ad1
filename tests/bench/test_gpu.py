"""`holdfast bench gpu`: its figures, and its ways for real, with a tiny model and without a GPU.

With as many members and kills as on a GPU they take minutes: `make soak`.
"""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.gpu import measure
from bench.gpu_parts import (
    PARTS,
    STORM_STEPS_PER_PAIR,
    TOGETHER,
    Bits,
    Compiled,
    Deterministic,
    Kernel,
    KernelsSeen,
    Relaxed,
    Result,
    Steps,
    Storm,
    extra_ms,
    kernels,
    phases,
    storm_faults,
    toml,
)
from bench.gpu_recovery import Recovered, Recoveries, Restarts
from bench.gpu_result import GpuBench, summary, table
from bench.gpu_runs import MEMBERS_MAX, Plan, Trained, completed, script
from bench.kills import PHASES, Failed, Recovery
from holdfast.run.chaos import RECOVERY_MOMENTS, STEP_MOMENTS, random_plan, read_plan

pytestmark = pytest.mark.slow

BENCH_S_MAX = 400
HEAVY = {"duckdb", "httpx", "numpy", "ray", "scipy", "torch"}


def trained(name: str, *, digest: str = "aa", survivors: tuple[str, ...] = (), kills: int = 0) -> Trained:
    return Trained(
        name=name,
        step_s=0.2,
        digest=digest,
        losses={1: 2.5, 2: 2.25},
        said=["holdfast: run gpu-1", "holdfast: generation 1: 2 members"],
        kills=kills,
        steps_lost=0,
        checkpoints_loaded=0,
        survivors_lost=list(survivors),
        nccl="2.28.9",
    )


def recovered(seconds: float) -> Recovered:
    return Recovered(
        recovery=Recovery(recovered_s=seconds, step_s=0.5, steps_lost=0),
        phases_s=dict.fromkeys(PHASES, seconds / len(PHASES)),
    )


CONTESTS = [trained(name) for name in ("one member", "2 members", "3 members", "4 members", "2, one killed")]
RESULTS: dict[str, Result] = {
    "bits": Bits(contests=CONTESTS),
    "kills": Storm(disturbed=trained("kills", kills=53), undisturbed=trained("undisturbed")),
    "relaxed": Relaxed(steps_lost=0, kills=1, loss_difference_max=1e-5, survivors_lost=[]),
    "step": Steps(ratio_plain=1.25, ratio_plain_deterministic=1.015, step_s={"plain loop": 0.16}),
    "compile": Compiled(ratio=1.031, step_s={}),
    "deterministic": Deterministic(
        ratio=1.125,
        costs_ms={"aten::_flash_attention_backward": 12.5},
        kernels={"embedding": Kernel(fast_ms=0.5, deterministic_ms=1.75)},
    ),
    "recovery": Recoveries(
        replaced=tuple(map(recovered, (1.5, 1.7, 9))),
        shrunk=tuple(map(recovered, (0.75, 0.9, 0.8))),
        survivors_lost=[],
    ),
    "torchrun": Restarts(restarted=(Recovery(recovered_s=14.25, step_s=0.5, steps_lost=1),)),
}


def summed(results: dict[str, Result], errors: dict[str, str] | None = None) -> GpuBench:
    return summary(results, errors or {}, {}, device="H200", torch="2.11")


def test_every_part_has_its_figures() -> None:
    bench = summed(RESULTS)
    assert set(RESULTS) == set(PARTS)
    assert (bench.bits_equal, bench.losses_equal, bench.nccl.bits_equal) == (True, True, True)
    assert (bench.nccl.kills, bench.nccl.steps_lost, bench.nccl.survivors_lost) == (53, 0, 0)
    assert (bench.nccl.replace_s, bench.nccl.replace_beyond_step_s) == (1.7, 1.2)
    assert (bench.nccl.shrink_s, bench.nccl.torchrun_s) == (0.8, 14.25)
    assert bench.nccl.phases is not None
    assert set(bench.nccl.phases) == {*PHASES, "nccl"}
    assert bench.nccl.phases["nccl"] == pytest.approx(3 * 1.7 / 7)
    assert (bench.compile_ratio, bench.deterministic_ratio) == (1.031, 1.125)
    assert bench.recovery == ["holdfast: generation 1: 2 members"]


def test_a_part_that_was_not_run_has_none() -> None:
    bench = summed({})
    assert (bench.bits_equal, bench.step_ratio_plain, bench.nccl.replace_s) == (None, None, None)
    assert (bench.nccl.survivors_lost, bench.deterministic_costs) == (0, {})
    assert "failed" not in table(bench)


def test_one_different_digest_or_lost_survivor_shows() -> None:
    odd = [*CONTESTS[:3], trained("4 members", digest="bb"), trained("killed", survivors=("n0.0",))]
    stormy = Storm(disturbed=trained("kills", digest="cc", survivors=("n3.1",)), undisturbed=trained("calm"))
    bench = summed({"bits": Bits(contests=odd), "kills": stormy})
    assert (bench.bits_equal, bench.nccl.bits_equal, bench.nccl.kills_bits_equal) == (False, False, False)
    assert (bench.nccl.survivors_lost, bench.nccl.survivors) == (2, ["n0.0", "n3.1"])


def test_the_table_shows_every_figure() -> None:
    shown = table(summed(RESULTS, {"compile": "no compiler"}))
    for figure in ("1.015", "1.250", "1.031", "1.125", "+12.50 ms", "0.50 : 1.75", "53", "1.70 s", "14.25 s"):
        assert figure in shown
    assert "compile failed: no compiler" in shown


def test_the_largest_changes_are_kept_the_costliest_first() -> None:
    fast = {f"small {number}": 1.0 for number in range(9)} | {"bmm": 3.0, "gone": 2.0}
    strict = {**fast, "bmm": 9.0, "index_put": 4.0, "gone": 0.0}
    costs = extra_ms(fast, strict)
    assert list(costs.items())[:2] == [("bmm", 6.0), ("index_put", 4.0)]
    assert list(costs.items())[-1] == ("gone", -2.0)
    assert len(costs) == 8


def test_a_kernel_that_is_refused_says_why() -> None:
    seen = KernelsSeen(operations_ms={}, candidates_ms={"a": 1.0, "b": 2.0}, refused={"c": "no"})
    strict = KernelsSeen(operations_ms={}, candidates_ms={"a": 1.5}, refused={"b": "not", "c": "no"})
    assert kernels(seen, strict) == {
        "a": Kernel(fast_ms=1.0, deterministic_ms=1.5),
        "b": Kernel(fast_ms=2.0, deterministic_ms=None, refused="not"),
        "c": Kernel(fast_ms=None, deterministic_ms=None, refused="no"),
    }


def test_a_phase_is_the_median_of_all_kills() -> None:
    assert phases([recovered(7), recovered(14), recovered(700)])["build"] == 2


def test_a_plan_is_written_as_it_is_read(tmp_path: Path) -> None:
    faults = random_plan(3, steps=9, count=12, ranks=4, kinds=("kill", "node"), for_s=0.5)
    (tmp_path / "plan.toml").write_text(toml(faults), encoding="ascii")
    assert read_plan(tmp_path / "plan.toml") == faults


def test_the_faults_of_a_storm_are_spread_evenly_and_in_every_moment() -> None:
    faults = storm_faults(55, MEMBERS_MAX)
    assert faults == storm_faults(55, MEMBERS_MAX)
    steps = sorted({fault.step for fault in faults})
    assert {after - before for before, after in pairwise(steps)} == {STORM_STEPS_PER_PAIR}
    assert {fault.moment for fault in faults} == {*STEP_MOMENTS, *RECOVERY_MOMENTS}
    assert {fault.fault for fault in faults} == {"kill", "node"}


@pytest.mark.parametrize("shared", [True, False])
def test_a_part_that_fails_costs_no_other(tmp_path: Path, shared: bool) -> None:
    def fail(plan: Plan) -> Result:
        raise Failed("nobody committed")

    def crash(plan: Plan) -> Result:
        raise ValueError("a defect")

    def partly(plan: Plan) -> Result:
        return Restarts(
            restarted=(Recovery(recovered_s=3.0, step_s=1.0, steps_lost=0),), failure="the second"
        )

    told: list[str] = []
    plan = Plan(
        steps=8,
        members=2,
        kills=2,
        repetitions=1,
        size="tiny",
        storm_size="tiny",
        is_tiny=True,
        place=tmp_path,
        tell=told.append,
    )
    first, second = sorted(TOGETHER)[:2] if shared else ("step", "compile")
    bench = measure(plan, {first: fail, second: crash, "torchrun": partly}, device="cpu", torch="2")
    assert set(bench.errors) == {first, second, "torchrun"}
    assert bench.errors[first] == "nobody committed"
    assert "ValueError: a defect" in bench.errors[second]
    assert (bench.errors["torchrun"], bench.nccl.torchrun_s) == ("the second", 3.0)
    assert "nobody committed" in told


def test_nothing_heavy_is_imported_for_it() -> None:
    program = "import sys, bench.gpu; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert not HEAVY & set(done.stdout.split())


def run_bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "bench", "gpu", *arguments],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        check=False,
        timeout=BENCH_S_MAX,
        text=True,
    )


def tiny(*arguments: str) -> Any:
    done = run_bench("--tiny", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    bench = msgspec.json.decode(done.stdout, type=GpuBench)
    assert bench.errors == {}
    return bench


@pytest.mark.soak
def test_without_a_gpu_it_says_so() -> None:
    done = run_bench()
    assert (done.returncode, done.stdout) == (2, "")
    assert "This machine has no GPU that torch can use." in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.soak
def test_parts_of_every_kind_for_real(tmp_path: Path) -> None:
    """Runs to the end with a kill, turns with a plain loop, kills with a stopwatch: two members each."""
    logs = tmp_path / "logs"
    parts = ("bits", "step", "recovery")
    size = ("--members-max", "2", "--steps", "5", "--repetitions", "1", "--logs", str(logs))
    bench = tiny(*size, *(word for part in parts for word in ("--part", part)))
    assert set(bench.seconds) == set(parts)
    assert list(bench.digests) == ["one member", "2 members", "2 members, one killed"]
    assert (bench.bits_equal, bench.losses_equal, bench.nccl.bits_equal) == (True, True, True)
    assert any("strikes" in line for line in bench.recovery)
    assert "completed" in (logs / "2-members-one-killed.log").read_text(encoding="utf-8")
    assert bench.step_ratio_plain > 0
    check_recoveries(bench)


def check_recoveries(bench: Any) -> None:
    assert bench.nccl.replace_s > 0
    assert bench.nccl.shrink_s > 0
    assert bench.nccl.survivors_lost == 0
    parts = sum(bench.nccl.phases[phase] for phase in PHASES)
    assert parts == pytest.approx(bench.nccl.replace_s)
    del bench.nccl.shrink_phases["nccl"]
    assert sum(bench.nccl.shrink_phases.values()) == pytest.approx(bench.nccl.shrink_s)


@pytest.mark.soak
def test_kernels_are_timed_one_by_one(tmp_path: Path) -> None:
    launched = script(tmp_path, "gpu_kernels.py", ("--size", "tiny", "--deterministic"))
    completed(launched, tmp_path, "kernels", BENCH_S_MAX)
    seen = msgspec.json.decode((tmp_path / "kernels.json").read_bytes(), type=KernelsSeen)
    assert seen.operations_ms
    assert seen.candidates_ms["embedding"] > 0


@pytest.mark.soak
def test_a_step_is_timed_in_turns_with_a_plain_loop() -> None:
    bench = tiny("--part", "step", "--part", "compile", "--part", "deterministic")
    for ratio in (bench.step_ratio_plain, bench.step_ratio_plain_deterministic, bench.compile_ratio):
        assert 0.2 < ratio < 5  # a busy machine measures badly
    assert 0.1 < bench.deterministic_ratio < 10
    assert bench.deterministic_costs
    assert bench.kernels["embedding"].deterministic_ms is not None
    assert set(bench.seconds) == {"step", "compile", "deterministic"}


@pytest.mark.soak
def test_kills_leave_no_trace() -> None:
    bench = tiny("--part", "kills", "--kills", "4", "--part", "relaxed")
    assert bench.nccl.kills >= 2
    assert bench.nccl.kills_bits_equal
    assert (bench.nccl.steps_lost, bench.nccl.survivors_lost) == (0, 0)
    assert (bench.relaxed.kills, bench.relaxed.steps_lost) == (1, 0)
    assert bench.relaxed.loss_difference_max == 0  # a CPU's kernels are deterministic anyway


@pytest.mark.soak
def test_one_to_four_members_have_the_same_bits(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    bench = tiny("--part", "bits", "--steps", "5", "--logs", str(logs))
    assert (bench.bits_equal, bench.losses_equal, bench.nccl.bits_equal) == (True, True, True)
    assert list(bench.digests) == [
        "one member",
        "2 members",
        "3 members",
        "4 members",
        "2 members, one killed",
    ]
    assert any("strikes" in line for line in bench.recovery)
    assert "completed" in (logs / "2-members-one-killed.log").read_text(encoding="utf-8")
    assert len(list(logs.iterdir())) == len(bench.digests)


@pytest.mark.soak
def test_recoveries_are_timed_beside_torchruns() -> None:
    bench = tiny("--part", "recovery", "--part", "torchrun", "--repetitions", "1")
    check_recoveries(bench)
    assert max(bench.nccl.replace_s, bench.nccl.shrink_s) < bench.nccl.torchrun_s
