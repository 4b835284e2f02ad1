"""`holdfast bench sharded`: replicas of several ranks that survive kills, and their cost beside HSDP.

Two replicas of two ranks train one GPT with FSDP2. The peer is the same model under torchrun: HSDP on as many
ranks, with a checkpoint after every step if it is to be restarted. On a machine with a GPU all ranks share it
and exchange through NCCL's sockets on the loopback address; otherwise over TCP, the peer with gloo.
"""

import os
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import click
import msgspec

from bench.gpu import EXIT_PART_FAILED, probe
from bench.gpu_recovery import Recovered
from bench.gpu_runs import Plan, measuring_options, memory_backed, teller
from bench.kills import Failed, Recovery
from bench.sharded_parts import (
    MEMBERS,
    PARTS,
    REPLICAS,
    SHARD,
    Bits,
    Contest,
    Lone,
    Mirrors,
    Part,
    Recoveries,
    ReduceScatter,
    Result,
    Steps,
)
from holdfast.cli.record import json_option

SIZES = ("tiny", "small", "124m", "1.3b")
"""As bench/workers/gpu_model.py has them, which imports torch."""
REFILL_RATIO_MAX = 0.2
STEP_RATIO_MAX = 1.10
MIRROR_STALL_RATIO_MAX = 0.03


class ShardedBench(msgspec.Struct, frozen=True, kw_only=True):
    """All figures. None: its part was not run, or failed; then errors has why. Times are medians, in seconds.

    bits_equal              a run with kills ended with the digest of one without
    steps_lost              in that run: committed steps that it went back behind
    survivors_lost          in all runs: members lost that no fault struck
    refill_s                SIGKILL of a rank to the next step of all, its place taken by a warm process
    shelve_s                the same without one, to the next step of the other replica
    torchrun_s              the same kill, until torchrun's ranks commit a step again
    ..._beyond_step_s       the same, less one step: what was being computed is computed again in any case
    refill_ratio_torchrun   of the medians
    step_ratio_fsdp         a step by that of HSDP on as many ranks, both with deterministic kernels
    cpu_ratio_fsdp          the processors' time of all ranks in a step, by HSDP's
    step_ratio_fsdp_alone   one replica's step, without mirrors, by that of FSDP2
    memory_ratio_fsdp       the most that tensors take on a rank in a step, by HSDP's
    reduce_scatter_ratio    64 MB in the order of lanes, by gloo's or NCCL's: the larger of 2 and 4 ranks'
    mirror_stall_ratio      by which share mirrors lengthen a step of one replica of 4 ranks
    lone_bits_equal         such a replica, whose killed ranks were made again from mirrors, has the digest of
                            one without kills; its steps and survivors lost are among the others
    mirror_refill_s         until a rank has its state from its mirror, with the steps that it does again
    phases, shelve_phases   where the time of a recovery goes
    load                    the machine's load average over a minute, before and after
    """

    bits_equal: bool | None
    steps_lost: int | None
    refill_s: float | None
    shelve_s: float | None
    torchrun_s: float | None
    step_ratio_fsdp: float | None
    memory_ratio_fsdp: float | None
    reduce_scatter_ratio: float | None
    mirror_stall_ratio: float | None
    lone_bits_equal: bool | None
    mirror_refill_s: float | None
    cpu_ratio_fsdp: float | None
    step_ratio_fsdp_alone: float | None
    refill_beyond_step_s: float | None
    torchrun_beyond_step_s: float | None
    refill_ratio_torchrun: float | None
    kills: int | None
    survivors_lost: list[str]
    phases: dict[str, float] | None
    shelve_phases: dict[str, float] | None
    replicas: int
    shard: int
    size: str
    device: str
    torch: str
    cores: int
    load: tuple[float, float]
    seconds: dict[str, float]
    errors: dict[str, str]
    bits: Bits | None
    recoveries: Recoveries | None
    steps: Steps | None
    reduce_scatter: ReduceScatter | None
    mirrors: Mirrors | None
    lone: Lone | None


