"""Checkpoints fetched from a place, kept on this machine only while they are open. Needs no torch."""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from holdfast.record.errors import InputError
from holdfast.train.chunks import Unsound
from holdfast.train.copying import PlacedStep, copy_step
from holdfast.train.kept import ACCESS_HINT
from holdfast.train.place import DirectoryStorage, Storage

REMOTE_HINT = "Check the bucket, the credentials (AWS_ACCESS_KEY_ID, ...) and AWS_ENDPOINT_URL."
NEW_S_MAX = 60.0
"""How long a new directory may lack its lock; after that its creator counts as dead."""
_NAME = re.compile(r"\.fetched-[0-9a-f]{16}")


@contextlib.contextmanager
def passing_directory(parent: Path) -> Iterator[Path]:
    """A new directory beneath another, removed when the block ends. Directories left by killed processes are
    removed first. Raises `OSError`.
    """
    _remove_left_behind(parent)
    path = parent / f".fetched-{secrets.token_hex(8)}"
    path.mkdir(mode=0o700)
    try:
        with _opened(path) as descriptor:
            with contextlib.suppress(OSError):  # without locks, leftovers stay
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def passing(parent: Path) -> Iterator[Path]:
    """A directory beneath this one for fetched checkpoints. It is removed when the block ends, also by
    SIGTERM, unless the process has a handler of its own.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_leaving_by_sigterm())
        try:
            directory = stack.enter_context(passing_directory(parent))
        except OSError as error:
            raise InputError(
                f"Cannot fetch checkpoints to {parent}: {error.strerror}.",
                hint="Name a directory that exists and that this user may write.",
            ) from None
        yield directory


@contextlib.contextmanager
def _leaving_by_sigterm() -> Iterator[None]:
    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()  # only this thread may set handlers
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_left_behind(parent: Path) -> None:
    with contextlib.suppress(OSError):
        for path in parent.iterdir():
            if _NAME.fullmatch(path.name) and _is_left_behind(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_left_behind(path: Path) -> bool:
    """Whether its creator died, which released its lock."""
    try:
        with _opened(path) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return time.time() - os.fstat(descriptor).st_mtime > NEW_S_MAX
    except OSError:
        return False


def fetch_steps(source: Storage, steps: Collection[PlacedStep], directory: Path) -> None:
    """Copy these steps to the directory. Raises `Unsound` or `OSError`."""
    for kept in steps:
        try:
            copy_step(source, kept, DirectoryStorage(directory), reuses=False)
        except Unsound as error:
            raise Unsound(f"step {kept.step} could not be loaded: {error}") from None


@contextlib.contextmanager
def troubles_told(*places: Storage) -> Iterator[None]:
    """Turn an `OSError` into one sentence and a hint."""
    try:
        yield
    except OSError as error:
        names = " or ".join(place.name for place in places)
        is_local = all(isinstance(place, DirectoryStorage) for place in places)
        hint = ACCESS_HINT if is_local else REMOTE_HINT
        raise InputError(f"Cannot use {names}: {error.strerror}.", hint=hint) from None
