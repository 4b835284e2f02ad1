"""A training script whose GPU fails on purpose: `failing.py FOLDER [FAILURE:STEP:NODE ...]`.

A failure strikes once, on the member of that node; with `all` for the node it strikes every member, every
time. Where there is no GPU it is only said, in the words that CUDA has for it. `nccl-words` is only said
everywhere: an error in NCCL's words, raised by the script. No connection of NCCL fails for it.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast.train as hf

STEPS, LANES, WIDTH = 160, 8, 32
PACE_S = 0.1
WORDS = {
    "assert": "CUDA error: device-side assert triggered",
    "illegal": "CUDA error: an illegal memory access was encountered",
    "memory": "CUDA out of memory",
}
NCCLS_WORDS = """NCCL error in: exchange.cpp:1, unhandled system error (run with NCCL_DEBUG=INFO for details)
Last error:
socketProgress: Connection closed by remote peer"""


def index_out_of_range(device: torch.device) -> None:
    torch.zeros(4, device=device)[torch.tensor([9], device=device)].sum()


def access_what_is_not_there(device: torch.device) -> None:
    code = "template <typename T> T wild(T x) { return x + *reinterpret_cast<volatile T*>(16); }"
    torch.cuda.jiterator._create_jit_fn(code)(
        torch.zeros(4, device=device)
    )  # needs no compiler but NVRTC, which torch has


def take_all_memory(device: torch.device) -> None:
    torch.empty(1 << 50, dtype=torch.uint8, device=device)


def raise_an_error_in_nccls_words(device: torch.device) -> None:
    raise dist.DistBackendError(NCCLS_WORDS)


FAILURES: dict[str, Callable[[torch.device], None]] = {
    "assert": index_out_of_range,
    "illegal": access_what_is_not_there,
    "memory": take_all_memory,
    "nccl-words": raise_an_error_in_nccls_words,
}


def fail_if_planned(plan: list[str], folder: Path, step: int, node: str, device: torch.device) -> None:
    for failure, at, whom in (item.split(":") for item in plan):
        if step != int(at) or whom not in ("all", node):
            continue
        mark = folder / f"{failure}-{at}.struck"
        if whom != "all" and mark.exists():
            continue
        mark.touch()
        if device.type == "cuda" or failure == "nccl-words":
            FAILURES[failure](device)
        else:
            raise (
                torch.OutOfMemoryError(WORDS[failure])
                if failure == "memory"
                else RuntimeError(WORDS[failure])
            )


def main(folder: Path, plan: list[str]) -> None:
    with hf.join() as run:
        with run.device:
            model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, WIDTH))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        state = run.protect(model, optimizer, lanes=LANES, seed=1)
        node = run.member.partition(".")[0]
        for step in state.steps(STEPS):
            for lane in step.lanes:
                fail_if_planned(plan, folder, step.number, node, run.device)
                x = torch.randn(16, WIDTH, device=run.device)
                lane.backward((model(x) - x).square().mean())
            if plan:
                time.sleep(PACE_S)  # so that whoever is replaced is back before the end
            step.commit()
        (folder / f"{run.member}.json").write_text(json.dumps({"digest": state.digest()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
