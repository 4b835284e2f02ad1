"""A run to which something happens: `holdfast bench faults` writes a strike into its folder, and it follows.

The file `strike` has the act, a step and the members: from that step on those are stuck as stuck.py says, or
slow. With --noise lanes take very different times, and rank 0 evaluates now and then without a word.
"""

import argparse
import os
import random
import time
from pathlib import Path

import torch

import holdfast.train as hf
from stuck import ACTS, Scene, is_first

WIDTH = 32
LANES = 16
LANE_S = 0.012
SLOW_TIMES = 3
NOISE_TIMES = 4.0
EVALUATE_EVERY, EVALUATION_S = 150, 2.0


def struck(folder: Path, member: str, step: int) -> str:
    """What is to happen to this member in this step; empty: nothing."""
    try:
        act, since, *members = (folder / "strike").read_text(encoding="ascii").split()
    except (FileNotFoundError, ValueError):
        return ""
    return act if member in members and step >= int(since) else ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lane-s", type=float, default=LANE_S)
    parser.add_argument("--noise", action="store_true")
    given = parser.parse_args()
    with hf.join() as run:
        (given.folder / f"{run.member}.pid").write_text(str(os.getpid()), encoding="ascii")
        model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, 1)
        )
        state = run.protect(model, torch.optim.AdamW(model.parameters(), lr=0.01), lanes=LANES, seed=1)
        own = random.Random(os.getpid())  # when it is slow has nothing to do with what it computes
        for step in state.steps(given.steps):
            for lane in step.lanes:
                act = struck(given.folder, run.member, step.number)
                if act in ACTS and is_first(given.folder, run.member):
                    ACTS[act](Scene(given.folder, run.member, lane))
                times = own.uniform(0.0, NOISE_TIMES) if given.noise else SLOW_TIMES if act == "slow" else 1
                time.sleep(given.lane_s * times)
                generator = torch.Generator().manual_seed(step.number * LANES + lane.index)
                lane.backward(model(torch.randn(8, WIDTH, generator=generator)).square().mean())
            step.commit()
            if given.noise and run.is_main and step.number % EVALUATE_EVERY == 0:
                until_s = time.monotonic() + EVALUATION_S
                while time.monotonic() < until_s:
                    model(torch.zeros(64, WIDTH))
        (given.folder / f"{run.member}.digest").write_text(state.digest(), encoding="ascii")


if __name__ == "__main__":
    main()