@click.command("sharded")
@click.option(
    "--size",
    type=click.Choice(SIZES),
    help="Of the model: its parameters.  [default: 124m on a GPU, otherwise tiny]",
)
@measuring_options(PARTS, repetitions=3)
@click.option(
    "--kills",
    default=10,
    show_default=True,
    type=click.IntRange(min=1),
    help="Of ranks, in the run whose bits are compared.",
)
@json_option
def command(
    size: str | None, parts: tuple[str, ...], repetitions: int, kills: int, logs: Path | None, as_json: bool
) -> int:
    """Train a GPT with FSDP2 in two replicas of two ranks, kill ranks, time its steps beside HSDP's.

    A failing part is reported, the others still run, and the exit code is 1."""
    torch, device = probe()
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=memory_backed()) as place:
        size = size or ("124m" if device else "tiny")
        plan = Plan(
            steps=0,
            members=MEMBERS,
            kills=kills,
            repetitions=repetitions,
            size=size,
            storm_size=size,
            is_tiny=not device,
            place=Path(place),
            tell=teller("sharded"),
            logs=logs,
        )
        chosen = {part: way for part, way in PARTS.items() if part in (parts or PARTS)}
        bench = measure(plan, chosen, device=device or "cpu", torch=torch)
    click.echo(msgspec.json.format(msgspec.json.encode(bench)).decode() if as_json else table(bench))
    return EXIT_PART_FAILED if bench.errors else 0


def measure(plan: Plan, parts: Mapping[str, Part], *, device: str, torch: str) -> ShardedBench:
    """One part after the other."""
    results: dict[str, Result] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, float] = {}
    load = os.getloadavg()[0]
    for part, way in parts.items():
        begun = time.monotonic()
        try:
            results[part] = way(plan)
        except Failed as failure:
            errors[part] = str(failure)
        except Exception:  # a defect in one part must not cost the others' results
            errors[part] = traceback.format_exc()
        seconds[part] = time.monotonic() - begun
        plan.tell(f"{part}: {'failed' if part in errors else 'done'} after {seconds[part]:.0f} s")
        if part in errors:
            plan.tell(errors[part])
    bench = summary(results, errors, size=plan.size, device=device, torch=torch)
    return msgspec.structs.replace(bench, load=(load, os.getloadavg()[0]), seconds=seconds)


def summary(
    results: Mapping[str, Result], errors: dict[str, str], *, size: str, device: str, torch: str
) -> ShardedBench:
    """The medians of all samples, and the samples."""
    bits, recoveries = results.get("bits"), results.get("recovery")
    steps, reduced = results.get("steps"), results.get("reduce-scatter")
    assert bits is None or isinstance(bits, Bits)
    assert recoveries is None or isinstance(recoveries, Recoveries)
    assert steps is None or isinstance(steps, Steps)
    assert reduced is None or isinstance(reduced, ReduceScatter)
    mirrors, lone = results.get("mirrors"), results.get("lone")
    assert mirrors is None or isinstance(mirrors, Mirrors)
    assert lone is None or isinstance(lone, Lone)
    struck = [found for found in (bits, lone.bits if lone else None) if found is not None]
    refill_s = _median(one.recovery for one in recoveries.refilled) if recoveries else None
    torchrun_s = _median(recoveries.restarted) if recoveries else None
    return ShardedBench(
        bits_equal=bits.digests[0] == bits.digests[1] if bits else None,
        steps_lost=sum(found.steps_lost for found in struck) if struck else None,
        refill_s=refill_s,
        shelve_s=_median(one.recovery for one in recoveries.shelved) if recoveries else None,
        torchrun_s=torchrun_s,
        step_ratio_fsdp=steps.hsdp.step_ratio if steps else None,
        memory_ratio_fsdp=steps.hsdp.memory_ratio if steps else None,
        reduce_scatter_ratio=max(reduced.ratio.values()) if reduced else None,
        mirror_stall_ratio=mirrors.contest.step_ratio - 1 if mirrors else None,
        lone_bits_equal=lone.bits.digests[0] == lone.bits.digests[1] if lone else None,
        mirror_refill_s=median(lone.state_s) if lone and lone.state_s else None,
        cpu_ratio_fsdp=steps.hsdp.cpu_ratio if steps else None,
        step_ratio_fsdp_alone=steps.fsdp.step_ratio if steps else None,
        refill_beyond_step_s=_beyond_step_s(one.recovery for one in recoveries.refilled)
        if recoveries
        else None,
        torchrun_beyond_step_s=_beyond_step_s(recoveries.restarted) if recoveries else None,
        refill_ratio_torchrun=refill_s / torchrun_s if refill_s and torchrun_s else None,
        kills=sum(found.kills for found in struck) if struck else None,
        survivors_lost=[
            *(name for found in struck for name in found.survivors_lost),
            *(recoveries.survivors_lost if recoveries else ()),
        ],
        phases=_phases(recoveries.refilled) if recoveries else None,
        shelve_phases=_phases(recoveries.shelved) if recoveries else None,
        replicas=REPLICAS,
        shard=SHARD,
        size=size,
        device=device,
        torch=torch,
        cores=len(os.sched_getaffinity(0)),
        load=(0.0, 0.0),
        seconds={},
        errors=errors,
        bits=bits,
        recoveries=recoveries,
        steps=steps,
        reduce_scatter=reduced,
        mirrors=mirrors,
        lone=lone,
    )


