"""The graph against a slow and obvious one, its errors, its order, and its speed at 100,000 GPUs."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.errors import InputError
from holdfast.topology.graph import DEFAULT_OWNERS, KINDS, Builder, Kind, Shared, Topology, in_order

BUILD_S_MAX = 20.0
QUERY_S_MAX = 1.0
"""Ceilings for a busy machine; docs/topology.md has what an idle one takes."""

Edges = dict[str, set[str]]
"""Of each subject, what it depends on."""


def built(kinds: Mapping[str, Kind], edges: Edges) -> Topology:
    builder = Builder()
    for name, beneath in edges.items():
        for other in beneath:
            builder.depends(name, other)
    for name, kind in kinds.items():
        builder.add(name, kind)
    return builder.build()


def reached(edges: Edges, start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in edges[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found


def turned(edges: Edges) -> Edges:
    return {name: {other for other, beneath in edges.items() if name in beneath} for name in edges}


def steps(edges: Edges, start: str, end: str) -> int | None:
    """How many edges the shortest way has."""
    far = {start: 0}
    waiting = deque([start])
    while waiting:
        name = waiting.popleft()
        for other in edges[name] - far.keys():
            far[other] = far[name] + 1
            waiting.append(other)
    return far.get(end)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Kind], Edges]:
    size = draw(st.integers(1, 14))
    names = [f"s{number}" for number in range(size)]
    kinds: dict[str, Kind] = {name: draw(st.sampled_from(KINDS)) for name in names}
    edges: Edges = {name: set() for name in names}
    for index, name in enumerate(names[1:], start=1):
        edges[name] |= draw(st.sets(st.sampled_from(names[:index]), max_size=4))
    return kinds, edges


@given(graphs())
@settings(max_examples=examples(60), deadline=None)
def test_every_question_is_answered_as_by_walking(graph: tuple[dict[str, Kind], Edges]) -> None:
    kinds, edges = graph
    topology, back = built(kinds, edges), turned(edges)
    order = {name: index for index, name in enumerate(topology.names())}
    assert {*order} == {*kinds}
    assert len(topology) == len(kinds)
    for name in kinds:
        for answer, right in (
            (topology.dependencies(name), edges[name]),
            (topology.dependents(name), back[name]),
            (topology.causes(name), reached(edges, name)),
            (topology.blast_radius(name), reached(back, name)),
        ):
            assert list(answer) == sorted(right, key=order.__getitem__)
        assert topology.causes(name, "node") == tuple(
            other for other in topology.causes(name) if kinds[other] == "node"
        )
        for other in kinds:
            check_path(topology, back, name, other)


def check_path(topology: Topology, back: Edges, cause: str, symptom: str) -> None:
    path = topology.path(cause, symptom)
    if cause == symptom:
        assert path == (cause,)
    elif symptom not in reached(back, cause):
        assert path == ()
    else:
        assert (path[0], path[-1]) == (cause, symptom)
        assert all(after in back[before] for before, after in pairwise(path))
        assert len(path) - 1 == steps(back, cause, symptom)
        assert len(topology.seams(path)) == fewest_seams(topology, back, (cause,), symptom, len(path))


def fewest_seams(topology: Topology, back: Edges, way: tuple[str, ...], end: str, length: int) -> int:
    """Of all ways to the end that have this length."""
    if way[-1] == end:
        return len(topology.seams(way))
    if len(way) == length:
        return length
    return min(
        (fewest_seams(topology, back, (*way, other), end, length) for other in back[way[-1]]), default=length
    )


@given(graphs(), st.data())
@settings(max_examples=examples(50), deadline=None)
def test_common_causes_count_who_is_reached_and_who_is_hit(
    graph: tuple[dict[str, Kind], Edges], data: st.DataObject
) -> None:
    kinds, edges = graph
    names = sorted(kinds)
    among = data.draw(st.sets(st.sampled_from(names), min_size=1))
    symptoms = data.draw(st.sets(st.sampled_from(sorted(among)), min_size=1))
    topology, back = built(kinds, edges), turned(edges)
    shared = topology.common_causes(symptoms, among)
    radius = {name: reached(back, name) for name in names}
    needed = min(2, len(symptoms))
    assert {one.subject for one in shared} == {
        name for name in names if len(radius[name] & symptoms) >= needed
    }
    for one in shared:
        assert one.reached == len(radius[one.subject] & among)
        assert one.hit == len(radius[one.subject] & symptoms)
        assert one.symptoms == len(symptoms)
    assert [one.bans for one in shared] == sorted((one.bans for one in shared), reverse=True)


@given(graphs(), st.randoms())
@settings(max_examples=examples(50), deadline=None)
def test_the_order_of_building_does_not_matter(graph: tuple[dict[str, Kind], Edges], random: object) -> None:
    kinds, edges = graph
    names = list(kinds)
    random.shuffle(names)  # type: ignore[attr-defined]
    one = built(kinds, edges)
    other = built({name: kinds[name] for name in names}, {name: edges[name] for name in names})
    assert one.names() == other.names()
    assert [one.path(name, names[0]) for name in names] == [other.path(name, names[0]) for name in names]


def hall() -> Builder:
    """Two loops of two racks of two nodes, a leaf for each pair of nodes across the loops, one mount."""
    builder = Builder()
    builder.add("water-0", "circuit")
    builder.add("fs-0", "mount")
    builder.add("job", "run")
    for number in range(8):
        node, rack, loop, leaf = (
            f"n{number}",
            f"rack-{number // 2}",
            f"cdu-{number // 4}",
            f"leaf-{number % 4}",
        )
        for name, kind in ((node, "node"), (rack, "rack"), (loop, "loop"), (leaf, "leaf")):
            builder.add(name, kind)  # type: ignore[arg-type]
        builder.add(f"{node}.0", "gpu")
        builder.add(f"{node}/mlx5_0", "port")
        builder.add(f"job/{node}", "member")
        for name, on in (
            (loop, "water-0"),
            (rack, loop),
            (node, rack),
            (f"{node}.0", node),
            (f"{node}/mlx5_0", node),
            (f"{node}/mlx5_0", leaf),
            (f"job/{node}", f"{node}.0"),
            (f"job/{node}", f"{node}/mlx5_0"),
            (f"job/{node}", "fs-0"),
            ("job", f"job/{node}"),
        ):
            builder.depends(name, on)
    return builder


def members(*numbers: int) -> list[str]:
    return [f"job/n{number}" for number in numbers]


@pytest.mark.parametrize(
    ("late", "cause"),
    [
        ((0, 1, 2, 3), "cdu-0"),
        ((4, 5), "rack-2"),
        ((1, 5), "leaf-1"),
        ((0, 1, 2, 3, 6), "cdu-0"),
        ((0, 1, 2), "cdu-0"),
        ((0, 1, 2, 3, 4, 5, 6, 7), "water-0"),
        ((6,), "n6.0"),
    ],
)
def test_the_best_explanation_comes_first(late: tuple[int, ...], cause: str) -> None:
    topology = hall().build()
    assert cause in {
        best.subject for best in tied(topology.common_causes(members(*late), topology.names("member")))
    }


def tied(shared: tuple[Shared, ...]) -> list[Shared]:
    best = shared[0]
    return [one for one in shared if (one.bans, one.likeness) == (best.bans, best.likeness)]


def test_a_loop_stands_out_from_a_tenth_that_is_late_everywhere() -> None:
    topology = wide_cluster(64)
    loop = topology.blast_radius("cdu-0001", "member")
    everywhere = topology.names("member")[::10]
    best = topology.common_causes({*loop, *everywhere}, topology.names("member"))[0]
    assert (best.subject, best.kind, best.owner) == ("cdu-0001", "loop", "facilities")
    assert best.reached == best.hit == len(loop)


def test_a_path_takes_the_way_with_the_fewest_seams() -> None:
    topology = hall().build()
    path = topology.path("water-0", "job")
    assert path == ("water-0", "cdu-0", "rack-0", "n0", "n0.0", "job/n0", "job")
    assert topology.seams(path) == (("rack-0", "n0"), ("n0.0", "job/n0"))
    assert topology.path("leaf-2", "job") == ("leaf-2", "n2/mlx5_0", "job/n2", "job")
    assert topology.path("job", "leaf-2") == ()


def test_owners_are_a_subjects_own_then_its_kinds() -> None:
    builder = Builder({"mount": "storage-east"})
    for name, kind in (("fs-0", "mount"), ("n0", "node"), ("red", "team"), ("x", "other")):
        builder.add(name, kind)  # type: ignore[arg-type]
    builder.add("n0", "node", owner="lab")
    builder.add("n0", "node")
    topology = builder.build()
    assert [topology.owner(name) for name in ("fs-0", "n0", "red", "x")] == ["storage-east", "lab", "red", ""]
    assert {*DEFAULT_OWNERS} == {*KINDS} - {"team", "other"}


def test_a_reason_is_kept() -> None:
    builder = Builder()
    builder.add("a", "other")
    builder.add("b", "other")
    builder.depends("a", "b", why="reads its files")
    topology = builder.build()
    assert (topology.why("a", "b"), topology.why("b", "a")) == ("reads its files", "")


def test_names_are_in_the_order_people_expect() -> None:
    builder = Builder()
    for name in ("n10", "n9", "n100", "a1b2", "a1b10"):
        builder.add(name, "node")
    assert builder.build().names("node") == ("a1b2", "a1b10", "n9", "n10", "n100")
    assert in_order(["2", "10", "1"]) == ["1", "2", "10"]


def test_an_empty_topology_answers() -> None:
    topology = Builder().build()
    assert len(topology) == 0
    assert not topology.names()
    assert not topology.common_causes([], [])
    assert not topology.seam_counts()


@pytest.mark.parametrize(
    ("make", "sentence", "hint"),
    [
        (
            lambda builder: builder.add("n0", "rack"),
            "The subject 'n0' is a node and a rack.",
            "Names are unique",
        ),
        (
            lambda builder: builder.depends("n0", "rack-9"),
            "The topology does not say what these are: 'rack-9' ('n0' depends on 'rack-9').",
            "Did you mean 'rack-3'?",
        ),
        (
            lambda builder: builder.depends("water-0", "n0"),
            "The topology has a cycle: 'water-0' depends on 'n0' depends on 'rack-0' depends on 'cdu-0' "
            "depends on 'water-0'.",
            "wrong way round",
        ),
        (
            lambda builder: builder.depends("n0", "n0"),
            "The topology has a cycle: 'n0' depends on 'n0'.",
            "wrong way round",
        ),
    ],
)
def test_mistakes_name_the_culprits(make: Callable[[Builder], None], sentence: str, hint: str) -> None:
    builder = hall()

    def build() -> Topology:
        make(builder)  # or this is what is refused
        return builder.build()

    with pytest.raises(InputError) as told:
        build()
    assert told.value.sentence == sentence
    assert hint in told.value.hint


def test_of_a_long_cycle_and_many_unknown_names_only_some_are_told() -> None:
    builder = Builder()
    for number in range(50):
        builder.add(f"s{number}", "other")
        builder.depends(f"s{number}", f"s{(number + 1) % 50}")
    with pytest.raises(InputError, match=r"'s5' depends on others depends on 's0'"):
        builder.build()
    for number in range(9):
        builder.depends("s0", f"missing-{number}")
    with pytest.raises(InputError, match="and 6 more"):
        builder.build()


def test_a_question_about_nobody_is_refused_with_a_hint() -> None:
    topology = hall().build()
    assert "n9" not in topology
    for ask in (topology.kind, topology.owner, topology.causes, lambda name: topology.path("job", name)):
        with pytest.raises(InputError, match=r"no subject 'rack-9'") as told:
            ask("rack-9")
        assert told.value.hint.startswith("Did you mean 'rack-")
    with pytest.raises(InputError, match="no subject 'zebra'"):
        topology.common_causes(["zebra"], topology.names("member"))


def test_seams_are_counted_by_what_is_on_either_side() -> None:
    seams = {
        (seam.cause_kind, seam.symptom_kind): (seam.cause_owner, seam.symptom_owner, seam.count)
        for seam in hall().build().seam_counts()
    }
    assert seams["rack", "node"] == ("facilities", "hardware", 8)
    assert seams["mount", "member"] == ("storage", "training", 8)
    assert ("loop", "rack") not in seams


def wide_cluster(racks: int) -> Topology:
    """Racks of 4 nodes of 8 GPUs, 8 racks to a loop, 16 nodes to a leaf; one run on all of it."""
    builder = Builder()
    builder.add("job", "run")
    for spine in range(4):
        builder.add(f"spine-{spine}", "spine")
    for number in range(4 * racks):
        node, rack, loop = f"n{number:05}", f"rack-{number // 4:04}", f"cdu-{number // 32:04}"
        leaf, mount, member = f"leaf-{number // 16:04}", f"fs-{number // 256:04}", f"job/n{number:05}"
        builder.add(node, "node")
        builder.add(member, "member")
        builder.add(rack, "rack")
        builder.add(loop, "loop")
        builder.add(leaf, "leaf")
        builder.add(mount, "mount")
        builder.depends(node, rack)
        builder.depends(rack, loop)
        builder.depends(member, mount)
        builder.depends("job", member)
        for spine in range(4):
            builder.depends(leaf, f"spine-{spine}")
        for gpu in range(8):
            for name, kind in ((f"{node}.{gpu}", "gpu"), (f"{node}/mlx5_{gpu}", "port")):
                builder.add(name, kind)  # type: ignore[arg-type]
                builder.depends(name, node)
                builder.depends(member, name)
            builder.depends(f"{node}/mlx5_{gpu}", leaf)
    return builder.build()


@pytest.fixture(scope="module")
def large() -> tuple[Topology, float]:
    begun = time.process_time()
    topology = wide_cluster(3125)
    return topology, time.process_time() - begun


@pytest.mark.soak
def test_a_hundred_thousand_gpus_are_built_in_seconds(large: tuple[Topology, float]) -> None:
    topology, took_s = large
    assert len(topology.names("gpu")) == 100_000
    assert len(topology) > 225_000
    assert took_s < BUILD_S_MAX


@pytest.mark.soak
def test_a_hundred_thousand_gpus_answer_at_once(large: tuple[Topology, float]) -> None:
    topology, _ = large
    all_members = topology.names("member")
    late = all_members[:1000]
    questions: tuple[Callable[[], object], ...] = (
        lambda: topology.blast_radius("cdu-0007"),
        lambda: topology.common_causes(late, all_members),
        lambda: topology.path("cdu-0007", "job"),
        lambda: topology.path("spine-0", all_members[-1]),
    )
    for ask in questions:
        begun = time.process_time()
        assert ask()
        assert time.process_time() - begun < QUERY_S_MAX
