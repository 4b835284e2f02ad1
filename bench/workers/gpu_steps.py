"""A step of one member against a plain loop over the same slices of the batch, in turn, in one process.

Run under `holdfast run`. A script of `holdfast bench gpu`. Both use the same kernels, device and allocator,
and a block of steps of each follows the other, so what else the machine does meets both. Without `--compile`
the plain loop also takes its turn with torch's fast kernels.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import nn

import holdfast.train as hf
from gpu_model import CLIP_NORM, LANES, SEED, SIZES, Size, build, rows, wait

BLOCK_STEPS = 2
WARM_UP_ROUNDS = 2

Block = Callable[[], None]


def plain_steps(
    size: Size, device: torch.device, compiled: Callable[[nn.Module], nn.Module]
) -> Iterator[None]:
    """The training without Holdfast: each step is made when it is asked for."""
    model, optimizer = build(size, device)
    forward = compiled(model)
    number = 0
    while True:
        number += 1
        optimizer.zero_grad()
        total = torch.zeros((), device=device)
        for lane in range(LANES):
            loss = forward(rows(size, number, lane, device)) / LANES
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        total.item()
        yield


def member_steps(
    run: hf.Run, size: Size, steps: int, compiled: Callable[[nn.Module], nn.Module]
) -> Iterator[None]:
    """The same under Holdfast."""
    model, optimizer = build(size, run.device)
    forward = compiled(model)
    state = run.protect(model, optimizer, lanes=LANES, seed=SEED, clip_norm=CLIP_NORM)
    for step in state.steps(steps):
        for lane in step.lanes:
            lane.backward(forward(rows(size, step.number, lane.index, run.device)))
        step.commit()
        yield


def turns(contestants: dict[str, Block], rounds: int, device: torch.device) -> list[dict[str, float]]:
    """Seconds a step of each, round by round; who is first changes from round to round."""
    names, measured = list(contestants), []
    for number in range(WARM_UP_ROUNDS + rounds):
        first = number % len(names)
        measured.append({name: _step_s(contestants[name], device) for name in names[first:] + names[:first]})
    return measured[WARM_UP_ROUNDS:]


def _step_s(block: Block, device: torch.device) -> float:
    wait(device)
    begun = time.monotonic()
    block()
    wait(device)
    return (time.monotonic() - begun) / BLOCK_STEPS


def block_of(steps: Iterator[None], *, deterministic: bool) -> Block:
    def block() -> None:
        torch.use_deterministic_algorithms(deterministic)
        for _ in islice(steps, BLOCK_STEPS):
            pass

    return block


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", choices=list(SIZES), default="124m")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--compile", choices=["", "inductor", "aot_eager"], default="", help="A backend.")
    given = parser.parse_args()
    size = SIZES[given.size]
    steps = (WARM_UP_ROUNDS + given.rounds) * BLOCK_STEPS

    def compiled(model: nn.Module) -> nn.Module:
        if not given.compile:
            return model
        faster: nn.Module = torch.compile(model, backend=given.compile)  # type: ignore[assignment]
        return faster

    with hf.join() as run:
        plain = plain_steps(size, run.device, compiled)
        contestants = {
            "member": block_of(member_steps(run, size, steps, compiled), deterministic=True),
            "deterministic": block_of(plain, deterministic=True),
        }
        if not given.compile:
            contestants["fast"] = block_of(plain, deterministic=False)
        measured = turns(contestants, given.rounds, run.device)
        torch.use_deterministic_algorithms(True)
    (given.folder / "turns.json").write_text(json.dumps(measured), encoding="ascii")


if __name__ == "__main__":
    main()
