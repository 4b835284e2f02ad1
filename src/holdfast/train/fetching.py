"""Before a run starts: fetches the newest whole checkpoint from its further places, unless its own directory
has one as new. Needs no torch.
"""

import shlex
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
    """A copy to be recorded, see `CheckpointCopied`."""

    step: int
    place: str
    origin: str = ""
    reason: str = ""
    size_bytes: int | None = None
    written_bytes: int | None = None
    copy_ns: int | None = None


class _Offer(NamedTuple):
    """A complete checkpoint, not yet verified, and its place."""

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
    """Have the newest sound checkpoint in one of the run's own directories; the first of them takes what is
    fetched. All bytes are compared. Damaged checkpoints are skipped, and so is a place that cannot be used or
    read to the end, if the run can resume from something else.
    Raises `InputError` if it cannot, because the run would begin anew; also if another version wrote the
    newest checkpoint, if a place does not exist, or if it belongs to another run. places: for each place, one
    client that answers soon or fails, and one with more patience.
    """
    own = [DirectoryStorage(directory) for directory in directories]
    offers = [offer for place in own for offer in _offers(place, is_own=True)]
    trouble: InputError | None = None
    for hasty, patient in places:
        try:
            check_owner(hasty, run)  # first: never resume from a place that may belong to another run
            offers += [offer._replace(place=patient) for offer in _offers(hasty, is_own=False)]
        except OSError as error:
            trouble = _unusable(hasty, error)
            if isinstance(error, StorageTrouble) and error.is_mistake:
                raise trouble from None
            say(f"{trouble.sentence} It may have a newer checkpoint than this machine has.")
    # The run's own first: they need no transfer.
    offers.sort(key=lambda offer: (offer.kept.step, len(offer.kept.keys), offer.is_own), reverse=True)
    news: list[CopyNews] = []
    unreadable: set[str] = set()
    for offer in offers:
        if offer.place.name in unreadable:
            continue  # an older one from here would hide the newer one
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
    return news  # if the run's own are all damaged, its members report it


def _offers(place: Storage, *, is_own: bool) -> list[_Offer]:
    try:
        listing = place.listed()
    except OSError:
        if is_own:
            return []  # the members report what is wrong with it
        raise
    return [_Offer(kept, place, listing, is_own) for kept in steps_in(listing) if kept.is_complete]


def _taken(offer: _Offer, target: Storage, say: Callable[[str], None]) -> tuple[list[CopyNews], bool]:
    """The news to record, and whether the checkpoint is now in one of the run's own directories, and sound.
    Raises `OSError` if the place cannot be read, unless it is the run's own: its members report that.
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
        is_gone = isinstance(error, FileNotFoundError)  # removed as old since it was listed
        if isinstance(error, OSError) and not (offer.is_own or is_gone):
            raise
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        say(f"the checkpoint of step {step} in {source} cannot be used: {why}; trying the next")
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
    """Raise `InputError` if another version wrote it: it is not damaged, and newer than all the rest."""
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
            return  # reported by fault_at


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
    places = sorted({offer.place.name for offer in offers if not offer.is_own})
    names, first = " and ".join(places), shlex.quote(places[0])
    return InputError(
        f"The run cannot go on from any checkpoint in {names}: all of them are damaged.",
        hint="Nothing was changed there. "
        f"`holdfast checkpoint verify {first}` says how; to begin anew, name another place.",
    )


def _unusable(place: Storage, error: OSError) -> InputError:
    return InputError(
        f"Cannot use {place.name} for checkpoints: {error.strerror}.",
        hint="Look at the name of the bucket, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
        "or leave it out to go on without it.",
    )
