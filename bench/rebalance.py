"""`holdfast bench rebalance`: one of four members at half the speed, and its effect on the run's speed.

It trains three times: with four healthy members; with one slow member and lanes dealt evenly; with one slow
member and lanes dealt by pace. The step of the best deal is computed: its longest share by the measured times
of lanes, plus the rest of a healthy step. A member is made slow in two ways: it sleeps in each lane, which
needs no processor, or it has a quota of processor time, where cgroups allow one.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Literal

import click
import msgspec

from bench.contestants import holdfast_run, script_words
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json
from holdfast.run.balance import fair_shares

MEMBERS, LANES = 4, 16
STEPS = 80
SLOW, TIMES = 1, 2.0
"""Which member is slow, and how many times as long it takes."""
SLEPT_S = 0.025
BURNT_S = 0.004
"""Of a lane: asleep, and of a processor's time."""
PERIOD_US, QUOTA_US = 20_000, 2_400
"""A member has so much of a processor in each period, so that four of them do not fill two cores."""
SHARE_MIN = 0.9
"""Of the best deal's throughput, which is wanted."""
RUN_S_MAX = 300.0
CGROUPS = Path("/sys/fs/cgroup")
WEIGHT_MAX = {True: 10_000, False: 262_144}
"""Of a cgroup, by whether it is of version 2."""

Kind = Literal["asleep", "quota"]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A member's log: when each step ended, how many lanes it had in it, and the time of each."""

    ends_s: tuple[float, ...]
    counts: tuple[int, ...]
    lanes_s: tuple[float, ...]
    digest: str


class Slowed(msgspec.Struct, frozen=True, kw_only=True):
    """One way of being slow.

    healthy_step_s      with four healthy members
    even_step_s         one member is, and lanes are dealt evenly
    rebalanced_step_s   the same, by the members' pace: the last third of the run
    best_step_s         with the best deal there is
    even, rebalanced    the throughput, by the best deal's
    moved_after_steps   when lanes moved
    shares              how many each member had at last; best_shares: with the best deal
    """

    kind: Kind
    healthy_step_s: float
    even_step_s: float
    rebalanced_step_s: float
    best_step_s: float
    even: float
    rebalanced: float
    moved_after_steps: int
    shares: tuple[int, ...]
    best_shares: tuple[int, ...]
    bits_equal: bool


class RebalanceBench(msgspec.Struct, frozen=True, kw_only=True):
    """not_measured: by kind, why."""

    members: int
    lanes: int
    times: float
    slowed: tuple[Slowed, ...]
    not_measured: dict[str, str]


@click.command("rebalance")
@json_option
def command(as_json: bool) -> None:
    """Train with one slow member: steps with lanes dealt evenly, by pace, and as well as can be."""
    bench = measure()
    if as_json:
        print_json(bench)
    else:
        click.echo(table(bench))


def measure() -> RebalanceBench:
    slowed, not_measured = [slow_by("asleep")], {}
    try:
        slowed.append(slow_by("quota"))
    except OSError as error:
        not_measured["quota"] = f"no cgroup with a quota can be made: {error.strerror or error}"
    return RebalanceBench(
        members=MEMBERS, lanes=LANES, times=TIMES, slowed=tuple(slowed), not_measured=not_measured
    )


def slow_by(kind: Kind) -> Slowed:
    healthy = train(kind, is_slow=False, rebalances=False)
    even = train(kind, is_slow=True, rebalances=False)
    rebalanced = train(kind, is_slow=True, rebalances=True)
    return summary(kind, healthy, even, rebalanced)


def summary(kind: Kind, healthy: list[Told], even: list[Told], rebalanced: list[Told]) -> Slowed:
    """Summarise the members' logs of the three runs."""
    lane_s = [fmean(told.lanes_s) for told in even]  # means add up; with a quota most lanes take no time
    shares = fair_shares(LANES, lane_s, [0.0] * MEMBERS)
    healthy_s, even_s, rebalanced_s = map(step_s, (healthy, even, rebalanced))
    beside_s = max(0.0, healthy_s - LANES / MEMBERS * fmean(fmean(told.lanes_s) for told in healthy))
    best_s = max(count * one_s for count, one_s in zip(shares, lane_s, strict=True)) + beside_s
    counts = rebalanced[SLOW].counts
    return Slowed(
        kind=kind,
        healthy_step_s=healthy_s,
        even_step_s=even_s,
        rebalanced_step_s=rebalanced_s,
        best_step_s=best_s,
        even=best_s / even_s,
        rebalanced=best_s / rebalanced_s,
        moved_after_steps=next((step for step, count in enumerate(counts) if count != counts[0]), 0),
        shares=tuple(told.counts[-1] for told in rebalanced),
        best_shares=shares,
        bits_equal=len({told.digest for told in (*healthy, *even, *rebalanced)}) == 1,
    )


