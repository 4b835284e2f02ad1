"""The result of `holdfast bench gpu`: for programs as a structure, for people as a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

import msgspec

from bench.gpu_parts import (
    Bits,
    Compiled,
    Deterministic,
    Kernel,
    Relaxed,
    Result,
    Steps,
    Storm,
    phases,
)
from bench.gpu_recovery import Recoveries, Restarts
from bench.kills import Recovery

T = TypeVar("T")

DIGITS_SHOWN = 16
TORCHRUN = (
    "torchrun --max-restarts, DDP on NCCL, a checkpoint after every step, in memory where there is room"
)


class Nccl(msgspec.Struct, frozen=True, kw_only=True):
    """Members on NCCL. Times are medians, in seconds. None: its part was not run, or failed.

    version                 NCCL's own, of the members that met by it; None: none did
    bits_equal              1, 2, 3 and 4 members ended with the same digest
    kills                   how many members and nodes were struck in one run of 4 members
    kills_bits_equal        that run ended with the digest of an undisturbed one
    steps_lost              in that run: committed steps that it went back behind
    checkpoints_loaded      in that run: how often no member was left to take the state from
    survivors_lost          in all runs: members lost though neither they nor their node were struck
    broken_without_loss     in the runs of fixed length: generations that the same members had to leave
    replace_s               SIGKILL of a worker to the next step of all, its place taken by a warm process
    shrink_s                SIGKILL of a whole node to the next step of the others
    ..._beyond_step_s       the same, less one step
    torchrun_s              the same kill, until torchrun's ranks commit a step again
    phases, shrink_phases   where that time goes; nccl is abort, group and state together
    """

    version: str | None
    bits_equal: bool | None
    kills: int | None
    kills_bits_equal: bool | None
    steps_lost: int | None
    checkpoints_loaded: int | None
    broken_without_loss: int
    survivors_lost: int
    survivors: list[str]
    replace_s: float | None
    replace_beyond_step_s: float | None
    shrink_s: float | None
    shrink_beyond_step_s: float | None
    torchrun_s: float | None
    torchrun: str
    phases: dict[str, float] | None
    shrink_phases: dict[str, float] | None
    samples: dict[str, tuple[Recovery, ...]]


class GpuBench(msgspec.Struct, frozen=True, kw_only=True):
    """All figures. None: its part was not run, or failed; then errors has why.

    bits_equal, losses_equal         all members' runs, the killed one too, against one member's
    step_ratio_plain                 one member's step by that of a plain loop with torch's fast kernels
    step_ratio_plain_deterministic   the same by that of a plain loop with the same deterministic kernels
    compile_ratio                    the same, both with torch.compile(model)
    deterministic_ratio              device time in a step of a plain loop with them by one without
    deterministic_costs              extra milliseconds a step of the operations that change most
    kernels                          single operations with deterministic kernels and without
    relaxed                          what deterministic=False keeps
    recovery                         the output of the killed run
    seconds                          how long each part took
    """

    device: str
    torch: str
    bits_equal: bool | None
    losses_equal: bool | None
    step_ratio_plain: float | None
    step_ratio_plain_deterministic: float | None
    compile_ratio: float | None
    deterministic_ratio: float | None
    deterministic_costs: dict[str, float]
    kernels: dict[str, Kernel]
    relaxed: Relaxed | None
    nccl: Nccl
    step_s: dict[str, float]
    digests: dict[str, str]
    recovery: list[str]
    seconds: dict[str, float]
    errors: dict[str, str]


def summary(
    results: Mapping[str, Result],
    errors: dict[str, str],
    seconds: dict[str, float],
    *,
    device: str,
    torch: str,
) -> GpuBench:
    found = list(results.values())
    bits, steps, compiled = _of(found, Bits), _of(found, Steps), _of(found, Compiled)
    deterministic = _of(found, Deterministic)
    contests = bits.contests if bits else []
    one = contests[0] if contests else None
    timed = [steps.step_s if steps else {}, compiled.step_s if compiled else {}]
    step_s = {contest.name: contest.step_s for contest in contests}
    return GpuBench(
        device=device,
        torch=torch,
        bits_equal=all(contest.digest == one.digest for contest in contests) if one else None,
        losses_equal=all(contest.losses.items() <= one.losses.items() for contest in contests)
        if one
        else None,
        step_ratio_plain=steps.ratio_plain if steps else None,
        step_ratio_plain_deterministic=steps.ratio_plain_deterministic if steps else None,
        compile_ratio=compiled.ratio if compiled else None,
        deterministic_ratio=deterministic.ratio if deterministic else None,
        deterministic_costs=deterministic.costs_ms if deterministic else {},
        kernels=deterministic.kernels if deterministic else {},
        relaxed=_of(found, Relaxed),
        nccl=_nccl(found),
        step_s={**step_s, **timed[0], **timed[1]},
        digests={contest.name: contest.digest for contest in contests},
        recovery=[line for line in contests[-1].said if "generation" in line or "strikes" in line]
        if contests
        else [],
        seconds=seconds,
        errors=errors,
    )


def _nccl(found: Sequence[Result]) -> Nccl:
    bits, storm, killed = _of(found, Bits), _of(found, Storm), _of(found, Recoveries)
    contests = bits.contests if bits else []
    runs = [*contests, *([storm.disturbed, storm.undisturbed] if storm else [])]
    replaced = [each.recovery for each in killed.replaced] if killed else []
    shrunk = [each.recovery for each in killed.shrunk] if killed else []
    torchrun = restarts.restarted if (restarts := _of(found, Restarts)) else ()
    survivors = [name for run in runs for name in run.survivors_lost]
    survivors += killed.survivors_lost if killed else []
    survivors += relaxed.survivors_lost if (relaxed := _of(found, Relaxed)) else []
    return Nccl(
        version=next((run.nccl for run in contests[:-1] or runs if run.nccl), None),
        broken_without_loss=sum("the same members again" in line for run in runs for line in run.said),
        bits_equal=len({contest.digest for contest in contests[:-1]}) == 1 if contests else None,
        kills=storm.disturbed.kills if storm else None,
        kills_bits_equal=storm.disturbed.digest == storm.undisturbed.digest if storm else None,
        steps_lost=storm.disturbed.steps_lost if storm else None,
        checkpoints_loaded=storm.disturbed.checkpoints_loaded if storm else None,
        survivors_lost=len(survivors),
        survivors=survivors,
        replace_s=_median(each.recovered_s for each in replaced),
        replace_beyond_step_s=_median(each.recovered_s - each.step_s for each in replaced),
        shrink_s=_median(each.recovered_s for each in shrunk),
        shrink_beyond_step_s=_median(each.recovered_s - each.step_s for each in shrunk),
        torchrun_s=_median(each.recovered_s for each in torchrun),
        torchrun=TORCHRUN,
        phases=phases(killed.replaced) if killed else None,
        shrink_phases=phases(killed.shrunk) if killed else None,
        samples={"replace": tuple(replaced), "shrink": tuple(shrunk), "torchrun": torchrun},
    )


def _of(found: Iterable[Result], kind: type[T]) -> T | None:
    return next((result for result in found if isinstance(result, kind)), None)


def _median(samples: Iterable[float]) -> float | None:
    known = list(samples)
    return median(known) if known else None


def table(bench: GpuBench) -> str:
    """A figure a line; missing figures are left out."""
    return "\n".join(line.rstrip() for line in _lines(bench))


def _lines(bench: GpuBench) -> Iterator[str]:
    yield f"{bench.device}, torch {bench.torch}, NCCL {bench.nccl.version or 'not used'}"
    for name, step_s in bench.step_s.items():
        yield _line(name, f"{step_s * 1000:.1f} ms", bench.digests.get(name, "")[:DIGITS_SHOWN])
    yield from _shown(
        ("a step : plain loop, same kernels", bench.step_ratio_plain_deterministic, "at most 1.02 wanted"),
        ("a step : plain loop, fast kernels", bench.step_ratio_plain, ""),
        ("compiled : plain loop, compiled", bench.compile_ratio, "same deterministic kernels"),
        ("deterministic : fast kernels", bench.deterministic_ratio, "device time"),
    )
    yield from _cost_lines(bench)
    yield from _nccl_lines(bench)
    if bench.relaxed is not None:
        note = f"{bench.relaxed.kills} kill, {bench.relaxed.steps_lost} steps lost"
        yield _line("deterministic=False, losses", f"{bench.relaxed.loss_difference_max:.1e}", note)
    for part, error in bench.errors.items():
        yield f"{part} failed: {error}"


def _cost_lines(bench: GpuBench) -> Iterator[str]:
    for name, extra_ms in bench.deterministic_costs.items():
        yield _line(f"  {name}", f"{extra_ms:+.2f} ms", "a step, by deterministic kernels")
    for name, kernel in bench.kernels.items():
        times = f"{_ms(kernel.fast_ms)} : {_ms(kernel.deterministic_ms)}"
        yield _line(f"  {name}", times, f"ms, fast : deterministic  {kernel.refused}")


def _nccl_lines(bench: GpuBench) -> Iterator[str]:
    nccl = bench.nccl
    yield from _told(
        ("bits of 1 to 4 members equal", nccl.bits_equal),
        ("kills in one run", nccl.kills),
        ("  its bits equal", nccl.kills_bits_equal),
        ("  steps lost", nccl.steps_lost),
        ("  checkpoints loaded", nccl.checkpoints_loaded),
        ("survivors lost, in all runs", nccl.survivors_lost),
        ("groups broken without a loss", nccl.broken_without_loss),
    )
    yield from _seconds("a worker killed", nccl.replace_s, nccl.replace_beyond_step_s, nccl.phases)
    yield from _seconds("a node killed", nccl.shrink_s, nccl.shrink_beyond_step_s, nccl.shrink_phases)
    if nccl.torchrun_s is not None:
        yield _line("torchrun", f"{nccl.torchrun_s:.2f} s", nccl.torchrun)


def _seconds(
    name: str, all_s: float | None, beyond_s: float | None, parts: Mapping[str, float] | None
) -> Iterator[str]:
    if all_s is None or beyond_s is None:
        return
    yield _line(name, f"{all_s:.2f} s", f"to the next step of all; {beyond_s:.2f} s beyond one step")
    for phase, seconds in (parts or {}).items():
        yield _line(f"  {phase.replace('_', ' ')}", f"{seconds:.2f} s", "")


def _shown(*rows: tuple[str, float | None, str]) -> Iterator[str]:
    for name, ratio, note in rows:
        if ratio is not None:
            yield _line(name, f"{ratio:.3f}", note)


def _told(*rows: tuple[str, object]) -> Iterator[str]:
    words = {True: "yes", False: "no"}
    for name, value in rows:
        if value is not None:
            yield _line(name, words[value] if isinstance(value, bool) else str(value), "")


def _line(name: str, figure: str, note: str) -> str:
    return f"{name:<44}{figure:>14}   {note}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
