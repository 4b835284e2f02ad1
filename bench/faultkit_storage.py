"""Damages checkpoints between two starts of a run, for `holdfast bench faultkit`: the kit's storage faults.

The kit ships no code for them. Its example flips, cuts and removes a file of its own, and reads a directory
as if it were a file. Here the file is the largest one of the newest checkpoint; if each rank has one, it is
that of worker 2.
"""

from pathlib import Path

from bench.faultkit_cases import TARGET, Damage
from holdfast.train.chunks import FOLDER
from holdfast.train.kept import manifest_path
from holdfast.train.manifest_file import read_manifest

HOLDFAST_CHECKPOINTS = "checkpoints"
GEMINI = "gemini"
"""The folders of a run's checkpoints."""
UNREADABLE = Path("/proc/self/mem")
"""Nothing is mapped at its beginning, so the kernel answers reads there with EIO, like a failing disk."""


def holdfast_file(folder: Path, step: int) -> Path | None:
    """The largest file of the checkpoint of this step; None if that is not there."""
    manifest = manifest_path(folder / HOLDFAST_CHECKPOINTS, step)
    if not manifest.exists():
        return None
    packs = [manifest.parent / FOLDER / name for name, _ in read_manifest(manifest).packs]
    return max((manifest, *packs), key=lambda file: file.stat().st_size)


def gemini_file(folder: Path, step: int) -> Path | None:
    """The file of worker 2 of this step; None if not all workers have theirs there."""
    ranks = {file.stem: file for file in (folder / GEMINI).glob(f"runs/*/*/step-{step}/rank-*.pt")}
    return ranks[f"rank-{TARGET}"] if len(ranks) > TARGET + 1 else None


def damage(file: Path, how: Damage) -> None:
    """Damage the file permanently."""
    match how:
        case "none":
            pass
        case "flip":
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 0xFF
            file.write_bytes(content)
        case "truncate":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        case "remove":
            file.unlink()
        case "unreadable":
            file.unlink()
            file.symlink_to(UNREADABLE)
