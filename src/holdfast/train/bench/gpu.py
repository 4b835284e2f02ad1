"""A GPT of 124M parameters on a GPU: bf16 autocast, AdamW, dropout. A script of `holdfast bench gpu`.

`--plain` is the same training without Holdfast, as a loop over the same slices of the batch: what a step's
time is compared with. Every process writes what it saw into the folder: times and losses, and the digest.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import holdfast.train as hf
from holdfast.train.protected import digest

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 50304, 512, 768, 12, 12
DROPOUT = 0.1
LANES = 8
SAMPLES = 16
"""Of a lane."""
SEED = 1
CLIP_NORM = 1.0


class Block(nn.Module):
    """Attention and a feed-forward network, each on a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_feed_forward = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(DROPOUT)
        )

    def forward(self, x: Tensor) -> Tensor:
        samples, length, _ = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).split(WIDTH, dim=2)
        query, key, value = (part.view(samples, length, HEADS, -1).transpose(1, 2) for part in parts)
        attention = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=DROPOUT if self.training else 0.0
        )
        x = x + self.attended(attention.transpose(1, 2).reshape(samples, length, WIDTH))
        out: Tensor = x + self.feed_forward(self.before_feed_forward(x))
        return out


class Gpt(nn.Module):
    """GPT-2 small; the output layer is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(
            nn.Dropout(DROPOUT), *(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        )
        self.scores = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.scores.weight = self.tokens.weight

    def forward(self, rows: Tensor) -> Tensor:
        tokens, targets = rows[:, :-1], rows[:, 1:]
        places = torch.arange(tokens.shape[1], device=rows.device)
        with torch.autocast(rows.device.type, torch.bfloat16):
            scores = self.scores(self.blocks(self.tokens(tokens) + self.positions(places)))
        return nn.functional.cross_entropy(scores.float().flatten(0, 1), targets.flatten())


def rows(step: int, lane: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(step * LANES + lane)
    return torch.randint(VOCABULARY, (SAMPLES, CONTEXT + 1), generator=generator).to(
        device, non_blocking=True
    )


def build(device: torch.device) -> tuple[Gpt, torch.optim.Optimizer]:
    torch.manual_seed(SEED)
    with device:
        model = Gpt()
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")


def protected(steps: int, seen: dict[str, object]) -> None:
    with hf.join() as run:
        model, optimizer = build(run.device)
        state = run.protect(model, optimizer, lanes=LANES, seed=SEED, clip_norm=CLIP_NORM)
        times, losses = [], {}
        for step in state.steps(steps):
            begun = time.monotonic()
            for lane in step.lanes:
                lane.backward(model(rows(step.number, lane.index, run.device)))
            step.commit()
            _wait(run.device)
            times.append(time.monotonic() - begun)
            losses[step.number] = step.loss
        seen |= {"times_s": times, "losses": losses, "digest": state.digest()}


def plain(steps: int, seen: dict[str, object], *, deterministic: bool) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, optimizer = build(device)
    times = []
    for step in range(1, steps + 1):
        begun = time.monotonic()
        optimizer.zero_grad()
        total = torch.zeros((), device=device)
        for lane in range(LANES):
            loss = model(rows(step, lane, device)) / LANES
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        total.item()
        _wait(device)
        times.append(time.monotonic() - begun)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    seen |= {"times_s": times, "digest": digest(state)}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--plain", choices=["", "fast", "deterministic"], default="")
    told = parser.parse_args()
    seen: dict[str, object] = {}
    if told.plain:
        plain(told.steps, seen, deterministic=told.plain == "deterministic")
    else:
        protected(told.steps, seen)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    parameters = sum(parameter.numel() for parameter in Gpt().parameters())
    seen |= {"device": device, "torch": str(torch.__version__), "parameters": parameters}
    (told.folder / f"{os.getpid()}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
