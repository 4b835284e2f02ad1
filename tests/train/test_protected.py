"""Protected things: distinguished, taken apart, restored to the bit; and things that cannot be protected."""

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from holdfast.record.errors import InputError
from holdfast.train.protected import (
    FINGERPRINT_WORDS,
    Protected,
    bytes_of,
    digest,
    fingerprint,
    memory_of,
)
from holdfast.train.skeleton import empty_like, put_together, take_apart

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def again(tree: Any) -> Any:
    """The tree after it was taken apart and put together."""
    skeleton, tensors = take_apart(tree)
    arrived = empty_like(skeleton, CPU)
    for tensor, sent in zip(arrived, tensors, strict=True):
        bytes_of(tensor).copy_(bytes_of(sent))
    return put_together(skeleton, arrived)


# ---- fingerprints ------------------------------------------------------------------------------------------


@given(st.binary(min_size=1, max_size=60), st.data())
def test_any_changed_byte_changes_the_fingerprint(content: bytes, data: st.DataObject) -> None:
    tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    before = fingerprint(tensor)
    place = data.draw(st.integers(0, len(content) - 1))
    tensor[place] ^= data.draw(st.integers(1, 255))
    assert fingerprint(tensor) != before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_signs_and_places_count(dtype: torch.dtype) -> None:
    """A sign is the topmost bit of its word, where a product loses most."""
    tensor = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=dtype)
    others = [-tensor, tensor.flip(0), tensor.roll(2), tensor.abs(), -tensor.abs()]
    prints = {fingerprint(other) for other in [tensor, *others]}
    assert len(prints) == 6


def test_long_tensors_are_seen_to_their_end() -> None:
    tensor = torch.zeros(2 * FINGERPRINT_WORDS + 5)
    seen = {fingerprint(tensor)}
    for place in (0, FINGERPRINT_WORDS - 1, FINGERPRINT_WORDS, 2 * FINGERPRINT_WORDS, -1):
        changed = tensor.clone()
        changed[place] = 1
        seen.add(fingerprint(changed))
    assert len(seen) == 6


def test_a_part_of_a_tensor_that_begins_inside_a_word_has_a_fingerprint() -> None:
    whole = torch.arange(41, dtype=torch.uint8)
    assert fingerprint(whole[1:]) == fingerprint(whole[1:].clone())
    halves = torch.randn(9).bfloat16()
    assert fingerprint(halves[1:]) == fingerprint(halves[1:].clone())


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (3, 5)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.complex64, torch.float16])
def test_every_kind_of_tensor_travels(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    arrived = again([tensor])[0]
    assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
    assert memory_of(arrived) == memory_of(tensor)
    assert fingerprint(arrived) == fingerprint(tensor)


# ---- trees -------------------------------------------------------------------------------------------------


def test_containers_arrive_as_what_they_were() -> None:
    model = nn.BatchNorm1d(3)
    tree = {
        "milestones": Counter({3: 2, 8: 1}),
        "default": defaultdict(list, a=[torch.ones(2)]),
        "model": model.state_dict(),
        "plain": (1, 2.5, None, "x", [True, (torch.zeros(0),)]),
        "unusual": [1 << 80, -(1 << 63), 2j, b"b", {3, 1}, frozenset({(1, 2)}), deque([1, 2], maxlen=2)],
        "torch": [torch.bfloat16, torch.device("cpu"), torch.Size([2, 3])],
    }
    arrived = again(tree)
    for part in ("plain", "unusual", "torch"):
        assert repr(arrived[part]) == repr(tree[part])
    assert arrived["milestones"] == Counter({3: 2, 8: 1})
    assert type(arrived["milestones"]) is Counter
    assert arrived["default"].default_factory is list
    assert type(arrived["model"]) is OrderedDict
    assert arrived["model"]._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    assert digest(arrived) == digest(tree)


def test_taking_apart_leaves_the_tree_alone() -> None:
    weight = torch.ones(2)
    tree: dict[str, Any] = {"a": {"b": weight}, "c": Counter("aab")}
    take_apart(tree)
    assert tree["a"]["b"] is weight
    assert tree["c"] == Counter("aab")


def test_a_digest_tells_trees_apart() -> None:
    trees: list[Any] = [
        {"a": torch.zeros(2)},
        {"b": torch.zeros(2)},
        {"a": torch.zeros(1, 2)},
        {"a": torch.zeros(2, dtype=torch.int32)},
        {"a": torch.tensor([0.0, -0.0])},
        {"a": torch.zeros(2), "step": 1},
        {"a": torch.zeros(2), "step": 1.0},
    ]
    assert len({digest(tree) for tree in trees}) == len(trees)


class Opaque:
    """Only a pickle could carry it."""

    def __init__(self, value: int) -> None:
        self.value = value


def test_long_arrays_of_numpy_are_told_apart() -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros(5000)
    other = array.copy()
    other[2500] = 1  # where a repr has an ellipsis
    assert digest({"x": array}) != digest({"x": other})
    assert digest({"x": numpy.float64(0.1)}) == digest({"x": 0.1})


def test_arrays_and_numbers_of_numpy_travel() -> None:
    numpy = pytest.importorskip("numpy")
    tree = [numpy.arange(6).reshape(2, 3), numpy.zeros((0, 2)), numpy.float32(0.5), numpy.array("x")]
    arrived = again(tree)
    for one, sent in zip(arrived, tree, strict=True):
        assert (type(one), one.dtype, one.shape) == (type(sent), sent.dtype, sent.shape)
        assert (one == sent).all()
    with pytest.raises(InputError, match="cannot be sent"):
        digest([numpy.array([Opaque(1)])])


@pytest.mark.parametrize(
    "what",
    [lambda: 0, Opaque(1), Opaque, defaultdict(object), print],
    ids=["lambda", "object", "class", "defaultdict", "built-in"],
)
def test_what_cannot_travel_is_refused_with_a_sentence(what: object) -> None:
    with pytest.raises(InputError, match="cannot be sent to another member"):
        digest({"x": what})


def test_a_tree_that_contains_itself_is_refused_with_a_sentence() -> None:
    tree: dict[str, Any] = {}
    tree["tree"] = tree
    with pytest.raises(InputError, match="nested more than 64 deep"):
        digest(tree)


# ---- putting back ------------------------------------------------------------------------------------------


def trained(dtype: torch.dtype) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 1, 3])
    for _ in range(2):
        model(torch.ones(2, 4, dtype=dtype)).sum().backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer, scheduler


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_that_is_put_back_is_the_same_to_the_bit(dtype: torch.dtype) -> None:
    source = trained(dtype)
    for state in source[1].state.values():
        state["exp_avg_sq"] = torch.rand(state["exp_avg_sq"].shape)  # finer than the parameter
    fresh = trained(dtype)[0], torch.optim.AdamW((model := nn.Linear(4, 4).to(dtype)).parameters())
    scheduler = torch.optim.lr_scheduler.MultiStepLR(fresh[1], [1, 1, 3])
    kept, target = Protected(source), Protected([model, fresh[1], scheduler])
    target.put_back(again(kept.tree()))
    assert target.digest() == kept.digest()
    assert scheduler.milestones == Counter({1: 2, 3: 1})


