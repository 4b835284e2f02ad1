"""Takes all but a little of its node's memory, as a leak does.

It gives memory back when the node's other processes need more, so that the kernel need not kill any of them.
If it had to, it would kill this one.
"""

import argparse
import mmap
import time
from pathlib import Path

import cgroups

CHUNK_BYTES = 4 << 20
POLL_S = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the memory of one node of the testbed.")
    parser.add_argument("--group", required=True, help="the control group of the node's processes")
    parser.add_argument("--room", type=int, required=True, help="bytes to leave")
    given = parser.parse_args()
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    limits = cgroups.limits(given.group)
    held: list[mmap.mmap] = []
    while True:
        room = limits.memory().available_bytes
        if room >= given.room + CHUNK_BYTES:
            held.append(_filled())
        elif room < given.room and held:
            held.pop().close()
        else:
            time.sleep(POLL_S)


def _filled() -> mmap.mmap:
    chunk = mmap.mmap(-1, CHUNK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, CHUNK_BYTES, mmap.PAGESIZE):
        chunk[page] = 1
    return chunk


if __name__ == "__main__":
    main()
