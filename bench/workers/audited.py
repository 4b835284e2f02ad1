"""A member whose model stays sound whatever reaches its weights, so that many faults can strike one run."""

import argparse
import time

import torch
from torch import nn

import holdfast.train as hf

WIDTH, ROWS = 64, 8
SHORT_S = 1.0
"""What a step takes while members are missing, so that the next fault does not come before they are back."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--lane-s", type=float, required=True)
    parser.add_argument("--members", type=int, required=True)
    return parser.parse_args()


def main() -> None:
    told = parse()
    with hf.join() as run:
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def mend() -> None:
            """A wrong gradient may go unnoticed and spoil the weights; the campaign goes on all the same."""
            kept = [value for one in optimizer.state.values() for value in one.values() if value is not None]
            for tensor in [*(parameter.data for parameter in model.parameters()), *kept]:
                tensor.nan_to_num_().clamp_(-1, 1)

        state = run.protect(model, optimizer, lanes=told.lanes, seed=1, on_commit=mend)
        for step in state.steps(told.steps):
            own = 0
            for lane in step.lanes:
                own += not lane.is_again
                time.sleep(told.lane_s)
                x = torch.randn(ROWS, WIDTH, device=run.device)
                lane.backward((model(x) - x).square().mean())
            step.commit()
            if own > told.lanes // told.members:
                time.sleep(SHORT_S)


if __name__ == "__main__":
    main()
