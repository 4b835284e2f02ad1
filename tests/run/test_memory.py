"""Memory that outlives workers: who is handed it, and that nothing is left of it."""

import os
from pathlib import Path

from holdfast.run.memory import NAME, VARIABLE, HeldMemory, given


def open_files() -> list[str]:
    links = list(Path("/proc/self/fd").iterdir())
    return [name for link in links if link.is_symlink() and NAME in (name := str(link.readlink()))]


def test_a_worker_finds_what_its_agent_holds_by_slot() -> None:
    held = HeldMemory(3)
    assert given({VARIABLE: held.told}) == held.slots
    assert [len(of) for of in held.slots] == [2, 2, 2]
    assert len(open_files()) == 6
    held.close()
    assert open_files() == []
    assert HeldMemory(0).told == ""


def test_what_was_lost_on_the_way_is_not_taken_for_it() -> None:
    held = HeldMemory(1)
    reading, writing = os.pipe()
    for told in ("", "x", "1,", "999999,999998", f"{held.told},{reading}", f"{reading},{writing}"):
        assert given({VARIABLE: told}) == (), told
    assert given({}) == ()
    held.close()
    for descriptor in (reading, writing):
        os.close(descriptor)
