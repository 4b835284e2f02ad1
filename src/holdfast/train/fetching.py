"""Before a run starts: the newest whole checkpoint of its further places, where its own directory has none
that is as new. Needs no torch.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.record.errors import InputError
from holdfast.train.chunks import Unsound
from holdfast.train.copying import Listing, PlacedStep, copy_step, fault_at, steps_in
from holdfast.train.place import DirectoryStorage, Storage, StorageTrouble


class CopyNews(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be recorded of a copy, see `CheckpointCopied`."""

    step: int
    place: str
    origin: str = ""
    reason: str = ""
    size_bytes: int | None = None
    written_bytes: int | None = None
    copy_ns: int | None = None


class _Offer(NamedTuple):
    """A checkpoint that seems to be whole, and where."""

    kept: PlacedStep
    place: Storage
    listing: Listing
    is_own: bool


def fetch_newest(
    directories: Sequence[Path], places: Sequence[tuple[Storage, Storage]], say: Callable[[str], None]
) -> list[CopyNews]:
    """Have the newest sound checkpoint in one of the run's own directories, the first of which takes what is
    fetched. All bytes are compared. What is damaged is passed over; so is a place that cannot be used, if the
    run's own directories have something to go on from. Raises `InputError` if they do not, and where a place
    is not there at all. places: of each one that answers soon or not at all, and one with more patience.
    """
    own = [DirectoryStorage(directory) for directory in directories]
    offers = [offer for place in own for offer in _offers(place, is_own=True)]
    trouble: InputError | None = None
    for hasty, patient in places:
        try:
            offers += [offer._replace(place=patient) for offer in _offers(hasty, is_own=False)]
        except OSError as error:
            trouble = _unusable(hasty, error)
            if isinstance(error, StorageTrouble) and error.is_mistake:
                raise trouble from None
            say(f"{trouble.sentence} It may have a newer checkpoint than this machine has.")
    # The run's own first: nothing has to be moved for that.
    offers.sort(key=lambda offer: (offer.kept.step, len(offer.kept.keys), offer.is_own), reverse=True)
    news: list[CopyNews] = []
    for offer in offers:
        found, is_done = _taken(offer, own[0], say)
        news += found
        if is_done:
            return news
    if trouble is not None:
        raise trouble
    return news


def _offers(place: Storage, *, is_own: bool) -> list[_Offer]:
    try:
        listing = place.listed()
    except OSError:
        if is_own:
            return []  # its members say what is wrong with it
        raise
    return [_Offer(kept, place, listing, is_own) for kept in steps_in(listing) if kept.is_complete]


def _taken(offer: _Offer, target: Storage, say: Callable[[str], None]) -> tuple[list[CopyNews], bool]:
    """What is to be recorded of it, and whether it is in one of the run's own directories now, and sound."""
    step, source = offer.kept.step, offer.place.name
    try:
        if fault := fault_at(offer.place, offer.kept, offer.listing, is_thorough=offer.is_own):
            raise Unsound(fault)
        if offer.is_own:
            return [], True
        done = copy_step(offer.place, offer.kept, target, reuses=False)
    except (OSError, Unsound) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        say(f"the checkpoint of step {step} in {source} cannot be used: {why}; the next is tried")
        return [CopyNews(step=step, place=target.name, origin=source, reason=why)], False
    say(f"fetched the checkpoint of step {step} from {source}: {done.size_bytes / 1e6:,.1f} MB")
    return [
        CopyNews(
            step=step,
            place=target.name,
            origin=source,
            size_bytes=done.size_bytes,
            written_bytes=done.written_bytes,
        )
    ], True


def _unusable(place: Storage, error: OSError) -> InputError:
    return InputError(
        f"Cannot use {place.name} for checkpoints: {error.strerror}.",
        hint="Look at the name of the bucket, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
        "or leave it out to go on without it.",
    )
