"""Which run a further place belongs to: who fills it leaves a note with the run's name. Needs no torch."""

import shlex
from collections.abc import Callable

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.untrusted import UNDECODABLE
from holdfast.train.chunks import Unsound
from holdfast.train.copying import steps_in
from holdfast.train.place import OWNER, Storage, StorageTrouble


class _Owner(msgspec.Struct, frozen=True):
    run: str


def owner_in(note: bytes) -> str:
    """Raises `StorageTrouble`."""
    try:
        return msgspec.json.decode(note, type=_Owner).run
    except UNDECODABLE as error:
        raise StorageTrouble(f"its note {OWNER} cannot be read: {error}", is_mistake=True) from None


def owner_at(place: Storage) -> str:
    """Empty: nobody. Raises `OSError`."""
    try:
        return owner_in(place.read(OWNER))
    except FileNotFoundError:
        return ""
    except Unsound as error:
        raise StorageTrouble(f"its note {OWNER} cannot be read: {error}", is_mistake=True) from None


def _has_others(place: Storage, owner: str, run: str) -> bool:
    """Whether checkpoints of another run are there. Raises `OSError`."""
    return owner not in ("", run) and bool(steps_in(place.listed()))


def check_owner(place: Storage, run: str) -> None:
    """Raises `InputError` if it belongs to another run, and `OSError`."""
    owner = owner_at(place)
    if _has_others(place, owner, run):
        copy = shlex.join(("holdfast", "checkpoint", "copy", place.name, "--to"))
        raise InputError(
            f"{place.name} has the checkpoints of the run {owner!r}, and this run is {run!r}.",
            hint=f"Go on with that run (--run {shlex.quote(owner)}), or name another place. To go on from it "
            f"under another name, copy its checkpoint there first: {copy} PLACE",
        )


def check_admits(place: Storage, run_of: Callable[[], str]) -> None:
    """Before somebody puts a checkpoint there by hand. run_of: whose it is, or empty; asked only where that
    matters. Raises `InputError` if the place belongs to another run, and `OSError`.
    """
    if (owner := owner_at(place)) and (run := run_of()) != owner:
        whose = f"one of {run!r}" if run else "one whose run is not known"
        raise InputError(
            f"{place.name} belongs to the run {owner!r}, and this checkpoint is {whose}.",
            hint="Name a place that belongs to no run yet. If the checkpoint is of that run, say so: "
            f"--run {shlex.quote(owner)}",
        )


def claim(place: Storage, run: str) -> None:
    """Before anything is written there. Raises `OSError`, also if it belongs to another run."""
    owner = owner_at(place)
    if _has_others(place, owner, run):
        raise StorageTrouble(f"it has the checkpoints of the run {owner!r}", is_mistake=True)
    if owner != run:
        place.write(OWNER, msgspec.json.encode(_Owner(run)))
