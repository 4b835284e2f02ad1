"""Lists a directory's checkpoints and what is wrong with them. Needs no torch, so that programs that only
look at checkpoints do not load it.

Each rank of a replica keeps its part in a folder of its own, `shard-1-of-4`; a rank that has everything keeps
it in the directory itself.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.record.events import CheckpointSaved
from holdfast.record.store import Selection, Store
from holdfast.run.mesh import RANKS_MAX
from holdfast.train.chunks import Unsound
from holdfast.train.manifest_file import check_chunks, check_packs, read_manifest

WHOLE = re.compile(r"step-([0-9]{12}|[1-9][0-9]{12,})\.checkpoint")  # exactly one name per step
_FOLDER = re.compile(r"shard-(0|[1-9][0-9]{0,3})-of-([1-9][0-9]{0,3})")
ACCESS_HINT = "Grant this user read permission on the directory, and check that its filesystem is mounted."
VERIFY_HINT = "`holdfast checkpoint verify {}` reads all of them and says which are sound."


class KeptStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step as this many ranks kept it. paths: where their parts belong. there: for each path, whether it
    exists.
    """

    step: int
    ranks: int
    paths: tuple[Path, ...]
    there: tuple[bool, ...]

    @property
    def is_complete(self) -> bool:
        return all(self.there)

    @property
    def missing(self) -> str:
        """The missing parts, in words; empty if there are none."""
        rails = [str(rail) for rail, there in enumerate(self.there) if not there]
        return f"the parts of ranks {', '.join(rails)} of {self.ranks} are missing" if rails else ""

    @property
    def place(self) -> str:
        """For messages: the file, or a pattern that matches all parts."""
        first = self.paths[0]
        return str(
            first if self.ranks == 1 else first.parent.with_name(f"shard-*-of-{self.ranks}") / first.name
        )


def root_of(path: Path) -> Path:
    """The directory of checkpoints that a path leads to. The path may be a run's directory, that of its
    checkpoints, or a file in it.
    """
    directory = path if path.is_dir() else path.parent
    inner = directory / "checkpoints"
    return inner if inner.is_dir() else directory


def saved_directory(store: Store, run: str) -> Path | None:
    """The directory of the run's newest checkpoint by the record, if this machine has that directory."""
    saved = store.select(Selection(run=run, kinds=("checkpoint.saved",)))
    folders = [Path(event.place).parent for event in saved if isinstance(event, CheckpointSaved)]
    if not folders:
        return None
    folder = folders[-1].parent if _FOLDER.fullmatch(folders[-1].name) else folders[-1]
    return folder if folder.is_dir() else None


def folder_of(directory: Path, rail: int, ranks: int) -> Path:
    """The folder in which a rank keeps its parts."""
    return directory if ranks == 1 else directory / f"shard-{rail}-of-{ranks}"


def manifest_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:012d}.checkpoint"


def kept_steps(directory: Path) -> list[KeptStep]:
    """All checkpoints listed in a run's directory, unverified, oldest first. Raises `OSError`."""
    counts = {1} | {int(match[2]) for match in found_in(directory, _FOLDER).values()}
    found = []
    for ranks in sorted(counts):
        if ranks <= RANKS_MAX:
            folders = [folder_of(directory, rail, ranks) for rail in range(ranks)]
            steps = [steps_in_folder(folder) for folder in folders]
            found += [
                KeptStep(
                    step=step,
                    ranks=ranks,
                    paths=tuple(manifest_path(folder, step) for folder in folders),
                    there=tuple(step in of for of in steps),
                )
                for step in set[int]().union(*steps)
            ]
    return sorted(found, key=lambda kept: (kept.step, kept.ranks))


def steps_in_folder(folder: Path) -> set[int]:
    """The steps that have manifests. Raises `OSError`."""
    return {int(match[1]) for match in found_in(folder, WHOLE).values()}


def found_in(directory: Path, name: re.Pattern[str]) -> dict[Path, re.Match[str]]:
    """The entries of a directory whose names match."""
    try:
        return {path: match for path in directory.iterdir() if (match := name.fullmatch(path.name))}
    except FileNotFoundError:
        if any(path.is_symlink() and not path.exists() for path in (directory, *directory.parents)):
            raise  # behind a broken link there may still be checkpoints
        return {}  # nothing was saved yet


def fault_of(kept: KeptStep, *, is_thorough: bool = False) -> str:
    """Why a run cannot resume from it. Empty if it can, judging by its manifests and the sizes of its packs.
    is_thorough: read and compare every chunk.
    """
    if kept.missing:
        return kept.missing
    histories = set()
    for path in kept.paths:
        try:
            manifest = read_manifest(path, kept.step)
            (check_chunks if is_thorough else check_packs)(path, manifest)
        except (OSError, Unsound) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            return why if kept.ranks == 1 else f"in {path.parent.name} {why}"
        histories.add(manifest.history)
    if len(histories) > 1:
        return f"its parts come from {len(histories)} attempts at this step"
    return ""


def usable_steps(every: Sequence[KeptStep], keep: int) -> list[int]:
    """The newest steps that a run can resume from, at most `keep`, oldest first; all their
    chunks were read.
    """
    found: set[int] = set()
    for kept in reversed(every):
        if len(found) < keep and kept.step not in found and not fault_of(kept, is_thorough=True):
            found.add(kept.step)
    return sorted(found)
