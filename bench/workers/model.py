"""What every contestant trains: a small GPT, its data by step and part of the batch, its optimizer."""

import torch
from torch import Tensor, nn

VOCABULARY = 64
CONTEXT = 64
WIDTH = 128
HEADS = 4
LAYERS = 2
LANES = 8
SAMPLES = 8
"""A step's batch."""
SEED = 1


class Block(nn.Module):
    """Attention, then a feed-forward network, each on a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        samples, length, _ = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).split(WIDTH, dim=2)
        query, key, value = (part.view(samples, length, HEADS, -1).transpose(1, 2) for part in parts)
        attention = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(attention.transpose(1, 2).reshape(samples, length, WIDTH))
        out: Tensor = x + self.feed_forward(x)
        return out


class Gpt(nn.Module):
    """Predicts each next token of a sample; called with both, it gives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.scores = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        scores = self.scores(self.blocks(self.tokens(tokens) + self.positions))
        return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def build() -> tuple[Gpt, torch.optim.Optimizer]:
    """The same bits in every process."""
    torch.manual_seed(SEED)
    model = Gpt()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def batch(step: int, part: int, parts: int, *, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """One part of a step's batch, and what follows each token of it: a lane's, or a rank's."""
    chosen = range(part * samples // parts, (part + 1) * samples // parts)
    rows = torch.stack([_sample(step * samples + number) for number in chosen])
    return rows[:, :-1], rows[:, 1:]


def _sample(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(VOCABULARY, (CONTEXT + 1,), generator=generator)