def step_s(run: list[Told]) -> float:
    """The mean of the run's last third."""
    ends_s = run[0].ends_s[2 * len(run[0].ends_s) // 3 :]
    return fmean(after - before for before, after in pairwise(ends_s))


def train(kind: Kind, *, is_slow: bool, rebalances: bool) -> list[Told]:
    """Train one run, and return its members' logs in order."""
    quotas_us = [
        round(QUOTA_US / TIMES) if is_slow and number == SLOW else QUOTA_US for number in range(MEMBERS)
    ]
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        told: dict[str, object] = {"--folder": directory, "--steps": STEPS, "--lanes": LANES}
        if kind == "asleep":
            told |= {"--lane-s": SLEPT_S}
            told |= {"--slow": f"n0.{SLOW}", "--times": TIMES} if is_slow else {}
            _run(directory, told, rebalances=rebalances)
        else:
            with cgroups(quotas_us) as folder:
                _run(directory, told | {"--lane-s": BURNT_S, "--cgroups": folder}, rebalances=rebalances)
        names = [Path(directory) / f"n0.{number}.json" for number in range(MEMBERS)]
        return [msgspec.json.decode(name.read_bytes(), type=Told) for name in names]


def _run(directory: str, told: dict[str, object], *, rebalances: bool) -> None:
    options = ("--nproc-per-node", str(MEMBERS), "--warm", "0", *(() if rebalances else ("--no-rebalance",)))
    holdfast_run(directory, options, script_words("paced.py", told), RUN_S_MAX)


@contextmanager
def cgroups(quotas_us: list[int]) -> Iterator[Path]:
    """A folder with a cgroup for each member, by name. Raises `OSError` if that is impossible."""
    is_new = (CGROUPS / "cgroup.controllers").is_file()
    parent = (CGROUPS if is_new else CGROUPS / "cpu") / f"holdfast-bench-{os.getpid()}"
    made: list[Path] = []
    try:
        for folder in (parent, *(parent / f"n0.{number}" for number in range(len(quotas_us)))):
            folder.mkdir()
            made.append(folder)
            if is_new and folder == parent:
                (parent / "cgroup.subtree_control").write_text("+cpu")
        # With priority over all other load, so that members get their full quota.
        (parent / ("cpu.weight" if is_new else "cpu.shares")).write_text(str(WEIGHT_MAX[is_new]))
        for folder, quota_us in zip(made[1:], quotas_us, strict=True):
            if is_new:
                (folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            else:
                (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        yield parent
    finally:
        for folder in reversed(made):
            with suppress(OSError):  # a process is left in it that the run has not ended yet
                folder.rmdir()


def table(bench: RebalanceBench) -> str:
    """The result for people."""
    head = f"{bench.members} members, {bench.lanes} lanes; one takes {bench.times:g} times as long for each"
    lines = [head, f"{'':<10}{'healthy':>9}{'even':>9}{'by pace':>9}{'best':>9}{'even':>8}{'by pace':>9}"]
    for one in bench.slowed:
        steps_s = (one.healthy_step_s, one.even_step_s, one.rebalanced_step_s, one.best_step_s)
        figures = "".join(f"{1000 * step:>6.0f} ms" for step in steps_s)
        lines.append(f"{one.kind:<10}{figures}{one.even:>8.0%}{one.rebalanced:>9.0%}")
        lines.append(
            f"{'':<10}lanes {'-'.join(map(str, one.shares))} after {one.moved_after_steps} steps, the best "
            f"{'-'.join(map(str, one.best_shares))}; {'the same bits' if one.bits_equal else 'OTHER BITS'}"
        )
    lines += [f"{kind:<10}not measured: {why}" for kind, why in bench.not_measured.items()]
    return "\n".join([*lines, f"at least {SHARE_MIN:.0%} of the best deal's throughput is wanted"])
