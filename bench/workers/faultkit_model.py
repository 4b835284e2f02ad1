"""What both systems of `holdfast bench faultkit` train: the small GPT, with the names that SCOUT looks for.

SCOUT replays `embed`, one of `layers` and `output`, found by these names. Without one it is inconclusive.
"""

import hashlib

import torch
from torch import Tensor, nn

from model import CONTEXT, LAYERS, SEED, VOCABULARY, WIDTH, Block

LANES = 16
SAMPLES = 32
"""A step's batch: two samples a lane, so that they can change places, eight a rank."""


class FaultkitGpt(nn.Module):
    """Predicts each next token of a sample; called with both, it gives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.output(self.norm(x)).flatten(0, 1), targets.flatten())


def build() -> tuple[FaultkitGpt, torch.optim.Optimizer]:
    """The same bits in every process."""
    torch.manual_seed(SEED)
    model = FaultkitGpt()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of weights and moments."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        for tensor in (parameter, *(state[key] for key in sorted(state))):
            found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()
