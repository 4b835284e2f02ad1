"""A run with one slow member, which sleeps longer in each lane or has less of a processor.

Each writes what it did: when its steps ended, how many lanes it had, how long those took, and the digest.
"""

import argparse
import json
import time
from pathlib import Path

import torch

import holdfast.train as hf

WIDTH = 32


def work(seconds: float, *, burns: bool) -> None:
    """So many seconds asleep, or of a processor's time."""
    if not burns:
        time.sleep(seconds)
        return
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--lane-s", type=float, required=True)
    parser.add_argument("--slow", default="")
    parser.add_argument("--times", type=float, default=1.0)
    parser.add_argument("--cgroups", type=Path)
    given = parser.parse_args()
    ends_s: list[float] = []
    counts: list[int] = []
    lanes_s: list[float] = []
    with hf.join() as run:
        model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, 1)
        )
        state = run.protect(model, torch.optim.AdamW(model.parameters(), lr=0.01), lanes=given.lanes, seed=1)
        if given.cgroups is not None:
            (given.cgroups / run.member / "cgroup.procs").write_text("0")  # this process
        lane_s = given.lane_s * (given.times if run.member == given.slow else 1.0)
        for step in state.steps(given.steps):
            count, begun_s = 0, time.monotonic()
            for lane in step.lanes:
                work(lane_s, burns=given.cgroups is not None)
                generator = torch.Generator().manual_seed(step.number * given.lanes + lane.index)
                lane.backward(model(torch.randn(8, WIDTH, generator=generator)).square().mean())
                count += 1
                lanes_s.append(time.monotonic() - begun_s)
                begun_s = time.monotonic()
            step.commit()
            counts.append(count)
            ends_s.append(time.monotonic())
        told = {"ends_s": ends_s, "counts": counts, "lanes_s": lanes_s, "digest": state.digest()}
        (given.folder / f"{run.member}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
