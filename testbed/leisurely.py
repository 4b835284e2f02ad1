"""A training script that is slow now and then, in ways that are no fault. It trains until it is stopped.

    holdfast run testbed/leisurely.py SCALE

Every two minutes rank 0 evaluates for 30 s, and declares it. In between a member prepares data for 10 s
in one call that holds the GIL, and declares nothing; each member in turn, then all of them at once. SCALE
shortens the intervals, not what happens in them.
"""

import sys
import time

import torch
from unruly import hold_the_gil

import holdfast.train as hf

EVALUATE_EVERY_S = 120.0
EVALUATION_S = 30.0
PREPARE_EVERY_S = 50.0
PREPARATION_S = 10.0
STEPS_MAX = 10_000_000
WIDTH = 64
LANES = 8


def evaluate(model: torch.nn.Module, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < until_s:
            model(torch.zeros(1024, WIDTH))


def main(scale: float) -> None:
    with hf.join() as run:
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        state = run.protect(model, optimizer, lanes=LANES, seed=1)
        evaluated_s = prepared_s = time.monotonic()
        turn = 0
        for step in state.steps(STEPS_MAX):
            for lane in step.lanes:
                x = torch.randn(256, WIDTH)
                lane.backward((model(x) - x).square().mean())
            step.commit()
            now_s = time.monotonic()
            if now_s - prepared_s >= PREPARE_EVERY_S * scale:
                turn = (turn + 1) % (LANES // 2)
                if turn == 0 or run.rank == turn - 1:
                    print(f"step {step.number}: prepare data", flush=True)
                    hold_the_gil(PREPARATION_S)
                prepared_s = time.monotonic()
            if run.is_main and now_s - evaluated_s >= EVALUATE_EVERY_S * scale:
                print(f"step {step.number}: evaluate", flush=True)
                with run.alone("evaluation"):
                    evaluate(model, EVALUATION_S)
                evaluated_s = time.monotonic()


if __name__ == "__main__":
    main(float(sys.argv[1]))
