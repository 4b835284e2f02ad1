"""What the scripts of `holdfast bench gpu` and `bench sharded` train: a GPT in bfloat16 with dropout."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

DROPOUT = 0.1
LANES = 8
SEED = 1
CLIP_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """samples: of a lane."""

    vocabulary: int
    context: int
    width: int
    heads: int
    layers: int
    samples: int


SIZES = {
    "1.3b": Size(vocabulary=50304, context=512, width=2048, heads=16, layers=24, samples=1),
    "124m": Size(vocabulary=50304, context=512, width=768, heads=12, layers=12, samples=16),
    "small": Size(vocabulary=4096, context=128, width=256, heads=4, layers=4, samples=4),
    "tiny": Size(vocabulary=64, context=16, width=32, heads=2, layers=2, samples=2),
}
"""124m is GPT-2 small. 1.3b is for sharded members, small for many recoveries, tiny for a machine without a
GPU."""


class Block(nn.Module):
    """Attention and a feed-forward network, each on a residual path."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self._heads = size.heads
        self.before_attention, self.before_feed_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(DROPOUT)
        )

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).split(width, dim=2)
        query, key, value = (part.view(samples, length, self._heads, -1).transpose(1, 2) for part in parts)
        attention = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=DROPOUT if self.training else 0.0
        )
        x = x + self.attended(attention.transpose(1, 2).reshape(samples, length, width))
        out: Tensor = x + self.feed_forward(self.before_feed_forward(x))
        return out


class Gpt(nn.Module):
    """The output layer is tied to the embedding."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(
            nn.Dropout(DROPOUT), *(Block(size) for _ in range(size.layers)), nn.LayerNorm(size.width)
        )
        self.scores = nn.Linear(size.width, size.vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.scores.weight = self.tokens.weight

    def forward(self, rows: Tensor) -> Tensor:
        tokens, targets = rows[:, :-1], rows[:, 1:]
        places = torch.arange(tokens.shape[1], device=rows.device)
        device = rows.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):  # not every CPU has it
            scores = self.scores(self.blocks(self.tokens(tokens) + self.positions(places)))
        return nn.functional.cross_entropy(scores.float().flatten(0, 1), targets.flatten())


def rows(size: Size, step: int, lane: int, device: torch.device) -> Tensor:
    """One lane's samples, by step and lane alone."""
    generator = torch.Generator().manual_seed(step * LANES + lane)
    drawn = torch.randint(size.vocabulary, (size.samples, size.context + 1), generator=generator)
    return drawn.to(device, non_blocking=True)


def build(size: Size, device: torch.device) -> tuple[Gpt, torch.optim.Optimizer]:
    """The same bits in every process."""
    torch.manual_seed(SEED)
    with device:
        model = Gpt(size)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")


def device_here() -> torch.device:
    """The first GPU, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def wait(device: torch.device) -> None:
    """Until everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
