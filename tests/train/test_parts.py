"""Parts of a state: cut for some ranks, kept, and cut anew for others, in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from listening import tell_nobody
from quantity import examples

from holdfast.record.errors import InputError, StoreError
from holdfast.run.mesh import MeshShape
from holdfast.train.checkpoint import AHEAD_MAX, DirectoryCheckpoints, Loaded
from holdfast.train.kept import folder_of, kept_steps
from holdfast.train.opening import load_checkpoint
from holdfast.train.parts import RunCheckpoints
from holdfast.train.shards import Extent, TreePath

Shape = tuple[int, ...]


def extent(shape: Shape, ranks: int, rail: int) -> Extent:
    """As torch cuts the first dimension; a tensor without dimensions is on every rank."""
    if not shape:
        return Extent((), ())
    each = -(-shape[0] // ranks)
    begin = min(each * rail, shape[0])
    return Extent((begin, *(0 for _ in shape[1:])), (min(each, shape[0] - begin), *shape[1:]))


def piece(whole: torch.Tensor, ranks: int, rail: int) -> torch.Tensor:
    offsets, sizes = extent(tuple(whole.shape), ranks, rail)
    return whole[tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))]


def mesh_of(ranks: int, stages: int = 1) -> MeshShape:
    return MeshShape((("pp", stages), ("shard", ranks // stages)) if stages > 1 else (("shard", ranks),))


def keep(folder: Path, step: int, wholes: list[torch.Tensor], ranks: int, **instead: Any) -> None:
    """Write a step as the ranks of a run do: a model, and an optimizer with state for each tensor."""
    names = [str(number) for number in range(len(wholes))]
    for rail in range(ranks):
        local = [piece(whole, ranks, rail).clone() for whole in wholes]
        paths: list[list[TreePath]] = [
            [(name,) for name in names],
            [("state", number, "noted") for number in range(len(wholes))],
        ]
        cut = [
            [
                [path, whole.shape, extent(tuple(whole.shape), ranks, rail).offsets]
                for path, whole in zip(of, wholes, strict=True)
            ]
            for of in paths
        ]
        states = [
            dict(zip(names, local, strict=True)),
            {
                "state": {
                    number: {"noted": -one, "step": torch.tensor(3.0)} for number, one in enumerate(local)
                }
            },
        ]
        kept = {"lanes": 8, "seed": 1, "version": step, "loss": 0.5, "names": ["model", "optimizer"]}
        note = {"mesh": {"sizes": [["shard", ranks]]}, "rail": rail, "cut": cut}
        shards = {"shards": note | instead} if ranks > 1 else {}
        store = DirectoryCheckpoints(folder_of(folder, rail, ranks), told=tell_nobody)
        store.save(step, {**kept, "state": states, **shards})


def opened(folder: Path, wholes: list[torch.Tensor], ranks: int, rail: int, **more: Any) -> Loaded | None:
    def wanted(number: int, path: TreePath, shape: Shape) -> Extent | None:
        is_cut = path[-1] != "step" and ranks > 1
        return extent(shape, ranks, rail) if is_cut else None

    mesh = mesh_of(ranks, **more)
    return RunCheckpoints(folder, mesh=mesh, rail=rail, wanted=wanted, told=tell_nobody).newest()


@settings(max_examples=examples(60), deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=3),
    kept_by=st.sampled_from([1, 2, 4, 8]),
    opened_by=st.sampled_from([1, 2, 4, 8]),
)
def test_any_parts_become_any_other(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[Shape], kept_by: int, opened_by: int
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    wholes = [torch.randn(shape) for shape in shapes]
    keep(folder, 7, wholes, kept_by)
    for rail in range(opened_by):
        found = opened(folder, wholes, opened_by, rail)
        assert found is not None
        state: Any = found.state["state"]
        for number, whole in enumerate(wholes):
            expected = piece(whole, opened_by, rail)
            assert torch.equal(state[0][str(number)], expected)
            assert torch.equal(state[1]["state"][number]["noted"], -expected)
            assert state[1]["state"][number]["step"] == 3.0
    joined = load_checkpoint(folder)
    assert joined.step == 7
    assert all(torch.equal(joined.model[str(number)], whole) for number, whole in enumerate(wholes))


WHOLES = [torch.arange(15.0).reshape(5, 3), torch.tensor(2.0)]


def test_the_newest_complete_one_of_any_ranks_is_taken(tmp_path: Path) -> None:
    assert opened(tmp_path, WHOLES, 2, 0) is None
    keep(tmp_path, 10, WHOLES, 2)
    keep(tmp_path, 20, WHOLES, 4)
    keep(tmp_path, 30, WHOLES, 1)
    keep(tmp_path, 40, WHOLES, 8)
    (tmp_path / "shard-5-of-8" / "step-000000000040.checkpoint").unlink()
    marks = [found.step for rail in range(2) if (found := opened(tmp_path, WHOLES, 2, rail))]
    assert marks == [30, 30]
    keep(tmp_path, 30, WHOLES, 2)
    own = opened(tmp_path, WHOLES, 2, 1)
    assert own is not None
    assert "shard-1-of-2" in own.place  # its own part of the same step
    assert [(kept.step, kept.ranks, kept.is_complete) for kept in kept_steps(tmp_path)] == [
        (10, 2, True),
        (20, 4, True),
        (30, 1, True),
        (30, 2, True),
        (40, 8, False),
    ]


def test_a_folder_of_another_mesh_is_cut_anew(tmp_path: Path) -> None:
    """The same number of ranks, in other dimensions: their parts have the same names."""
    keep(tmp_path, 10, WHOLES, 4, mesh={"sizes": [["shard", 2], ["tp", 2]]})
    found = opened(tmp_path, WHOLES, 4, 1)
    assert found is not None
    assert torch.equal(found.state["state"][0]["0"], piece(WHOLES[0], 4, 1))  # type: ignore[index]
    assert "shard-*-of-4" in found.place


def test_another_number_of_pipeline_stages_is_refused(tmp_path: Path) -> None:
    keep(tmp_path, 10, WHOLES, 4)
    with pytest.raises(InputError, match="have 1 pipeline stages, but this run has 2"):
        opened(tmp_path, WHOLES, 2, 0, stages=2)


def test_pipeline_stages_are_kept_apart_and_exported_together(tmp_path: Path) -> None:
    for rail in range(2):
        state = [{f"{rail}.weight": torch.full((2,), rail)}, {"state": {}, "lr": rail}]
        note = {"mesh": {"sizes": [["pp", 2]]}, "rail": rail, "cut": [[], []]}
        kept = {"lanes": 8, "seed": 1, "version": 10, "loss": 0.5, "names": ["model", "optimizer"]}
        store = DirectoryCheckpoints(folder_of(tmp_path, rail, 2), told=tell_nobody)
        store.save(10, {**kept, "state": state, "shards": note})
    whole = load_checkpoint(tmp_path)
    assert list(whole.model) == ["0.weight", "1.weight"]
    assert [whole.states[f"optimizer.pp{stage}"]["lr"] for stage in range(2)] == [0, 1]
    for rail in range(4):
        found = opened(tmp_path, WHOLES, 4, rail, stages=2)
        assert found is not None
        assert list(found.state["state"][0]) == [f"{rail // 2}.weight"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        ({"mesh": {"sizes": [["shard", 4]]}}, "of 4 parts instead of 2"),
        ({"mesh": {"sizes": [["shard", -1], ["tp", -2]]}}, "its mesh is shard=-1,tp=-2"),
        ({"rail": 1}, "not belong to the same parts"),
        ({"cut": []}, "how 0 states are cut, but holds 2"),
        ({"cut": [[[["9"], [5, 3], [0, 0]]], []]}, "no tensor 9"),
        ({"cut": [[[["0"], [5, 3], [4, 0]]], []]}, "piece of 0 lies outside"),
        ({"cut": [[[["0"], [5], [0]]], []]}, "piece of 0 lies outside"),
        ({"cut": [[[["0"], [10**9, 3], [0, 0]]], []]}, "leave gaps in 0"),
        ({"cut": "all"}, "what it says of its parts cannot be used"),
    ],
)
def test_parts_that_do_not_fit_together_are_passed_over(
    tmp_path: Path, instead: dict[str, Any], reason: str
) -> None:
    keep(tmp_path, 10, WHOLES, 2, **instead)
    with pytest.raises(InputError, match=reason):
        load_checkpoint(tmp_path)
    with pytest.raises(StoreError, match=r"Every checkpoint in .* is damaged"):
        opened(tmp_path, WHOLES, 4, 0)


def test_what_other_ranks_have_not_kept_is_not_the_only_one_left(tmp_path: Path) -> None:
    """A rank that is ahead does not remove what the others would need, up to a bound."""
    one, other = (
        RunCheckpoints(tmp_path, mesh=mesh_of(2), rail=rail, wanted=lambda *_: None, told=tell_nobody)
        for rail in range(2)
    )
    for step in (1, 2, 3):
        one.save(step, {})
        other.save(step, {})
    for step in range(4, 4 + AHEAD_MAX - 2):
        one.save(step, {})
    assert one.steps() == list(range(2, 4 + AHEAD_MAX - 2))
    assert other.steps() == [2, 3]
    one.save(100, {})
    assert len(one.steps()) == AHEAD_MAX
    other.save(100, {})
    one.save(101, {})
    other.save(101, {})
    assert other.steps() == [100, 101]


def test_a_part_alone_is_refused_with_a_sentence(tmp_path: Path) -> None:
    keep(tmp_path, 10, WHOLES, 2)
    part = tmp_path / "shard-0-of-2" / "step-000000000010.checkpoint"
    with pytest.raises(InputError, match="is one rank's part of a sharded state"):
        load_checkpoint(part)
    part.unlink()
    with pytest.raises(InputError, match="the parts of ranks 0 of 2 are missing"):
        load_checkpoint(tmp_path)
