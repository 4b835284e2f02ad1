"""Random numbers that do not depend on which member draws them: every lane of every step has its own seed.

Covers torch (CPU and every CUDA device), Python's `random`, and numpy's global generator if it is loaded.
"""

import hashlib
import random
import sys

import torch

BEFORE_LANES = -1
REDUCED = -4
COMMITTED = -5
SHARED = {"between": -6, "outside": -7}
"""Lane numbers that neither lanes nor data (data.py) use, for numbers that a step draws outside its lanes:
the same on every member, whichever lanes it computed. The optimizer draws with `REDUCED`; work shared between
steps draws with seeds made from `SHARED`.
"""


def seed_of(seed: int, step: int, lane: int, stage: int = 0) -> int:
    """64 bits unrelated to those of the neighbouring step, lane, seed or stage."""
    text = f"holdfast:{seed}:{step}:{lane}{f':{stage}' if stage else ''}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def begin(seed: int, step: int, lane: int, stage: int = 0) -> None:
    """Set every generator to the beginning of this lane of this step. stage: of a pipeline."""
    seed_all(seed_of(seed, step, lane, stage))


def seed_all(value: int) -> None:
    """Seed every generator."""
    seed_host(value)
    # Even if CUDA is not in use yet: a warm process has used it, a cold one will, and both must agree.
    if torch.cuda.is_initialized() or torch.cuda.is_available():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)


def seed_host(value: int) -> None:
    """Seed the generators of the CPU only."""
    # Not `torch.manual_seed`: without a GPU it formats a stack trace for each kind of accelerator.
    torch.default_generator.manual_seed(value)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFF_FFFF)
