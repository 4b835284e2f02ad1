"""`holdfast bench overhead`: the cost of protection without failures.

Members train one model under Holdfast and under plain DDP, a few steps of each in turn, in the same processes
with the same batch; and they sum the same bytes with Holdfast's tree and with gloo's all_reduce. A ratio is
the median, over the turns, of Holdfast's time by the peer's next to it, so that other load on the machine
affects both.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import click
import msgspec

from bench.contestants import END_GRACE_S, SCRIPTS
from holdfast.cli.record import json_option

MANY_LANES = 8
ROUNDS = 40
STEP_RATIO_MAX = 1.03
REDUCE_RATIO_MAX = 1.15
RUN_S_MAX = 300.0

Pair = tuple[float, float]


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """One run's measurements: pairs of seconds, Holdfast's and the peer's."""

    steps: tuple[Pair, ...]
    reductions: tuple[Pair, ...]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One run: how many members and lanes, the peer's usual step and sum in seconds, and the ratios."""

    members: int
    lanes: int
    ddp_step_s: float
    step_ratio: float
    all_reduce_s: float
    reduce_ratio: float
    turns: Turns


class OverheadBench(msgspec.Struct, frozen=True, kw_only=True):
    """Holdfast's time by its peer's.

    step_ratio_ddp            a step with one lane a member, against DDP: as many members as there are cores
    step_ratio_ddp_8_lanes    the same members with 8 lanes, each a pass of its own; DDP makes one pass
    reduce_ratio_2, _4        the tree reduction against all_reduce, with 2 and 4 members
    """

    step_ratio_ddp: float
    step_ratio_ddp_8_lanes: float
    reduce_ratio_2: float
    reduce_ratio_4: float
    settings: tuple[Setting, ...]


@click.command("overhead")
@json_option
def command(as_json: bool) -> None:
    """Train without faults: a step against plain DDP, the tree reduction against all_reduce."""
    bench = measure()
    click.echo(msgspec.json.format(msgspec.json.encode(bench)).decode() if as_json else table(bench))


def measure() -> OverheadBench:
    """Two members and four, with a lane each; and with many lanes as many members as have a core."""
    cores = len(os.sched_getaffinity(0))
    two, four = setting(members=2, lanes=2), setting(members=4, lanes=4)
    lone = four if cores >= four.members else two
    many = setting(members=lone.members, lanes=MANY_LANES)
    return OverheadBench(
        step_ratio_ddp=lone.step_ratio,
        step_ratio_ddp_8_lanes=many.step_ratio,
        reduce_ratio_2=two.reduce_ratio,
        reduce_ratio_4=four.reduce_ratio,
        settings=(two, four, many),
    )


def setting(*, members: int, lanes: int, rounds: int = ROUNDS) -> Setting:
    """One run of so many members, in so many turns."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        result = Path(directory) / "result.json"
        run = ("-m", "holdfast", "run", "--nproc-per-node", str(members), "--warm", "0")
        told = {"--lanes": lanes, "--rounds": rounds, "--result": result}
        script = (str(SCRIPTS / "faultless.py"), *(str(word) for pair in told.items() for word in pair))
        environment = {"HOLDFAST_HOME": directory, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        with subprocess.Popen(
            (sys.executable, *run, *script),
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            output = _output(process)
        if process.returncode != 0:
            raise RuntimeError(f"holdfast run ended with {process.returncode}:\n{output}")
        turns = msgspec.json.decode(result.read_bytes(), type=Turns)
    return summary(members, lanes, turns)


def _output(process: "subprocess.Popen[str]") -> str:
    """The output of a run, which is stopped with all its members if it takes too long."""
    try:
        return process.communicate(timeout=RUN_S_MAX)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        return process.communicate(timeout=4 * END_GRACE_S)[0]


def summary(members: int, lanes: int, turns: Turns) -> Setting:
    return Setting(
        members=members,
        lanes=lanes,
        ddp_step_s=median(theirs for _, theirs in turns.steps),
        step_ratio=median(ours / theirs for ours, theirs in turns.steps),
        all_reduce_s=median(theirs for _, theirs in turns.reductions),
        reduce_ratio=median(ours / theirs for ours, theirs in turns.reductions),
        turns=turns,
    )


def table(bench: OverheadBench) -> str:
    """The result for people, a ratio a line."""
    rows = (
        ("step : DDP's", bench.step_ratio_ddp, f"a lane a member; at most {STEP_RATIO_MAX} wanted"),
        ("  8 lanes", bench.step_ratio_ddp_8_lanes, "a pass a lane; DDP makes one pass"),
        ("sum : all_reduce, 2", bench.reduce_ratio_2, f"2 members; at most {REDUCE_RATIO_MAX} wanted"),
        ("sum : all_reduce, 4", bench.reduce_ratio_4, f"4 members; at most {REDUCE_RATIO_MAX} wanted"),
    )
    return "\n".join(f"{name:<24}{ratio:>8.3f}   {note}" for name, ratio, note in rows)
