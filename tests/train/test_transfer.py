"""Copies a state from some memories to others: complete and verified, or not at all."""

import copy
import math
import queue
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from quantity import sampled
from torch import nn

from holdfast.train import transfer
from holdfast.train.group import GroupBroken
from holdfast.train.protected import Protected

pytestmark = pytest.mark.slow

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


def large(filled: bool) -> Protected:
    model = nn.ModuleList(nn.Linear(1, transfer.PIECE_BYTES // 8, bias=False) for _ in range(5))
    model.append(nn.Linear(1, transfer.PIECE_BYTES // 2, bias=False))  # twice a piece
    if not filled:
        for parameter in model.parameters():
            parameter.data.zero_()
    return Protected([model, torch.optim.SGD(model.parameters(), lr=0.1)])


class Move:
    """The first members' state goes to the others. spoil: changes a source's header."""

    def __init__(
        self, states: list[Protected], sources: int = 1, spoil: Callable[[bytes], bytes] = lambda told: told
    ) -> None:
        self._states = states
        ranks = range(len(states))
        self._route = transfer.Route(sources=tuple(ranks[:sources]), receivers=tuple(ranks[sources:]))
        self._spoil = spoil
        self._told: dict[tuple[int, int], queue.SimpleQueue[bytes]] = {
            (source, receiver): queue.SimpleQueue()
            for source in self._route.sources
            for receiver in self._route.receivers
        }

    def __call__(self, group: Any, loss: float | None = 0.5) -> Any:
        state = self._states[group.rank]
        if group.rank in self._route.sources:
            numbers = transfer.Numbers(loss=loss)
            return transfer.send(
                group, self._route, state, 7, numbers, lambda header: self._tell(group.rank, header)
            )
        headers = [self._told[source, group.rank].get(timeout=90) for source in self._route.sources]
        try:
            return transfer.receive(group, self._route, state, headers)
        except GroupBroken as broken:
            return broken

    def _tell(self, source: int, header: bytes) -> None:
        for receiver in self._route.receivers:
            self._told[source, receiver].put(self._spoil(header))


def test_receivers_get_the_header_before_anything_is_queued_for_them(together: Together) -> None:
    """A GPU that waits for a receiver may delay what its host has yet to queue: see `transfer.send`."""
    happened: list[str] = []

    def tell(header: bytes) -> bytes:
        happened.append("told")
        return header

    move = Move([build(1, steps=3), build(2, steps=0)], spoil=tell)
    together(2, move, lambda _: happened.append("sent"))
    assert happened[0] == "told"
    assert happened.count("told") == 1
    assert "sent" in happened


@pytest.mark.parametrize("loss", [0.5, None, math.inf, math.nan])
def test_everything_arrives(together: Together, loss: float | None) -> None:
    states = [build(1, steps=3), build(2, steps=0)]
    before = states[0].digest()
    move = Move(states)
    _, header = together(2, lambda group: move(group, loss))
    assert header.version == 7
    assert repr(header.numbers.loss) == repr(loss)
    assert states[1].digest() == states[0].digest() == before


@pytest.mark.parametrize("sources", sampled([1, 2, 3], [2]))
def test_several_serve_several_at_once_each_its_share(together: Together, sources: int) -> None:
    states = [large(filled=True)]
    states += [copy.deepcopy(states[0]) for _ in range(sources - 1)]
    states += [large(filled=False) for _ in range(2)]
    sent: list[int] = []
    together(len(states), Move(states, sources), lambda one: sent.append(one.nbytes))
    assert {state.digest() for state in states} == {states[0].digest()}
    whole = sum(parameter.nbytes for parameter in states[0].parameters)
    outline_and_padding = 64 << 10
    assert (
        2 * whole <= sum(sent) < 2 * (whole + outline_and_padding)
    )  # nothing is sent twice to the same receiver
    assert max(sent) <= transfer.PIECE_BYTES


@pytest.mark.parametrize("letter", [0, 1], ids=["outline", "tensors"])
def test_what_arrives_otherwise_than_it_was_sent_is_refused(together: Together, letter: int) -> None:
    states = [build(1, steps=3), build(2, steps=0)]
    before = states[1].digest()
    letters: list[torch.Tensor] = []

    def spoil(sent: torch.Tensor) -> None:
        if len(letters) == letter:
            sent[10] ^= 0x40
        letters.append(sent)

    _, refused = together(2, Move(states), spoil)
    assert isinstance(refused, GroupBroken)
    assert states[1].digest() == before


def unreadable(told: bytes) -> bytes:
    return told[:5]


def about_another_outline(told: bytes) -> bytes:
    header = msgspec.msgpack.decode(told, type=transfer.Header)
    return msgspec.msgpack.encode(msgspec.structs.replace(header, skeleton_digest=bytes(32)))


def about_other_pieces(told: bytes) -> bytes:
    header = msgspec.msgpack.decode(told, type=transfer.Header)
    return msgspec.msgpack.encode(msgspec.structs.replace(header, fingerprints=header.fingerprints[1:]))


@pytest.mark.parametrize("spoil", [unreadable, about_another_outline, about_other_pieces])
def test_what_is_not_as_it_was_told_is_refused(together: Together, spoil: Callable[[bytes], bytes]) -> None:
    states = [build(1, steps=3), build(2, steps=0)]
    before = states[1].digest()
    _, refused = together(2, Move(states, spoil=spoil))
    assert isinstance(refused, GroupBroken)
    assert states[1].digest() == before


def test_what_a_lane_moves_meanwhile_is_sent_as_it_was(together: Together) -> None:
    """A source continues computing: BatchNorm's statistics move in a lane, and back at its end."""
    states = [build(1, steps=3), build(2, steps=0)]
    before = states[0].digest()
    move = Move(states)

    def compute_meanwhile(group: Any) -> Any:
        came_of_it = move(group)
        if group.rank == 0:
            for buffer in states[0].moving:
                assert buffer.tensor is not None
                buffer.tensor.add_(1)
        return came_of_it

    together(2, compute_meanwhile)
    assert states[1].digest() == before


def test_tensors_keep_their_layout(together: Together) -> None:
    """Kernels that go through memory in its order would otherwise pair elements that do not
    belong together.
    """

    def convolution(steps: int) -> Protected:
        torch.manual_seed(1)
        model = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        for _ in range(steps):
            model(torch.randn(2, 3, 8, 8)).sum().backward()
            optimizer.step()
        return Protected([model, optimizer])

    states = [convolution(3), convolution(0)]
    together(2, Move(states))
    assert states[1].digest() == states[0].digest()
    for mine, theirs in zip(*(state.optimizers[0].state.values() for state in states), strict=True):
        assert mine["exp_avg"].stride() == theirs["exp_avg"].stride()
    gradients = [torch.randn(8, 3, 3, 3), torch.randn(8)]
    for state in states:
        for parameter, gradient in zip(state.parameters, gradients, strict=True):
            parameter.grad = gradient.clone(memory_format=torch.preserve_format).to(
                memory_format=torch.channels_last if gradient.dim() == 4 else torch.contiguous_format
            )
        state.optimizers[0].step()
    assert states[1].digest() == states[0].digest()


def test_what_does_not_fill_its_memory_arrives(together: Together) -> None:
    states = [build(1, steps=1), build(2, steps=0)]
    kept = torch.arange(12.0).reshape(3, 4)[:, ::2]
    for state, value in zip(states, (kept, torch.zeros(3, 2)), strict=True):
        state.models[0].register_buffer("odd", value)
    together(2, Move([Protected([*state.models, *state.optimizers]) for state in states]))
    assert torch.equal(states[1].models[0].odd, kept)  # type: ignore[arg-type]


def test_sources_that_cut_the_state_otherwise_are_refused(together: Together) -> None:
    def about_another_cut(told: bytes) -> bytes:
        header = msgspec.msgpack.decode(told, type=transfer.Header)
        return msgspec.msgpack.encode(msgspec.structs.replace(header, cut=bytes(32)))

    states = [build(1, steps=3), build(2, steps=0)]
    _, refused = together(2, Move(states, spoil=about_another_cut))
    assert isinstance(refused, GroupBroken)
