"""Places that checkpoints are copied to and fetched from: a directory, or a prefix in object storage.

A place holds objects under keys; each write is atomic. The keys are laid out like a run's directory:
manifests, and packs in folders of chunks. Besides these there are notes of writers (`writing/TOKEN`) and of
the run that the place belongs to. Needs no torch.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.record.files import sync
from holdfast.train.chunks import FOLDER, Lock, locked, plain_file, remove_packs
from holdfast.train.pack_file import PackFile, ReadBack
from holdfast.train.whole_file import is_left_behind, part_of

WRITING = "writing"
"""The folder of the writers' notes."""
OWNER = "run.json"
"""The note of the run that a place belongs to."""
PART = r"(?P<part>(?:shard-(?:0|[1-9][0-9]{0,3})-of-[1-9][0-9]{0,3}/)?)"
"""The folder of a rank's part; empty for a whole state."""
_KEY = re.compile(
    rf"{PART}(?:step-(?:[0-9]{{12}}|[1-9][0-9]{{12,}})\.checkpoint|{FOLDER}/[0-9a-f]{{16}}-[0-9]{{6}}\.pack)"
    rf"|{WRITING}/[0-9a-f]{{16}}"
)
_LEFT = re.compile(r"\.(step-[0-9]{12,}|[0-9a-f]{16}|run\.json)\.[0-9a-f]{16}\.part")
PLACE_HINT = "Name a directory, or s3://BUCKET/PREFIX."


class StoredObject(NamedTuple):
    """An object in a listing. version: changes with its content. modified_s: by the clock of the place."""

    size_bytes: int
    modified_s: float
    version: str


class StorageTrouble(OSError):
    """A place cannot be used at the moment, or at all. is_mistake: not at all, for example because it does
    not exist. is_denied: it denies this user access.
    """

    def __init__(self, why: str, *, is_mistake: bool = False, is_denied: bool = False) -> None:
        super().__init__(None, why)
        self.is_mistake = is_mistake
        self.is_denied = is_denied


class Storage(Protocol):
    """A store of objects. Every method may raise `OSError`; a missing object raises `FileNotFoundError`."""

    @property
    def name(self) -> str:
        """The name for messages."""

    def listed(self, folder: str = "") -> dict[str, StoredObject]:
        """All objects of checkpoints by key, or those of a folder. Earlier writes are visible."""

    def read(self, key: str) -> bytes: ...

    def write(self, key: str, data: bytes | bytearray) -> None:
        """Write an object, replacing an older one. It is durable and complete when this returns."""

    def remove(self, keys: Collection[str]) -> None:
        """Remove objects. Missing ones are ignored."""

    def writing(self, part: str) -> AbstractContextManager[Lock]:
        """While this lasts, no other process that uses this kind of place removes packs of the part."""

    def collecting(self, part: str) -> AbstractContextManager[Lock]:
        """`held`: every process that writes to the part leaves a note."""


def is_key(key: str) -> bool:
    return _KEY.fullmatch(key) is not None


class DirectoryStorage:
    """A directory, such as one of shared storage, or a run's own."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def name(self) -> str:
        return str(self._root)

    def listed(self, folder: str = "") -> dict[str, StoredObject]:
        if any(path.is_symlink() and not path.exists() for path in (self._root, *self._root.parents)):
            raise StorageTrouble("a link in its path is broken")  # checkpoints may still exist behind it
        found: dict[str, StoredObject] = {}
        for part in [folder] if folder else ["", *self._folders()]:
            with contextlib.suppress(FileNotFoundError), os.scandir(self._root / part) as entries:
                for entry in entries:
                    key = f"{part}/{entry.name}" if part else entry.name
                    if is_key(key):
                        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                            told = entry.stat()
                            version = f"{told.st_ino}-{told.st_mtime_ns}"
                            found[key] = StoredObject(told.st_size, told.st_mtime, version)
        return found

    def _folders(self) -> list[str]:
        parts = [""]
        with contextlib.suppress(FileNotFoundError):
            parts += [f"{one.name}/" for one in self._root.iterdir() if re.fullmatch(PART, f"{one.name}/")]
        return (
            [part.rstrip("/") for part in parts if part] + [f"{part}{FOLDER}" for part in parts] + [WRITING]
        )

    def read(self, key: str) -> bytes:
        with plain_file(self._root / key) as descriptor, open(descriptor, "rb", closefd=False) as file:
            return file.read()

    def write(self, key: str, data: bytes | bytearray) -> None:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        if key.endswith(".pack"):  # a new name that nothing refers to yet
            try:
                PackFile(path).write([memoryview(data)])
            except ReadBack as error:
                raise StorageTrouble(str(error)) from None
        else:
            with part_of(path.parent, path.name.removesuffix(".checkpoint")) as part:
                part.write(data)
                part.flush()
                os.fsync(part.fileno())
                Path(part.name).replace(path)
        sync(path.parent)

    def remove(self, keys: Collection[str]) -> None:
        packs = [key for key in keys if key.endswith(".pack")]
        remove_packs(self._root, packs)
        for key in set(keys) - set(packs):
            (self._root / key).unlink(missing_ok=True)

    @contextlib.contextmanager
    def writing(self, part: str) -> Iterator[Lock]:
        folder = self._root / part / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder) as held:
            yield held

    @contextlib.contextmanager
    def collecting(self, part: str) -> Iterator[Lock]:
        folder = self._root / part / FOLDER
        if not folder.is_dir():
            yield "busy"  # there is nothing to remove
            return
        with locked(folder, exclusively=True) as held:
            self._remove_left_behind(self._root / part)
            self._remove_left_behind(self._root / WRITING)
            yield held

    @staticmethod
    def _remove_left_behind(folder: Path) -> None:
        """Remove incomplete manifests and notes of killed writers."""
        with contextlib.suppress(OSError):  # harmless if it stays
            for one in folder.iterdir():
                if _LEFT.fullmatch(one.name) and is_left_behind(one):
                    one.unlink(missing_ok=True)
