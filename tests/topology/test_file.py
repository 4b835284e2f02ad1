"""The topology file: what a page of YAML stands for, its mistakes with their lines, its schema, its speed."""

import time
from contextlib import suppress

import msgspec
import pytest
from hypothesis import example as case
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.errors import InputError
from holdfast.topology import document
from holdfast.topology.draft import draft
from holdfast.topology.file import Described, example, read, schema
from holdfast.topology.file_format import TopologyFile
from holdfast.topology.survey import Survey

LOAD_S_MAX = 30.0
"""A ceiling for a busy machine; docs/topology.md has what an idle one takes."""


def described(text: str) -> Described:
    page = read(text)
    return page.described(page.survey)


def test_the_example_is_what_it_says() -> None:
    cluster = described(example())
    topology = cluster.topology
    assert {kind: len(topology.names(kind)) for kind in ("node", "gpu", "port", "rack", "loop", "leaf")} == {
        "node": 64,
        "gpu": 512,
        "port": 512,
        "rack": 16,
        "loop": 2,
        "leaf": 4,
    }
    assert topology.dependencies("n00017") == ("rack-0004",)
    assert topology.dependencies("rack-0004") == ("cdu-0000", "shelf-0004")
    assert topology.dependencies("n00017/mlx5_3") == ("leaf-0001", "n00017")
    assert topology.dependencies("leaf-0001") == tuple(f"spine-000{spine}" for spine in range(4))
    member = topology.dependencies("pretrain-70b/n00017")
    assert {topology.kind(name) for name in member} == {"gpu", "port", "mount"}
    assert topology.dependencies("release-2") == ("pretrain-70b",)
    assert topology.owner("rack-0003") == "colo-east"
    assert topology.owner("rack-0004") == "facilities"
    assert topology.owner("fs-0000") == "storage-east"
    assert cluster.doubts == ()


def test_a_draft_is_read_though_nobody_told_of_a_node() -> None:
    page = read(draft(Survey("empty")))
    assert page.described(page.survey).topology.names("node") == ()


def test_a_cause_reaches_the_milestone() -> None:
    topology = described(example()).topology
    path = topology.path("water-0", "release-2")
    assert [topology.kind(name) for name in path] == [
        "circuit",
        "loop",
        "rack",
        "node",
        "gpu",
        "member",
        "run",
        "milestone",
    ]


def test_what_moves_between_pools_goes_over_the_ports_of_both_ends() -> None:
    topology = described(example()).topology
    link = topology.dependencies("n00056>n00060")
    assert {*link} == {f"{node}/mlx5_{port}" for node in ("n00056", "n00060") for port in range(8)}
    assert "decode" in topology.dependents("n00056>n00060")
    assert "rollout-rl" in topology.blast_radius("spine-0001", "run")
    assert "decode" in topology.dependents("prefill")


def test_maintenance_is_kept() -> None:
    (planned,) = described(example()).maintenance
    assert planned.subjects == ("cdu-0001",)
    assert planned.to_ns - planned.from_ns == 4 * 3600 * 10**9
    assert planned.reason == "filter change"


NODES = "nodes:\n  n[1-6]: {gpus: 1, ports: 'p[0-1]'}\n"


@pytest.mark.parametrize(
    ("groups", "name", "on"),
    [
        ("racks:\n  r[1-3]: 2 each", "n3", ["r2"]),
        ("racks:\n  r1: n[1-5]\n  r2: n6", "n6", ["r2"]),
        ("racks:\n  r[1-2]: 2 each\n  odd: n[1-2]", "n3", ["r1"]),
        ("racks:\n  r1: 2 each\n  s1: 4 each", "n3", ["s1"]),
        ("racks:\n  r1: 3 each of n[4-6]\n  s1: 3 each of n[1-3]", "n4", ["r1"]),
        ("racks:\n  r1: [n1, 'n[3-4]']", "n4", ["r1"]),
        ("loops:\n  c[1-2]: 3 each", "n4", ["c2"]),
        ("loops:\n  c[1-2]: all", "n4", ["c1", "c2"]),
        ("racks:\n  r[1-3]: 2 each\nloops:\n  c1: r[1-2]\n  c2: r3", "r3", ["c2"]),
        ("leaves:\n  l[1-2]: 3 each", "n4/p1", ["l2", "n4"]),
        ("leaves:\n  l[0-5]: 2 each by rail", "n4/p1", ["l3", "n4"]),
        ("leaves:\n  l0: n[1-6]/p0\n  l1: n[1-6]/p1", "n4/p1", ["l1", "n4"]),
        ("leaves:\n  l0: all\n  l1: n4/p1", "n4/p1", ["l1", "n4"]),
        ("runs:\n  job: {members: {'m[0-1]': 'n[4-5]'}}", "job/m1", ["n5.0", "n5/p0", "n5/p1"]),
        ("runs:\n  job: {members: {'m[0-1]': 'n4'}}", "job/m1", ["n4.0", "n4/p0", "n4/p1"]),
        (
            "subjects:\n  pump: {kind: other, why: it is fed}\n  n1: {kind: node, depends_on: pump}",
            "n1",
            ["pump"],
        ),
    ],
)
def test_groups_say_who_is_on_what(groups: str, name: str, on: list[str]) -> None:
    cluster = described(NODES + groups)
    assert sorted(cluster.topology.dependencies(name)) == sorted(on)
    assert cluster.doubts == ()


