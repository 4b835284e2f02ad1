"""Holdfast: the same training under `holdfast run`."""

import os

import holdfast.train as hf
from holdfast.train.protected import digest
from model import LANES, SEED, batch, build
from progress import CommitLog, MarkLog, task


def main() -> None:
    given = task()
    commits, marks = CommitLog(given.folder), MarkLog(given.folder)
    with hf.join() as run:
        marks.add("joined")
        model, optimizer = build()
        state = run.protect(model, optimizer, lanes=LANES, seed=SEED)
        marks.add("ready")
        resumed = False
        for step in state.steps(given.steps):
            lanes = 0
            for lane in step.lanes:
                if not resumed:
                    marks.add("resumed")
                    resumed = True
                lane.backward(model(*batch(step.number, lane.index, LANES)))
                lanes += 1
            step.commit()
            # Shares are equal here, also of a step that others began: so many members made it.
            commits.add(step.number, LANES // max(lanes, 1))
        final = digest({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        (given.folder / f"{os.getpid()}.digest").write_text(final, encoding="ascii")


if __name__ == "__main__":
    main()