# ---- refusing --------------------------------------------------------------------------------------------


def refusal(*things: object, moving: tuple[str, ...] = ()) -> str:
    with pytest.raises(InputError) as refused:
        Protected(things, moving)
    assert refused.value.hint
    return refused.value.sentence


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for module in modules for parameter in module.parameters()], lr=0.1)


def test_what_cannot_be_protected_is_refused_with_a_sentence() -> None:
    model = nn.Linear(2, 2)
    assert "has no state_dict" in refusal(model, sgd(model), 3)
    assert "a model and an optimizer" in refusal(model)
    assert "a model and an optimizer" in refusal(sgd(model))
    scalers = [torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")]
    assert "at most one GradScaler" in refusal(model, sgd(model), *scalers)
    assert "is not a buffer" in refusal(model, sgd(model), moving=("weight",))
    assert "LBFGS cannot be used" in refusal(model, torch.optim.LBFGS(model.parameters()))
    assert "reduces gradients itself" in refusal(nn.DataParallel(model), sgd(model))
    assert "requires a gradient" in refusal(copy.deepcopy(model).requires_grad_(False), sgd(model))
    elsewhere = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    assert "without values" in refusal(elsewhere, sgd(elsewhere))


def test_a_parameter_that_would_not_be_reduced_is_refused() -> None:
    model, head = nn.Linear(2, 2), nn.Linear(2, 3)
    assert "of shape (3, 2), that is in no protected model" in refusal(model, sgd(model, head))
    Protected([model, head, sgd(model, head)])
    head.requires_grad_(False)
    Protected([model, sgd(model, head)])


def test_what_is_added_or_unfrozen_later_is_refused() -> None:
    model, head = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    protected = Protected([model, head, sgd(model, head)])
    protected.check_unchanged()
    head.bias.requires_grad_(True)
    with pytest.raises(InputError, match="unfrozen after protect"):
        protected.check_unchanged()
    protected = Protected([model, head, optimizer := sgd(model)])
    optimizer.add_param_group({"params": [head.weight]})
    with pytest.raises(InputError, match="other parameters after protect"):
        protected.check_unchanged()


def test_a_moving_buffer_must_be_part_of_the_state() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("mean", torch.zeros(2), persistent=False)
    assert "not in the model's state_dict" in refusal(model, sgd(model), moving=("mean",))