@pytest.mark.parametrize(
    ("groups", "doubt"),
    [
        ("racks:\n  r[1-2]: 4 each", "line 4: 4 each does not come out even: r2 has 2 of 4."),
        ("racks:\n  r[1-4]: 3 each", "line 4: 3 each does not come out even: r[3-4] have nothing."),
        ("racks:\n  r[1-3]: 4 each", "4 each does not come out even: r2 has 2 of 4 and r3 has nothing."),
        ("racks:\n  r1: 2 each of n[1-3]", "line 4: n3 is left over."),
        ("leaves:\n  l[0-3]: 4 each by rail", "4 each does not come out even: l[2-3] have 2 of 4."),
        ("leaves:\n  l[0-6]: 2 each by rail", "2 each does not come out even: l6 has nothing."),
    ],
)
def test_groups_that_do_not_come_out_even_are_told(groups: str, doubt: str) -> None:
    (told,) = described(NODES + groups).doubts
    assert told.kind == "grouping"
    assert told.text.endswith(doubt)


MISTAKES = [
    ("nodes: [", "line 2: This is not YAML", "put host lists in quotes"),
    ("runs:\n  a: {nodes: n[1-2]}", "line 2: This is not YAML", "put host lists in quotes"),
    ("- 1", "not a table of sections", "--example"),
    ("a: 1\na: 2", "line 2: `a` occurs twice", "Leave one"),
    ("? [a]\n: b", "line 1: A name must be text", "quotes"),
    ("node:\n  n1:", "line 1: A topology has no key `node`", "Did you mean `nodes`?"),
    ("nodes:\n  n1:\n    gpu: 8", "line 3: `nodes.n1` has no key `gpu`", "Did you mean `gpus`?"),
    ("nodes:\n  n1:\n    gpus: eight", "line 3: `nodes.n1.gpus` is text, and must be a whole number", ""),
    ("nodes:\n  n[1-2]: {gpus: 8}\n  n[2-3]: {gpus: 4}", "line 3: 'n2' occurs twice", "Leave one out."),
    ("version: !!int x", "line 1: This cannot be read as int", "quotes"),
    ("version: !!int ''", "line 1: This cannot be read as int", "quotes"),
    ("version: !!bool x", "line 1: This cannot be read as bool", "quotes"),
    (f"version: {'9' * 5000}", "line 1: This cannot be read as int", "quotes"),
    ("racks: [a]", "line 1: `racks` is a list, and must be a table", ""),
    (f"nodes:\n  n1:\nracks:\n  r: {'9' * 5000} each", "is not a list of names", "`4 each`"),
    (f"nodes:\n  n1:\nracks:\n  r: n[{'9' * 5000}]", "is not a list of names", "`4 each`"),
    (
        "nodes:\n  n[0-1999]:\npools:\n  p: {engines: 'n[0-999]'}\n"
        "  d: {engines: 'n[1000-1999]', receives_from: p}",
        "From engines of 'p' to those of 'd' there are more than 500,000 links",
        "smaller pools",
    ),
    ("nodes: 7", "line 1: `nodes` is a whole number, and must be a table", ""),
    ("nodes:\n  n1: {gpus: -1}", "line 2: `nodes.n1.gpus` is not as it must be: expected `int` >= 0", ""),
    ("version: 2", "line 1: `version` is not as it must be", ""),
    ("racks:\n  r1: 5", "line 2: `racks.r1` is a whole number, and must be text or a list", "quotes"),
    ("racks:\n  r1: n7", "line 2: 'n7' is not described", ""),
    ("nodes:\n  n[01-04]:\nracks:\n  r1: n05", "line 4: 'n05' is not described", "Did you mean 'n0"),
    ("nodes:\n  n[1-4]:\nracks:\n  r1: four each", "line 4: 'four each' is not a list of names", "`4 each`"),
    ("nodes:\n  n[1-:", "line 2: 'n[1-' is not a list of names", "n[00-15,20]"),
    ("nodes:\n  n1:\nracks:\n  n1: all", "line 4: 'n1' is a node and a rack", "unique"),
    (
        "nodes:\n  n1:\nleaves:\n  l1: 1 each by rail",
        "line 4: Not all nodes have equally many ports",
        "of n[",
    ),
    ("runs:\n  a: {}", "line 2: The run 'a' must have one of partition, nodes and members", "ways"),
    ("runs:\n  a:\n    partition: x", "line 3: There is no partition 'x'", "Known are: none."),
    (NODES + "runs:\n  a: {members: {'m[0-2]': 'n[1-2]'}}", "are 3 members, and 'n[1-2]' are 2 nodes", ""),
    ("pools:\n  p: {}", "line 2: `pools.p` lacks `engines`", ""),
    ("milestones:\n  m: q", "line 2: 'q' is not described", ""),
    ("subjects:\n  x: {kind: dog}", "line 2: `subjects.x.kind` is not as it must be", "Kinds are circuit,"),
    ("subjects:\n  x: {depends_on: y}", "does not say what these are: 'y' ('x' depends on 'y')", ""),
    ("subjects:\n  x: {depends_on: y}\n  y: {depends_on: x}", "has a cycle: 'x' depends on 'y'", ""),
    ("owners:\n  n2: x", "Nothing in the topology is called 'n2'", "rack-*"),
    ("owners:\n  r-*: x", "Nothing in the topology is called 'r-*'", "rack-*"),
    ("maintenance:\n  - subjcts: n1", "line 2: `maintenance.0` has no key `subjcts`", "`subjects`"),
    ("maintenance:\n  - {subjects: n1, from: now, to: never}", "line 2: Nothing in the topology", ""),
    (
        "nodes:\n  n1:\nmaintenance:\n  - {subjects: n1, from: now, to: never}",
        "line 4: 'now' is not a time",
        "2026-01-31T12:00:00Z",
    ),
    (
        "nodes:\n  n:\nmaintenance:\n  - {subjects: n, from: 2026-01-02T00:00:00Z, to: 2026-01-01T06:00:00Z}",
        "line 4: The maintenance ends before it begins",
        "",
    ),
    ("&a [*a]", "No topology is as large or as deep", ""),
]


