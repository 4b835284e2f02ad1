"""What the ranks of a replica agree on before any of them commits a step.

Each rail has its sum by itself, and might be the only one that does. So before a rank commits, every other
rank of its replica confirms that it has its own sum: a rank that is past this round knows that every part of
the step exists, on every living rank. The round also computes the norm of all gradients. It is added up in
whole numbers, whose sum does not depend on how the parameters are cut.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from holdfast.train.group import Group

TAG = 1 << 22
SUM_BITS = 62
"""Bits of a 64-bit whole number that are used, so that a sum keeps its sign."""
CHUNK = {"cpu": 1 << 18, "cuda": 1 << 24}
"""How many elements are squared at once, so that intermediate results stay in the cache."""
ROW = 1 << 12
BITS_MAX = 40
"""The sum of a row of whole numbers with this many bits fits a float64 exactly, in whatever order it is made.
That takes a third less time than with integers.
"""


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """pending: the lowest and the highest generation that a rank knows to be waiting. latest: the largest of
    the ranks' times. norm: of all gradients, if it was requested. is_due: a checkpoint is due. is_snapped: a
    snapshot is due. saved: the last durable step; 0: none, or not the same on all ranks. shares: how many
    lanes each replica is to have; the first rank's value counts, because each rail has its own figures, and
    all first ranks have the same.
    """

    loss: float
    pending: tuple[int, int]
    latest: tuple[float, float]
    norm: float | None
    is_due: bool
    saved: int = 0
    shares: tuple[int, ...] = ()
    is_snapped: bool = False


def agree(
    group: Group | None,
    mine: Agreed,
    gradients: Sequence[torch.Tensor] | None,
    device: torch.device,
    *,
    knows_loss: int = 0,
) -> Agreed:
    """mine: what this rank knows. gradients: its part of the sum that it counts; None: no norm is needed.
    knows_loss: the rank whose loss counts. Raises `GroupBroken`.
    """
    spans = gradients or ()
    tops = [_top(span) for span in spans if span.numel()]
    biggest = math.nan if any(map(math.isnan, tops)) else max(tops, default=0.0)
    numel = float(sum(span.numel() for span in spans))
    dues = mine.is_due, mine.is_snapped
    told = [mine.loss, *mine.pending, *mine.latest, *dues, mine.saved, biggest, numel, *mine.shares]
    rows = _gathered(group, torch.tensor(told, dtype=torch.float64, device=device))
    columns = list(zip(*rows, strict=True))
    losses, lowest, highest, through, sending, due, snapped, saved, biggests, numels, *shares = columns
    norm = None
    if gradients is not None:
        top = math.nan if any(map(math.isnan, biggests)) else max(biggests)
        norm = _norm(group, spans, top, int(sum(numels)), device)
    if group is not None:
        group.settle()
        group.confirm()
    return Agreed(
        loss=losses[knows_loss],
        pending=(int(min(lowest)), int(max(highest))),
        latest=(max(through), max(sending)),
        norm=norm,
        is_due=all(due),
        is_snapped=all(snapped),
        saved=int(saved[0]) if min(saved) == max(saved) else 0,
        shares=tuple(int(column[0]) for column in shares),
    )


def _norm(
    group: Group | None, spans: Sequence[torch.Tensor], top: float, numel: int, device: torch.device
) -> float:
    """The square root of the sum of all squares. Each square is cut into two whole numbers, with as many bits
    as can be added up without overflow; these sums are exact in any order.
    """
    if not math.isfinite(top) or not top:
        return top
    bits = min(BITS_MAX, (SUM_BITS - numel.bit_length()) // 2 * 2)
    _, exponent = math.frexp(top)  # the largest square is below 1 when scaled by it
    highs = [torch.zeros(1, dtype=torch.float64, device=device)]
    lows = list(highs)
    for span in spans:
        for chunk in torch.split(span, CHUNK[device.type]):
            square = (chunk.double() * 2.0 ** (bits // 2 - exponent)).square_()
            whole = square.floor()
            highs += _row_sums(whole)
            lows += _row_sums(square.sub_(whole).mul_(2.0**bits).floor_())
    sums = _gathered(group, torch.stack([torch.cat(rows).long().sum() for rows in (highs, lows)]))
    total_high, total_low = (sum(column) for column in zip(*sums, strict=True))
    return math.sqrt(total_high + total_low * 2.0**-bits) * 2.0 ** (exponent - bits // 2)


def _top(span: torch.Tensor) -> float:
    """The largest absolute value; NaN if any value is NaN."""
    least, most = torch.aminmax(span)
    return abs(float(torch.maximum(-least, most)))


def _row_sums(numbers: torch.Tensor) -> list[torch.Tensor]:
    even = numbers.numel() // ROW * ROW
    return [numbers[:even].view(-1, ROW).sum(1), numbers[even:].sum(0, keepdim=True)]


def _gathered(group: Group | None, row: torch.Tensor) -> list[list[float]]:
    """The rows of all ranks, in rank order."""
    if group is None or group.size == 1:
        return [row.tolist()]
    rows = torch.empty((group.size, row.numel()), dtype=row.dtype, device=row.device)
    rows[group.rank] = row
    peers = [peer for peer in range(group.size) if peer != group.rank]
    with group.along():
        work = group.exchange(
            [(rows[group.rank], peer) for peer in peers], [(rows[peer], peer) for peer in peers], TAG
        )
        work.wait()
    group.settle()
    found: list[list[float]] = rows.tolist()
    return found
