"""Checkpoints in object storage, for the verbs of `holdfast checkpoint`: what is named by a URL."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.cli.checkpoint.place import located
from holdfast.record.errors import InputError

if TYPE_CHECKING:
    from holdfast.train.place import Storage

REMOTE_HINT = "Look at the bucket, the credentials (AWS_ACCESS_KEY_ID, ...) and AWS_ENDPOINT_URL."


def is_remote(text: str) -> bool:
    return "://" in text


def place_of(text: str, *, request_s: float | None = None) -> "Storage":
    """A URL, a path, or a run's own directory. request_s: see `opened_place`."""
    from holdfast.train.place import DirectoryStorage
    from holdfast.train.places import opened_place

    if is_remote(text):
        return opened_place(text, request_s=request_s)
    path = located(text)
    path = path if path.is_dir() else path.parent
    return DirectoryStorage(inner if (inner := path / "checkpoints").is_dir() else path)


@contextmanager
def troubles_told(*places: "Storage") -> Iterator[None]:
    """As one sentence and a hint."""
    try:
        yield
    except OSError as error:
        names = " or ".join(place.name for place in places)
        raise InputError(f"Cannot use {names}: {error.strerror}.", hint=REMOTE_HINT) from None
