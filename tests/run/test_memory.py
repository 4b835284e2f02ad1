"""Memory that outlives workers: which processes get it, and that nothing is left of it."""

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.run.memory import NAME, VARIABLE, HeldMemory, given, memory_left_bytes


def open_files() -> list[str]:
    links = list(Path("/proc/self/fd").iterdir())
    return [name for link in links if link.is_symlink() and NAME in (name := str(link.readlink()))]


def test_a_worker_finds_what_its_agent_holds_by_slot() -> None:
    before = len(open_files())  # other tests of this process may have some
    held = HeldMemory(3)
    assert given({VARIABLE: held.told}) == held.slots
    assert [len(of) for of in held.slots] == [2, 2, 2]
    assert len(open_files()) == before + 6
    held.close()
    assert len(open_files()) == before
    assert HeldMemory(0).told == ""


def test_what_a_worker_starts_does_not_get_it() -> None:
    held = HeldMemory(1)
    for descriptor in held.descriptors:
        os.set_inheritable(descriptor, True)  # as it is handed over
    assert given({VARIABLE: f"{held.told},"}) == held.slots
    listed = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False, check=True
    )
    assert listed.stdout
    assert NAME not in listed.stdout
    held.close()


def test_what_was_lost_on_the_way_is_not_taken_for_it() -> None:
    held = HeldMemory(1)
    reading, writing = os.pipe()
    for told in ("", "x", "1,", "999999,999998", f"{held.told},{reading}", f"{reading},{writing}"):
        assert given({VARIABLE: told}) == (), told
    assert given({}) == ()
    held.close()
    for descriptor in (reading, writing):
        os.close(descriptor)


GROUP = "sys/fs/cgroup"
UNIFIED = {
    "proc/self/cgroup": "0::/pod/main\n",
    f"{GROUP}/pod/memory.max": "5000000\n",
    f"{GROUP}/pod/memory.current": "3000000\n",
    f"{GROUP}/pod/memory.stat": "anon 1\ninactive_file 500000\n",
    f"{GROUP}/pod/main/memory.max": "max\n",
    f"{GROUP}/pod/main/memory.current": "3000000\n",
    f"{GROUP}/pod/main/memory.stat": "inactive_file 0\n",
}
SEPARATE = {
    "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/\n0::/\n",
    f"{GROUP}/memory/memory.limit_in_bytes": "9223372036854771712\n",
    f"{GROUP}/memory/memory.usage_in_bytes": "7000000\n",
    f"{GROUP}/memory/memory.stat": "total_inactive_file 0\n",
    f"{GROUP}/memory/a/b/memory.limit_in_bytes": "4000000\n",
    f"{GROUP}/memory/a/b/memory.usage_in_bytes": "1000000\n",
    f"{GROUP}/memory/a/b/memory.stat": "inactive_file 7\ntotal_inactive_file 200000\n",
}


@pytest.mark.parametrize(
    ("files", "left_bytes"),
    [
        ({}, 8000 << 10),
        (UNIFIED, 2_500_000),
        (UNIFIED | {f"{GROUP}/pod/memory.max": "2000000"}, 0),
        (UNIFIED | {f"{GROUP}/pod/memory.max": "20000000"}, 8000 << 10),
        (UNIFIED | {"proc/self/cgroup": "0::/elsewhere\nx\n"}, 8000 << 10),
        (SEPARATE, 3_200_000),
    ],
)
def test_what_is_left_is_what_the_tightest_group_has(
    tmp_path: Path, files: dict[str, str], left_bytes: int
) -> None:
    for name, text in ({"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:  8000 kB\n"} | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")
    assert memory_left_bytes(tmp_path) == left_bytes


def test_this_machine_has_memory_left() -> None:
    assert memory_left_bytes() > 0
