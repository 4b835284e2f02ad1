"""A member that trains a GPT under `holdfast run`: a script of `holdfast bench gpu`.

Every process appends its commits and marks to files of its own. One that comes to the end writes what it saw:
times, losses and the digest.
"""

import argparse
import json
import os
import time
from pathlib import Path

import holdfast.train as hf
from gpu_model import CLIP_NORM, LANES, SEED, SIZES, build, rows, wait
from progress import CommitLog, MarkLog

WORLD_UNTOLD = 0
"""Shares are not always equal here, so a member cannot tell from its own how many made the step."""
PAUSE_POWER = 5
PAUSE_S_MAX = 6.0
"""While members are missing a pause is longer, by this power of the lanes that the others have to make: new
ones have time to start, and the next fault does not meet the last member.
"""


def train(given: argparse.Namespace, marks: MarkLog) -> dict[str, object]:
    """What this member saw; nothing where the run ended without it."""
    seen: dict[str, object] = {}
    size, commits = SIZES[given.size], CommitLog(given.folder)
    times: list[float] = []
    losses: dict[int, float] = {}
    with hf.join() as run:
        marks.add("joined")
        model, optimizer = build(size, run.device)
        things = (model, optimizer)
        deterministic = not given.relaxed
        state = run.protect(*things, lanes=LANES, seed=SEED, clip_norm=CLIP_NORM, deterministic=deterministic)
        marks.add("ready")
        is_resumed, load = False, 1.0
        for step in state.steps(given.steps):
            if not is_resumed:
                marks.add("resumed")
                is_resumed = True
            time.sleep(min(PAUSE_S_MAX, given.pause_s * load**PAUSE_POWER))
            begun = time.monotonic()
            lanes = 0
            for lane in step.lanes:
                lanes += 1
                lane.backward(model(rows(size, step.number, lane.index, run.device)))
            load = lanes * given.members / LANES  # 1: an even share
            step.commit()
            wait(run.device)
            commits.add(step.number, WORLD_UNTOLD)
            times.append(time.monotonic() - begun)
            losses[step.number] = step.loss
        seen |= {"times_s": times, "losses": losses, "digest": state.digest()}
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", choices=list(SIZES), default="124m")
    parser.add_argument("--members", type=int, default=1, help="When all are there.")
    parser.add_argument("--pause-s", type=float, default=0.0, help="Before each step.")
    parser.add_argument("--relaxed", action="store_true", help="protect(deterministic=False)")
    given = parser.parse_args()
    member = os.environ.get("HOLDFAST_MEMBER", "alone")
    (given.folder / f"{os.getpid()}.member").write_text(member, encoding="ascii")
    marks = MarkLog(given.folder)
    marks.add("started")
    if seen := train(given, marks):
        (given.folder / f"{os.getpid()}.json").write_text(json.dumps(seen), encoding="ascii")


if __name__ == "__main__":
    main()
