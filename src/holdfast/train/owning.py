"""Which run a further place belongs to: the process that fills it leaves a note with the run's name. Needs no
torch.
"""

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
    """The run that a note names. Raises `StorageTrouble`."""
    try:
        return msgspec.json.decode(note, type=_Owner).run
    except UNDECODABLE as error:
        raise StorageTrouble(f"its note {OWNER} cannot be read: {error}", is_mistake=True) from None


def owner_at(place: Storage) -> str:
    """The run that the place belongs to; empty if none. Raises `OSError`."""
    try:
        return owner_in(place.read(OWNER))
    except FileNotFoundError:
        return ""
    except Unsound as error:
        raise StorageTrouble(f"its note {OWNER} cannot be read: {error}", is_mistake=True) from None


def _has_others(place: Storage, owner: str, run: str) -> bool:
    """Whether the place has checkpoints of another run. Raises `OSError`."""
    return owner not in ("", run) and bool(steps_in(place.listed()))


def check_owner(place: Storage, run: str) -> None:
    """Raise `InputError` if the place belongs to another run. Raises `OSError` as well."""
    owner = owner_at(place)
    if _has_others(place, owner, run):
        copy = shlex.join(("holdfast", "checkpoint", "copy", place.name, "--to"))
        raise InputError(
            f"{place.name} has the checkpoints of the run {owner!r}, but this run is {run!r}.",
            hint=f"Continue that run (--run {shlex.quote(owner)}), or name another place. To resume from it "
            f"under another name, copy its checkpoint there first: {copy} PLACE",
        )


def check_admits(place: Storage, run_of: Callable[[], str]) -> None:
    """Check a place before a user copies a checkpoint there. run_of: the run of the checkpoint, or empty;
    called only if it matters. Raises `InputError` if the place belongs to another run, and `OSError`.
    """
    if (owner := owner_at(place)) and (run := run_of()) != owner:
        whose = f"one of {run!r}" if run else "one whose run is not known"
        raise InputError(
            f"{place.name} belongs to the run {owner!r}, but this checkpoint is {whose}.",
            hint="Name a place that belongs to no run yet. If the checkpoint is of that run, say so: "
            f"--run {shlex.quote(owner)}",
        )


def claim(place: Storage, run: str) -> None:
    """Claim a place before anything is written there. Raises `OSError`, also if it belongs to another run."""
    owner = owner_at(place)
    if _has_others(place, owner, run):
        raise StorageTrouble(f"it has the checkpoints of the run {owner!r}", is_mistake=True)
    if owner != run:
        place.write(OWNER, msgspec.json.encode(_Owner(run)))
