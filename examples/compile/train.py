"""A small compiled GPT, whose warm processes compile before they are needed.

    holdfast run --nproc-per-node 2 train.py --warm

With --watched each process appends its commits to its own file in that directory, a warm one writes there
that it has compiled, and steps are slower while there is a file `paced`, so that measure.py can kill in them.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import holdfast.train as hf

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 2, 64, 4, 32, 128
BATCH = 4
LANES = 4
PACE_S = 0.4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.heads(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH)))
        result: torch.Tensor = x + self.dropout(self.down(functional.gelu(self.up(self.between(x)))))
        return result


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        result: torch.Tensor = self.head(self.blocks(self.words(words) + self.places(places)))
        return result


def build(mode: str, device: torch.device) -> nn.Module:
    model = Gpt().to(device)
    if mode == "compiled":
        model.compile()
    return model


def loss_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def rehearse(device: torch.device) -> None:
    """In a warm process, before it is needed: do what a step does, on zeros of the same shape."""
    words = torch.zeros(BATCH, CONTEXT + 1, dtype=torch.int64, device=device)
    loss_of(build("compiled", device), words).backward()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["eager", "compiled"], nargs="?", default="compiled")
    parser.add_argument("--warm", action="store_true", help="Compile in warm processes.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--watched", type=Path, metavar="DIR")
    given = parser.parse_args()

    def warm(device: torch.device) -> None:
        rehearse(device)
        if given.watched is not None:
            (given.watched / f"{os.getpid()}.warm").touch()

    with hf.join(warm=warm if given.warm else None) as run:
        model = build(given.mode, run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        state = run.protect(model, optimizer, lanes=LANES, seed=1, clip_norm=1.0)
        for step in state.steps(given.steps):
            for lane in step.lanes:
                chosen = torch.Generator().manual_seed(step.number * LANES + lane.index)
                words = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=chosen)
                lane.backward(loss_of(model, words.to(run.device)))
            step.commit()
            if given.watched is not None:
                with (given.watched / f"{os.getpid()}.commits").open("a") as file:
                    file.write(f"{step.number} 0 {time.monotonic_ns()}\n")
                with (given.watched / f"{os.getpid()}.losses").open("a") as file:
                    file.write(f"{step.number} {step.loss.hex()}\n")
                time.sleep(PACE_S if (given.watched / "paced").exists() else 0)


if __name__ == "__main__":
    main()
