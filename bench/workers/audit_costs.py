"""What audits cost beside the lanes that are computed twice, by processor time: one line of JSON.

A member by itself, with as many lanes as one of several has, and a model of a few million parameters.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from holdfast.run.audits import RATE, planned
from holdfast.train.audits import STATE_SHARE
from holdfast.train.gradients import Gradients
from holdfast.train.prints import print_of, print_of_state
from holdfast.train.protected import Protected
from holdfast.train.sheets import TOLD

WIDTH, LAYERS, ROWS = 512, 12, 512
ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--members", type=int, required=True)
    print(json.dumps(costs(**vars(parser.parse_args()))))


def costs(lanes: int, members: int) -> dict[str, float]:
    torch.set_num_threads(1)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    state = Protected((model, optimizer))
    gradients = Gradients(state, lanes, 1)
    x = torch.randn(ROWS, WIDTH)

    def lane() -> None:
        gradients.begin(0, 0, None, last=False)
        gradients.backward((model(x) - x).square().mean())
        gradients.end(0, (0.0,) * TOLD)
        gradients.forget()

    def whole_lane() -> None:
        """With the optimizer's state for once: what is printed is all of it."""
        gradients.begin(0, 0, None, last=False)
        gradients.backward((model(x) - x).square().mean())
        optimizer.step()
        gradients.end_apart()

    whole_lane()
    lane_s = processor_s(lane)
    made = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    print_s = processor_s(lambda: print_of(made, state.device))
    state_s = processor_s(lambda: print_of_state(state))
    shares = [frozenset(range(rank, lanes, members)) for rank in range(members)]
    steps = iter(range(10**9))
    plan_s = processor_s(lambda: planned(1, next(steps), RATE, shares))
    step_s = lane_s * lanes / members
    every = 1
    while state_s > STATE_SHARE * step_s * every:
        every *= 2
    # Both the owner of a lane and its auditor print it.
    states, prints = state_s / step_s / every, 2 * RATE * print_s / lane_s
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "lane_s": lane_s,
        "state_s": state_s,
        "every": every,
        "states": states,
        "prints": prints,
        "plans": plan_s / step_s,
        "total": states + prints + plan_s / step_s,
    }


def processor_s(do: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        begun = time.thread_time()
        do()
        times.append(time.thread_time() - begun)
    return median(times)


if __name__ == "__main__":
    main()
