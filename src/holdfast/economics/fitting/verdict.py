"""A question about a record, answered yes, no or unknown, with the number behind it and a sentence."""

from typing import Literal

import msgspec

Answer = Literal["yes", "no", "unknown"]

CHANCE_MAX = 0.01
"""What chance brings about less often than this is not taken for chance: one fit asks about ten questions."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """p_value: how often chance alone would look at least like this; None where no test was made."""

    question: str
    answer: Answer
    sentence: str
    p_value: float | None = None


def unknown(question: str, sentence: str) -> Verdict:
    return Verdict(question=question, answer="unknown", sentence=sentence)


def is_chance(p_value: float) -> bool:
    return p_value >= CHANCE_MAX


def chance(p_value: float) -> str:
    """`p = 0.23`, or `p ≤ 0.001`: no more digits than anybody weighs, nor than simulations give."""
    return "p ≤ 0.001" if p_value <= 0.001 else f"p = {p_value:.2g}"
