"""What clears a node of what it was drained for."""

import pytest

from holdfast.detect.suspects import PARTS, SuspectPart, unproven, wanted
from holdfast.diagnose.mechanisms import MECHANISMS, suspected


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_cleared_by_figures_of_its_own(part: SuspectPart) -> None:
    names = [name.replace("*", "0") for name in wanted(part)]
    assert len(set(names)) == len(names) > 0
    assert unproven(part, dict.fromkeys(names, True)) == ()
    assert unproven(part, dict.fromkeys(names, False)) == unproven(part, {}) == tuple(names)


def test_each_gpu_has_to_be_cleared() -> None:
    found = {"gpu0.to_device": True, "gpu0.to_host": True, "gpu11.to_device": True}
    assert unproven("pcie", found) == ("gpu11.to_host",)


def test_a_mechanism_says_which_part_it_is_about() -> None:
    assert suspected("nvlink") == "nvlink"
    assert suspected("memory-errors") == "gpu-memory"
    assert suspected("link-errors") == "fabric"
    assert suspected("unknown") == suspected("a newer one") == "node"
    assert {one.suspect for one in MECHANISMS} == set(PARTS)
