"""Checkpoints in object storage, which the verbs of `holdfast checkpoint` take by a URL."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.checkpoint.place import located, run_of
from holdfast.cli.terminal import printable

if TYPE_CHECKING:
    from holdfast.train.opening import Checkpoint
    from holdfast.train.place import Storage


def is_remote(text: str) -> bool:
    return "://" in text


def place_of(text: str, *, request_s: float | None = None) -> "Storage":
    """A URL, a path, or a run's own directory. request_s: see `opened_place`."""
    from holdfast.train.kept import root_of
    from holdfast.train.place import DirectoryStorage
    from holdfast.train.places import opened_place

    if is_remote(text):
        return opened_place(text, request_s=request_s)
    return DirectoryStorage(root_of(located(text)))


def run_at(place: "Storage") -> str:
    """The run that the checkpoints of a place belong to; empty if unknown. Raises `OSError`."""
    from holdfast.train.owning import owner_at

    return owner_at(place) or ("" if is_remote(place.name) else run_of(Path(place.name).absolute()))


def tell(sentence: str) -> None:
    click.echo(printable(sentence), err=True)


def opened(run_or_path: str, step: int | None, parent: Path) -> tuple["Checkpoint", str]:
    """A checkpoint in memory, and the name of its run, or empty if unknown. parent: object storage is fetched
    into a directory beneath it, which is removed again.
    """
    from holdfast.train.opening import load_checkpoint, load_fetched

    if not is_remote(run_or_path):
        found = load_checkpoint(located(run_or_path), step=step)
        return found, run_of(Path(found.place).absolute())
    from holdfast.train.fetched import passing, troubles_told

    place = place_of(run_or_path)
    with passing(parent) as directory:
        found = load_fetched(place, directory, step, tell)
    with troubles_told(place):
        return found, run_at(place)
