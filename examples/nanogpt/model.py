"""A GPT with the names and arguments of nanoGPT's model.py, in plain PyTorch, independent of Holdfast.

train.py uses it unless it is given a nanoGPT checkout. It has only what train.py needs.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

A100_BF16_FLOPS = 312e12
"""The reference for utilisation, as in nanoGPT: a peak from NVIDIA's A100 data sheet."""
INIT_STD = 0.02


@dataclass(kw_only=True)
class GPTConfig:
    """nanoGPT's own fields; block_size is the context in tokens."""

    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True


class Block(nn.Module):
    """Attention to earlier tokens, then a layer of its own for each token."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width, bias = config.n_embd, config.bias
        self.heads, self.dropout = config.n_head, config.dropout
        self.before_attention = nn.LayerNorm(width, bias=bias)
        self.query_key_value = nn.Linear(width, 3 * width, bias=bias)
        self.mixed = nn.Linear(width, width, bias=bias)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width, bias=bias),
            nn.Linear(width, 4 * width, bias=bias),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=bias),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.dropout(self.attention(self.before_attention(x)), self.dropout, self.training)
        return x + self.feed_forward(x)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.mixed(y.transpose(1, 2).reshape(batch, length, width))


class GPT(nn.Module):
    """Predicts the next token at every place of a text; its first and last layer share their weights."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.places = nn.Embedding(config.block_size, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.n_layer)))
        self.norm = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.next = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.next.weight = self.tokens.weight
        self.apply(_initialise)
        for name, parameter in self.named_parameters():
            if name.endswith(("mixed.weight", "feed_forward.3.weight")):  # both end on the residual path
                nn.init.normal_(parameter, std=INIT_STD / math.sqrt(2 * config.n_layer))

    def forward(self, tokens: Tensor, following: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.places(places))
        logits = self.next(self.norm(self.blocks(x)))
        if following is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), following.flatten())

    def configure_optimizers(
        self, weight_decay: float, learning_rate: float, betas: tuple[float, float], device_type: str
    ) -> torch.optim.AdamW:
        """AdamW that decays matrices, but neither biases nor the weights of norms."""
        parameters = list(self.parameters())
        groups = [
            {"params": [one for one in parameters if one.dim() >= 2], "weight_decay": weight_decay},
            {"params": [one for one in parameters if one.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=device_type == "cuda")

    def estimate_mfu(self, sequences: int, seconds: float) -> float:
        """The share of an A100's peak at which this many sequences went forward and backward in this time."""
        config = self.config
        matrices = sum(one.numel() for one in self.parameters()) - self.places.weight.numel()
        attention = 12 * config.n_layer * config.n_embd * config.block_size
        return sequences * config.block_size * (6 * matrices + attention) / seconds / A100_BF16_FLOPS


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
