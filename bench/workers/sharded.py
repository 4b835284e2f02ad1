"""A rank of a sharded GPT under `holdfast run --shard`: a script of `holdfast bench sharded`.

Every process appends its commits and marks to files of its own. With `--turns NAME` it makes its steps in
blocks, when the harness says that it is NAME's turn, and writes what memory it needed.
"""

import argparse
import gc
import os
import time
from itertools import count, islice
from pathlib import Path

import holdfast.train as hf
from gpu_model import CLIP_NORM, SEED, SIZES, rows, wait
from holdfast.train.sheets import Sheet
from holdfast.train.steps import Step
from progress import CommitLog, MarkLog
from sharded_model import Meter, build_sharded, rank_here, shard_bytes
from turns import WARM_UP_STEPS, Turns

PAUSE_POWER = 5
PAUSE_S_MAX = 6.0
"""While a replica is missing a pause is longer, by this power of the lanes that the others have to make: new
processes have time to start, and the next kill does not meet the last copy of a part.
"""


class Rank:
    """One process of the run, with its part of the model."""

    def __init__(self, run: hf.Run, given: argparse.Namespace) -> None:
        self._size, self._device = SIZES[given.size], run.device
        self.model, optimizer = build_sharded(self._size, run.device, run.mesh)
        self.state = run.protect(
            self.model,
            optimizer,
            lanes=given.lanes,
            seed=SEED,
            clip_norm=CLIP_NORM,
            mirror_every=given.mirror_every,
        )

    def make(self, step: Step) -> int:
        """The step. Returns how many lanes of it were computed here, those counted once that a rank of the
        replica took with it and that were computed again.
        """
        indices = set()
        for lane in step.lanes:
            indices.add(lane.index)
            lane.backward(self.model(rows(self._size, step.number, lane.index, self._device)))
        step.commit()
        wait(self._device)
        return len(indices)


def train(run: hf.Run, given: argparse.Namespace, marks: MarkLog) -> None:
    """Until the last step, or until the harness has seen enough."""
    rank, commits = Rank(run, given), CommitLog(given.folder)
    marks.add("ready")
    is_resumed, load = False, 1.0
    for step in rank.state.steps(given.steps):
        if not is_resumed:
            marks.add("resumed")
            is_resumed = True
        time.sleep(min(PAUSE_S_MAX, given.pause_s * load**PAUSE_POWER))
        made = max(1, rank.make(step))
        load = made * given.members / given.lanes  # 1: an even share
        commits.add(step.number, given.lanes // made)


def take_turns(run: hf.Run, given: argparse.Namespace) -> None:
    meter = Meter(run.device)
    rank = Rank(run, given)
    turns = Turns(given.folder, given.turns, rank_here())
    steps = rank.state.steps(given.steps)
    for step in islice(steps, WARM_UP_STEPS):
        meter.begin_steps()
        rank.make(step)
    sheets = [one for one in gc.get_objects() if type(one) is Sheet]
    seen = {
        "peak_bytes": meter.peak_bytes(),
        "shard_bytes": shard_bytes(rank.model),
        "sheets": len(sheets),
        "sheets_bytes": sum(flat.nbytes for sheet in sheets for flat in sheet.flats),
    }
    turns.tell(seen)
    for number in count():
        if not turns.await_begin(number):
            return
        for step in islice(steps, given.block):
            rank.make(step)
        turns.end()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--members", type=int, required=True, help="When all are there.")
    parser.add_argument("--pause-s", type=float, default=0.0, help="Before each step.")
    parser.add_argument("--turns", default="", help="Make steps when it is this name's turn.")
    parser.add_argument("--mirror-every", type=int, default=0, help="As protect() has it.")
    parser.add_argument("--block", type=int, default=1, help="Steps of a turn.")
    given = parser.parse_args()
    member = os.environ.get("HOLDFAST_MEMBER", "alone")
    (given.folder / f"{os.getpid()}.member").write_text(member, encoding="ascii")
    marks = MarkLog(given.folder)
    marks.add("started")
    with hf.join() as run:
        marks.add("joined")
        if given.turns:
            take_turns(run, given)
        else:
            train(run, given, marks)


if __name__ == "__main__":
    main()
