"""Checkpoints in object storage, for the verbs of `holdfast checkpoint`: what is named by a URL."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.cli.checkpoint.place import located
from holdfast.record.errors import InputError

if TYPE_CHECKING:
    from holdfast.train.copying import PlacedStep
    from holdfast.train.place import Storage

REMOTE_LIST_HINT = "`holdfast checkpoint list` shows the ones there are, and which are sound."
REMOTE_HINT = "Look at the bucket, the credentials (AWS_ACCESS_KEY_ID, ...) and AWS_ENDPOINT_URL."


def is_remote(text: str) -> bool:
    return "://" in text


def place_of(text: str) -> "Storage":
    """A URL, a path, or a run's own directory."""
    from holdfast.train.place import DirectoryStorage
    from holdfast.train.places import opened_place

    if is_remote(text):
        return opened_place(text)
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


def usable_at(place: "Storage", step: int | None) -> "list[PlacedStep]":
    """The checkpoints that a run can resume from, as far as manifests and sizes tell, the newest first.
    Raises `OSError`.
    """
    from holdfast.train.copying import fault_at, steps_in

    listing = place.listed()
    found = [
        kept
        for kept in reversed(steps_in(listing))
        if step in (None, kept.step) and not fault_at(place, kept, listing)
    ]
    if not found:
        which = "" if step is None else f" of step {step}"
        raise InputError(
            f"{place.name} has no checkpoint{which} that a run can resume from.", hint=REMOTE_LIST_HINT
        )
    return found