def _median(samples: Iterable[Recovery]) -> float | None:
    found = [sample.recovered_s for sample in samples]
    return median(found) if found else None


def _beyond_step_s(samples: Iterable[Recovery]) -> float | None:
    found = [sample.recovered_s - sample.step_s for sample in samples]
    return median(found) if found else None


def _phases(recovered: Sequence[Recovered]) -> dict[str, float]:
    return {phase: median(each.phases_s[phase] for each in recovered) for phase in recovered[0].phases_s}


def table(bench: ShardedBench) -> str:
    """The result for people, a figure a line. A part that was not run has none."""
    return "\n".join(_lines(bench))


def _lines(bench: ShardedBench) -> Iterator[str]:
    for found, is_equal, of_what in (
        (bench.bits, bench.bits_equal, "two replicas"),
        (bench.lone.bits if bench.lone else None, bench.lone_bits_equal, "one replica, from mirrors"),
    ):
        if found is not None:
            note = f"{of_what}; {found.kills} kills of ranks"
            yield _line("the same bits", "yes" if is_equal else "no", note)
            yield _line("steps lost", str(found.steps_lost), f"of {found.steps}")
    if bench.lone is not None:
        yield _seconds("refilled from a mirror", bench.mirror_refill_s, "the state, and steps done again")
    yield _line("survivors lost", str(len(bench.survivors_lost)), ", ".join(bench.survivors_lost))
    if bench.recoveries is not None:
        yield _seconds("refilled", bench.refill_s, "SIGKILL of a rank to the next step of all")
        yield _seconds("  beyond a step", bench.refill_beyond_step_s)
        yield from (_seconds(f"  {name}", taken_s) for name, taken_s in (bench.phases or {}).items())
        yield _seconds("shelved", bench.shelve_s, "the same, to the next step of the other replica")
        yield from (_seconds(f"  {name}", taken_s) for name, taken_s in (bench.shelve_phases or {}).items())
        yield _seconds("torchrun", bench.torchrun_s, "--max-restarts, HSDP, a checkpoint every step")
        yield _seconds("  beyond a step", bench.torchrun_beyond_step_s)
        note = f"at most {REFILL_RATIO_MAX} wanted"
        yield _ratio("refilled : torchrun", bench.refill_ratio_torchrun, note)
    if bench.steps is not None:
        note = f"at most {STEP_RATIO_MAX} wanted; deterministic kernels in both"
        yield _ratio("step : HSDP's", bench.step_ratio_fsdp, note)
        yield _ratio("  processors' time", bench.cpu_ratio_fsdp, "of all ranks together")
        yield _ratio("step, one replica : FSDP2's", bench.step_ratio_fsdp_alone, "")
        yield _ratio("memory of a rank : HSDP's", bench.memory_ratio_fsdp, _memory(bench.steps.hsdp))
    for ranks, ratio in (bench.reduce_scatter.ratio if bench.reduce_scatter else {}).items():
        yield _ratio(f"reduce-scatter, {ranks} ranks", ratio, "64 MB; by gloo's, or NCCL's")
    if bench.mirrors is not None:
        note = f"of a step; at most {MIRROR_STALL_RATIO_MAX} wanted on a GPU"
        yield _ratio("held up by mirrors", bench.mirror_stall_ratio, note)
    for part, error in bench.errors.items():
        yield f"{part} failed: {error}"


def _memory(contest: Contest) -> str:
    ours, theirs = contest.memory
    return (
        f"{ours.peak_bytes / 1e6:.1f} and {theirs.peak_bytes / 1e6:.1f} MB; "
        f"{ours.sheets} sheets of {ours.sheets_bytes / 1e6:.1f} MB hold gradients"
    )


def _seconds(name: str, taken_s: float | None, note: str = "") -> str:
    return _line(name.replace("_", " "), "-" if taken_s is None else f"{taken_s:.3f} s", note)


def _ratio(name: str, ratio: float | None, note: str) -> str:
    return _line(name, "-" if ratio is None else f"{ratio:.3f}", note)


def _line(name: str, figure: str, note: str) -> str:
    return f"{name:<28}{figure:>10}   {note}".rstrip()
