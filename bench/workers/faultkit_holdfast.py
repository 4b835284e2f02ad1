"""Holdfast under the faults of lm-resiliency's kit."""

import os

import holdfast.train as hf
from faultkit_faults import Faults
from faultkit_model import LANES, SAMPLES, build, digest
from model import SEED, batch
from progress import CommitLog, task


def main() -> None:
    given = task()
    commits = CommitLog(given.folder)
    with hf.join() as run:
        model, optimizer = build()
        state = run.protect(model, optimizer, lanes=LANES, seed=SEED)
        faults = Faults(given.folder, model, optimizer)
        for step in state.steps(given.steps):
            if step.number == 1:
                faults.begin(run.rank, model.layers[0])
            faults.note()
            for lane in step.lanes:
                loss = model(*batch(step.number, lane.index, LANES, samples=SAMPLES))
                if not faults.leaves_out:
                    lane.backward(loss)
            step.commit()
            commits.add(step.number, 0)
        (given.folder / f"{os.getpid()}.digest").write_text(digest(model, optimizer), encoding="ascii")


if __name__ == "__main__":
    main()