@pytest.mark.parametrize(("text", "sentence", "hint"), MISTAKES, ids=[text[:40] for text, _, _ in MISTAKES])
def test_a_mistake_is_one_sentence_with_its_line_and_a_hint(text: str, sentence: str, hint: str) -> None:
    with pytest.raises(InputError) as told:
        described(text)
    assert sentence in told.value.sentence
    assert "\n" not in told.value.sentence
    assert told.value.hint
    assert hint in told.value.hint


@pytest.mark.slow
def test_a_short_text_cannot_stand_for_a_huge_one() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(InputError, match="No topology is as large"):
        document.read("\n".join(rows))


@given(st.text(alphabet="nra[]{}:-,0129 \n'\"&*!?|>#%each", max_size=120))
@case("a: !!python/object:os.system x")
@case("a: 2026-01-01\nb: 0x_")
@settings(max_examples=examples(300), deadline=None)
def test_any_text_is_a_topology_or_a_mistake(text: str) -> None:
    with suppress(InputError):
        described(text)


def test_dates_and_padded_numbers_stay_text() -> None:
    assert document.read("a: 2026-01-01\n0017: yes please\nb: '08'").data == {
        "a": "2026-01-01",
        "0017": "yes please",
        "b": "08",
    }


def test_the_schema_is_that_of_the_code() -> None:
    assert msgspec.json.decode(schema()) == msgspec.json.schema(TopologyFile)


def hundred_thousand() -> str:
    text = example()
    for small, large in (
        ("n[00000-00063]", "n[00000-12499]"),
        ("rack-[0000-0015]", "rack-[0000-3124]"),
        ("shelf-[0000-0015]", "shelf-[0000-3124]"),
        ("cdu-[0000-0001]", "cdu-[0000-0390]"),
        ("leaf-[0000-0003]", "leaf-[0000-0781]"),
        ("n[00000-00055]", "n[00000-12399]"),
        ("fs-0000: all", "fs-[0000-0048]: 256 each"),
    ):
        assert text.count(small) == 1
        text = text.replace(small, large)
    return text


@pytest.mark.soak
def test_a_hundred_thousand_gpus_load_in_seconds() -> None:
    begun = time.process_time()
    topology = described(hundred_thousand()).topology
    assert time.process_time() - begun < LOAD_S_MAX
    assert len(topology.names("gpu")) == 100_000
    assert len(topology.blast_radius("cdu-0003", "member")) == 32
