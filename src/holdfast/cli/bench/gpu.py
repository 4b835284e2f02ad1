"""`holdfast bench gpu`: the same bits on a GPU, whoever computes and whoever dies; and what a step costs.

Members share the one GPU there is, so exchanges go through main memory: their step times say nothing about a
cluster. The comparison that counts is one member against a plain loop over the same slices of the batch.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from holdfast.cli.record import json_option
from holdfast.record.errors import InputError

SCRIPT = Path(__file__).parents[2] / "train" / "bench" / "gpu.py"
WARM_UP_STEPS = 3
RUN_S_MAX = 240.0
KILL_PLAN = '[[fault]]\nstep = {step}\nmoment = "reduce"\nrank = 1\nfault = "kill"\n'


class Contest(msgspec.Struct, kw_only=True):
    """What one way to train came to."""

    name: str
    step_s: float
    digest: str
    losses: dict[str, float]
    said: list[str]


@click.command()
@click.option("--steps", default=20, show_default=True, type=click.IntRange(min=WARM_UP_STEPS + 2))
@click.option(
    "--members", default=2, show_default=True, type=click.IntRange(min=2), help="That share the GPU."
)
@json_option
def command(steps: int, members: int, as_json: bool) -> None:
    """Train a GPT of 124M parameters (bf16, AdamW, dropout) alone, shared, killed, and without Holdfast."""
    with tempfile.TemporaryDirectory() as place:
        plan = Path(place) / "kill.toml"
        plan.write_text(KILL_PLAN.format(step=steps - 3))
        contests = [
            _contest("plain loop", steps, ["--plain", "fast"]),
            _contest("plain loop, deterministic kernels", steps, ["--plain", "deterministic"]),
            _contest("one member", steps, [], run=["--nproc-per-node", "1", "--warm", "0"]),
            _contest(f"{members} members", steps, [], run=["--nproc-per-node", str(members), "--warm", "0"]),
            _contest(
                f"{members} members, one killed",
                steps,
                [],
                run=["--nproc-per-node", str(members), "--chaos", str(plan)],
            ),
        ]
    fast, deterministic, one, *shared = contests
    result = {
        "bits_equal": all(contest.digest == one.digest for contest in shared),
        "losses_equal": all(contest.losses.items() <= one.losses.items() for contest in shared),
        "step_ratio_plain": one.step_s / fast.step_s,
        "step_ratio_plain_deterministic": one.step_s / deterministic.step_s,
        "step_s": {contest.name: contest.step_s for contest in contests},
        "digests": {contest.name: contest.digest for contest in contests},
        "recovery": [line for line in contests[-1].said if "generation" in line or "strikes" in line],
    }
    if as_json:
        click.echo(json.dumps(result))
        return
    for contest in contests:
        click.echo(f"{contest.name:36} {contest.step_s * 1000:8.1f} ms a step   {contest.digest[:16]}")
    click.echo(
        f"bits equal: {result['bits_equal']}; one member against a plain loop: {one.step_s / fast.step_s:.3f}"
    )
    for line in contests[-1].said:
        click.echo(f"  {line}")


def _contest(name: str, steps: int, arguments: Sequence[str], *, run: Sequence[str] | None = None) -> Contest:
    """Train in processes of their own; the median over what each of them saw after the warm-up."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        script = [str(SCRIPT), "--steps", str(steps), "--folder", place, *arguments]
        launcher = ["-m", "holdfast", "run", *run] if run is not None else []
        environment = {**os.environ, "HOLDFAST_HOME": str(folder / "home")}
        done = subprocess.run(
            [sys.executable, *launcher, *script],
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            env=environment,
            check=False,
        )
        if done.returncode:
            raise InputError(f"{name}: the training failed.", hint=done.stderr[-2000:])
        seen = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    times = [time for each in seen for time in each["times_s"][WARM_UP_STEPS:]]
    losses = {step: loss for each in seen for step, loss in each.get("losses", {}).items()}
    said = [line for line in done.stderr.splitlines() if line.startswith("holdfast: ")]
    return Contest(
        name=name, step_s=statistics.median(times), digest=seen[0]["digest"], losses=losses, said=said
    )
