"""What is suspicious about a topology."""

import pytest

from holdfast.topology import check
from holdfast.topology.file import example, read

COMPLETE = """
nodes:
  n[1-4]: {gpus: 2, ports: p0}
racks:
  r1: all
loops:
  c1: all
leaves:
  l1: all
mounts:
  fs: all
runs:
  job: {nodes: 'n[1-4]'}
"""


def doubts(text: str) -> list[str]:
    page = read(text)
    return [f"{doubt.kind}: {doubt.text}" for doubt in check.doubts(page.described(page.survey))]


def test_a_complete_topology_has_none() -> None:
    assert doubts(COMPLETE) == []
    assert doubts(example()) == []


@pytest.mark.parametrize(
    ("was", "now", "doubt"),
    [
        ("r1: all", "r1: n[1-3]", "unplaced: n4 stands in no rack."),
        ("l1: all", "l1: n[1-2]", "unplaced: n[3-4] are on no leaf switch."),
        ("l1: all", "l1: n[1-3]/p0", "unplaced: n4 is on no leaf switch."),
        ("fs: all", "fs: n1", "unplaced: n[2-4] have no mount."),
        (
            "mounts:\n  fs: all\n",
            "",
            "unplaced: Nothing is known about any mount: a cause there cannot be found.",
        ),
        ("'n[1-4]'", "'n[1-2]'", "unused: No run and no pool depends on 4 GPUs, those of n[3-4]."),
        ("runs:\n  job: {nodes: 'n[1-4]'}\n", "", "unused: There are no runs, so no member can be late."),
        ("racks:", "subjects:\n  x: {}\nracks:", "ownerless: x has no owner."),
        ("r1: all", "r[1-2]: 3 each", "grouping: line 5: 3 each does not come out even: r2 has 1 of 3."),
    ],
)
def test_what_is_missing_is_told(was: str, now: str, doubt: str) -> None:
    assert COMPLETE.count(was) == 1
    assert doubt in doubts(COMPLETE.replace(was, now))


def test_nodes_without_what_others_have() -> None:
    text = COMPLETE.replace("racks:", "  n9:\nracks:")
    assert "missing-hardware: n9 has no GPUs." in doubts(text)
    assert "missing-hardware: n9 has no ports." in doubts(text)
    assert "missing-hardware: There are no nodes." in doubts("")
