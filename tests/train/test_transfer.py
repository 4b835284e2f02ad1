"""A state from one memory to another: whole and verified, or not at all."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.train import transfer
from holdfast.train.group import GroupBroken
from holdfast.train.protected import Protected

Together = Callable[..., list[Any]]


def build(seed: int, steps: int) -> Protected:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2).bfloat16())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    for _ in range(steps):
        model[1](model[0](torch.randn(4, 6))).sum().backward()
        optimizer.step()
        scheduler.step()
    return Protected([model, optimizer, scheduler])


def move(group: Any, states: list[Protected], loss: float | None) -> transfer.Header | GroupBroken | None:
    if group.rank == 0:
        transfer.send(group, 1, states[0], version=7, loss=loss)
        return None
    try:
        return transfer.receive(group, 0, states[1])
    except GroupBroken as broken:
        return broken


@pytest.mark.parametrize("loss", [0.5, None, math.inf, math.nan])
def test_everything_arrives(together: Together, loss: float | None) -> None:
    states = [build(1, steps=3), build(2, steps=0)]
    before = states[0].digest()
    _, header = together(2, lambda group: move(group, states, loss))
    assert header.version == 7
    assert repr(header.loss) == repr(loss)
    assert states[1].digest() == states[0].digest() == before


@pytest.mark.parametrize("letter", [0, 1, 2], ids=["header", "outline", "tensors"])
def test_what_arrives_otherwise_than_it_was_sent_is_refused(together: Together, letter: int) -> None:
    states = [build(1, steps=3), build(2, steps=0)]
    before = states[1].digest()
    letters: list[torch.Tensor] = []

    def spoil(sent: torch.Tensor) -> None:
        if len(letters) == letter:
            sent[10] ^= 0x40
        letters.append(sent)

    _, refused = together(2, lambda group: move(group, states, 0.5), spoil)
    assert isinstance(refused, GroupBroken)
    assert states[1].digest() == before


def test_a_large_state_travels_in_several_packs(together: Together) -> None:
    """And is not copied as a whole to be sent: packs are made while others travel."""
    large = [nn.Linear(1, transfer.PACK_BYTES // 8, bias=False) for _ in range(5)]
    states = [
        Protected([model := nn.ModuleList(large), torch.optim.SGD(model.parameters(), lr=0.1)]),
        Protected([twin := copy.deepcopy(model), torch.optim.SGD(twin.parameters(), lr=0.1)]),
    ]
    for parameter in twin.parameters():
        parameter.data.zero_()
    sizes: list[int] = []
    together(2, lambda group: move(group, states, 0.5), lambda sent: sizes.append(len(sent)))
    assert sizes[2:] == [transfer.PACK_BYTES, transfer.PACK_BYTES, transfer.PACK_BYTES // 2]
    assert states[1].digest() == states[0].digest()
