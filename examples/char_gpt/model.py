"""A small GPT that reads and writes one character at a time, in plain PyTorch, independent of Holdfast."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Every stretch of `context` characters in a file, each with the characters that follow them."""

    def __init__(self, path: Path, context: int) -> None:
        text = path.read_text(encoding="utf-8")
        self.alphabet = sorted(set(text))
        self.context = context
        self._codes = torch.tensor(self.encode(text))

    def encode(self, text: str) -> list[int]:
        codes = {character: code for code, character in enumerate(self.alphabet)}
        return [codes[character] for character in text]

    def decode(self, codes: list[int]) -> str:
        return "".join(self.alphabet[code] for code in codes)

    def __len__(self) -> int:
        return len(self._codes) - self.context

    def __getitem__(self, start: int) -> tuple[Tensor, Tensor]:
        stretch = self._codes[start : start + self.context + 1]
        return stretch[:-1], stretch[1:]


class Block(nn.Module):
    """Attention to what came before, then a layer of its own for every character."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.mixed = nn.Linear(width, width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.feed_forward(x)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.mixed(y.transpose(1, 2).reshape(batch, length, width))


class GPT(nn.Module):
    """Predicts the next character at every place of a text."""

    def __init__(
        self, alphabet: int, *, context: int, layers: int, width: int, heads: int = 4, dropout: float = 0.05
    ) -> None:
        super().__init__()
        self.context = context
        self.characters = nn.Embedding(alphabet, width)
        self.places = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.next = nn.Linear(width, alphabet, bias=False)
        self.next.weight = self.characters.weight  # tied
        self.apply(_initialise)

    def forward(self, codes: Tensor) -> Tensor:
        places = torch.arange(codes.shape[1], device=codes.device)
        x = self.dropout(self.characters(codes) + self.places(places))
        return self.next(self.norm(self.blocks(x)))

    def loss(self, codes: Tensor, following: Tensor) -> Tensor:
        return functional.cross_entropy(self(codes).flatten(0, 1), following.flatten())

    @torch.no_grad()
    def write(self, codes: list[int], count: int, generator: torch.Generator) -> list[int]:
        """The given text and `count` more characters, each drawn by its probability."""
        for _ in range(count):
            recent = torch.tensor([codes[-self.context :]], device=self.places.weight.device)
            chances = self(recent)[0, -1].softmax(dim=-1).cpu()
            codes = [*codes, int(torch.multinomial(chances, 1, generator=generator))]
        return codes


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
