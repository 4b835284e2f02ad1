"""Packs on real filesystems: with and without a way past the page cache, for all sizes of chunks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.train.pack_file import ALIGNED_BYTES, BUFFER_BYTES, PackFile, ReadBack

SIZES = [
    [],
    [1],
    [ALIGNED_BYTES],
    [ALIGNED_BYTES - 1, 2, ALIGNED_BYTES],
    [BUFFER_BYTES],
    [BUFFER_BYTES - 3, 7, 2 * BUFFER_BYTES + 5],
]
SHARED_MEMORY = Path("/dev/shm")
"""It has no way past the page cache, or only pretends to."""


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("is_shared_memory", [False, True])
def test_what_is_written_is_there(tmp_path: Path, sizes: list[int], is_shared_memory: bool) -> None:
    if is_shared_memory and not SHARED_MEMORY.is_dir():
        pytest.skip("this system has no /dev/shm")
    path = (SHARED_MEMORY / f"holdfast-{os.getpid()}.pack") if is_shared_memory else tmp_path / "new.pack"
    chunks = [os.urandom(size) for size in sizes]
    try:
        PackFile(path).write([memoryview(chunk) for chunk in chunks])
        assert path.read_bytes() == b"".join(chunks)
        with pytest.raises(FileExistsError):
            PackFile(path)
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("at", [0, ALIGNED_BYTES + 1, BUFFER_BYTES + 1, 2 * BUFFER_BYTES - 1])
def test_what_the_disk_gives_back_is_compared(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte is changed on the disk after all were written."""
    path, sync = tmp_path / "new.pack", os.fsync

    def changes(descriptor: int) -> None:
        sync(descriptor)
        with path.open("r+b") as other:
            other.seek(at)
            flipped = other.read(1)[0] ^ 1
            other.seek(at)
            other.write(bytes([flipped]))
            other.flush()
            sync(other.fileno())

    monkeypatch.setattr(os, "fsync", changes)
    with pytest.raises(ReadBack, match="other bytes"):
        PackFile(path).write([memoryview(os.urandom(BUFFER_BYTES)) for _ in range(2)])


def test_a_file_that_is_given_up_is_closed(tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    file = PackFile(tmp_path / "new.pack")
    file.close()
    file.close()
    assert set(Path("/proc/self/fd").iterdir()) == before


WITHOUT_MEMORY = """
import os, resource, sys
from pathlib import Path
from holdfast.train.pack_file import PackFile
before = os.listdir("/proc/self/fd")
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
try:
    PackFile(Path(sys.argv[1]))
except (OSError, MemoryError):
    print("refused", os.listdir("/proc/self/fd") == before)
"""


def test_a_file_without_memory_for_it_is_closed(tmp_path: Path) -> None:
    """In a process of its own, so that no other test runs out of memory."""
    command = [sys.executable, "-c", WITHOUT_MEMORY, str(tmp_path / "new.pack")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "refused True\n"
