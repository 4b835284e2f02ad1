"""The shape of a replica: how users write it, where its ranks are, and which nodes can hold it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.record.errors import InputError
from holdfast.run.mesh import MeshShape, mirror_offset

SHAPES = st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3]))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4", (("shard", 4),)),
        ("shard=2,tp=2", (("shard", 2), ("tp", 2))),
        ("tp=2, pp=3", (("pp", 3), ("tp", 2))),
    ],
)
def test_a_shape_is_written_as_a_number_or_by_dimension(
    text: str, sizes: tuple[tuple[str, int], ...]
) -> None:
    assert MeshShape.parse(text).sizes == sizes


@pytest.mark.parametrize(
    "text", ["", "0", "-2", "3", "shard=3", "ep=2", "shard=2,shard=2", "tp=", "=2", "two"]
)
def test_what_is_not_a_shape_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InputError) as refused:
        MeshShape.parse(text)
    assert "--shard" in refused.value.told


@given(SHAPES)
def test_every_rank_has_a_place_and_neighbours_in_each_dimension(sizes: tuple[int, int, int]) -> None:
    pp, shard, tp = sizes
    shape = MeshShape((("pp", pp), ("shard", shard), ("tp", tp)))
    places = [shape.place(rail) for rail in range(shape.ranks)]
    assert len({tuple(place.values()) for place in places}) == shape.ranks
    for rail, place in enumerate(places):
        for dimension, _ in shape.sizes:
            beside = shape.beside(rail, dimension)
            assert beside[place[dimension]] == rail
            for other in beside:
                same = {**places[other], dimension: place[dimension]}
                assert same == place


@pytest.mark.parametrize(
    ("shape", "slots", "nodes", "word"),
    [("4", 2, 1, "only 2 members"), ("2", 3, 2, "do not fit"), ("tp=4", 2, 2, "on one node")],
)
def test_nodes_that_cannot_hold_whole_replicas_are_refused(
    shape: str, slots: int, nodes: int, word: str
) -> None:
    with pytest.raises(InputError, match=word):
        MeshShape.parse(shape).check_fits(slots=slots, nodes_min=nodes)


@pytest.mark.parametrize(
    ("nodes", "offset"), [("aabb", 2), ("abab", 1), ("aaaa", 1), ("ab", 1), ("aaab", 1), ("aaabbb", 3)]
)
def test_a_mirror_is_on_another_node_where_there_is_one(nodes: str, offset: int) -> None:
    assert mirror_offset(nodes) == offset
