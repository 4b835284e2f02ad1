"""Before a run starts: the newest whole checkpoint of its further places, where its own directory has none
that is as new. Needs no torch.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.record.errors import InputError
from holdfast.train.chunks import NewerFormat, OlderFormat, Unsound
from holdfast.train.copying import Listing, PlacedStep, copy_step, fault_at, manifest_at, steps_in
from holdfast.train.owning import check_owner
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
    directories: Sequence[Path],
    places: Sequence[tuple[Storage, Storage]],
    run: str,
    say: Callable[[str], None],
) -> list[CopyNews]:
    """Have the newest sound checkpoint in one of the run's own directories, the first of which takes what is
    fetched. All bytes are compared. Only what is damaged is passed over, and a place that cannot be used or
    read to the end, if there is something else to go on from. Raises `InputError` if there is not, because
    the run would begin anew; where another version wrote the newest; where a place is not there at all; and
    where it belongs to another run.
    places: of each one that answers soon or not at all, and one with more patience.
    """
    own = [DirectoryStorage(directory) for directory in directories]
    offers = [offer for place in own for offer in _offers(place, is_own=True)]
    trouble: InputError | None = None
    for hasty, patient in places:
        try:
            check_owner(hasty, run)  # first: what cannot be told to be this run's is not gone on from
            offers += [offer._replace(place=patient) for offer in _offers(hasty, is_own=False)]
        except OSError as error:
            trouble = _unusable(hasty, error)
            if isinstance(error, StorageTrouble) and error.is_mistake:
                raise trouble from None
            say(f"{trouble.sentence} It may have a newer checkpoint than this machine has.")
    # The run's own first: nothing has to be moved for that.
    offers.sort(key=lambda offer: (offer.kept.step, len(offer.kept.keys), offer.is_own), reverse=True)
    news: list[CopyNews] = []
    unreadable: set[str] = set()
    for offer in offers:
        if offer.place.name in unreadable:
            continue  # an older one of it would hide the newer one
        try:
            found, is_done = _taken(offer, own[0], say)
        except OSError as error:
            unreadable.add(offer.place.name)
            trouble = _unfetched(offer, own[0], error)
            say(trouble.sentence)
            news.append(_refusal(offer, own[0], error.strerror or str(error)))
            continue
        news += found
        if is_done:
            return news
    if trouble is None and not all(offer.is_own for offer in offers):
        trouble = _all_damaged(offers)
    if trouble is not None:
        raise trouble
    return news  # if the run's own are all damaged, its members say so


def _offers(place: Storage, *, is_own: bool) -> list[_Offer]:
    try:
        listing = place.listed()
    except OSError:
        if is_own:
            return []  # its members say what is wrong with it
        raise
    return [_Offer(kept, place, listing, is_own) for kept in steps_in(listing) if kept.is_complete]


def _taken(offer: _Offer, target: Storage, say: Callable[[str], None]) -> tuple[list[CopyNews], bool]:
    """What is to be recorded of it, and whether it is in one of the run's own directories now, and sound.
    Raises `OSError` where that cannot be seen, unless it is the run's own: its members say what is wrong.
    """
    step, source = offer.kept.step, offer.place.name
    try:
        _check_version(offer)
        if fault := fault_at(offer.place, offer.kept, offer.listing, is_thorough=offer.is_own):
            raise Unsound(fault)
        if offer.is_own:
            return [], True
        done = copy_step(offer.place, offer.kept, target, reuses=False)
    except (OSError, Unsound) as error:
        is_gone = isinstance(error, FileNotFoundError)  # as old, since it was listed
        if isinstance(error, OSError) and not (offer.is_own or is_gone):
            raise
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        say(f"the checkpoint of step {step} in {source} cannot be used: {why}; the next is tried")
        return [_refusal(offer, target, why)], False
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


def _check_version(offer: _Offer) -> None:
    """What another version wrote is not damaged, and newer than all that is left. Raises `InputError`."""
    for key in offer.kept.keys:
        try:
            manifest_at(offer.place, key)
        except (NewerFormat, OlderFormat) as error:
            raise InputError(
                f"Cannot go on from step {offer.kept.step} in {offer.place.name}: {error}.",
                hint="Nothing was changed there. Go on with the version that wrote it, or name another place "
                "to begin anew.",
            ) from None
        except Unsound:
            return  # told as its fault


def _refusal(offer: _Offer, target: Storage, why: str) -> CopyNews:
    return CopyNews(step=offer.kept.step, place=target.name, origin=offer.place.name, reason=why)


def _unfetched(offer: _Offer, target: Storage, error: OSError) -> InputError:
    why = error.strerror or str(error)
    return InputError(
        f"Cannot fetch the checkpoint of step {offer.kept.step} from {offer.place.name} to {target.name}: "
        f"{why}.",
        hint="Start the run again once both can be used; or leave that place out to go on without it.",
    )


def _all_damaged(offers: Sequence[_Offer]) -> InputError:
    names = " and ".join(sorted({offer.place.name for offer in offers if not offer.is_own}))
    return InputError(
        f"The run cannot go on from any checkpoint in {names}: all of them are damaged.",
        hint="Nothing was changed there. `holdfast checkpoint verify` says how; to begin anew, name another "
        "place.",
    )


def _unusable(place: Storage, error: OSError) -> InputError:
    return InputError(
        f"Cannot use {place.name} for checkpoints: {error.strerror}.",
        hint="Look at the name of the bucket, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
        "or leave it out to go on without it.",
    )
