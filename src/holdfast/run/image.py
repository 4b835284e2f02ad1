"""An estate and its entries as bytes for heirs on other machines: MessagePack, which cannot contain code.

Pickle is used only over the pipe to the successor on the same machine (heir.py), never over a network.
"""

from collections import deque
from typing import Any, get_origin

import msgspec

from holdfast.record.untrusted import UNDECODABLE
from holdfast.run import wire
from holdfast.run.estate import (
    ClientName,
    ClientSession,
    Duties,
    Estate,
    EstateEntry,
    OperatorLine,
    Wishes,
)
from holdfast.run.happenings import Record
from holdfast.run.sent import SentFrames
from holdfast.run.state import LOSS_VALUES_MAX, Generation, RunState
from holdfast.run.status import Happened
from holdfast.run.succession import MachinePlace, Mandate, Stand


class SessionImage(msgspec.Struct, frozen=True, array_like=True):
    """The session of one client. kept: indexes into the image's frames."""

    client: ClientName
    number: int
    received: int
    sent: int
    kept: tuple[int, ...]
    is_given_up: bool


class EstateImage(msgspec.Struct, frozen=True, kw_only=True):
    """All of an estate. frames: each once, even if many clients were sent it. addressees: the number of the
    generation that the notices are for; 0 for none.
    """

    state: RunState
    frames_max: int
    duties: Duties
    frames: tuple[bytes, ...]
    sessions: tuple[SessionImage, ...]
    nodes: tuple[str, ...]
    token: str
    events: int
    ids: dict[str, str]
    unwritten: list[Record]
    happened: list[Happened]
    lines: list[OperatorLine]
    commits: list[tuple[int, int]]
    notices: list[wire.Notice]
    wishes: Wishes
    takeovers: int
    line_number: int
    addressees: int
    known: Stand
    mandate: Mandate
    places: tuple[MachinePlace, ...]


def _plain(value: Any) -> Any:
    if isinstance(value, deque):
        return list(value)
    raise NotImplementedError


def _restored(kind: Any, value: Any) -> Any:
    if get_origin(kind) is deque:  # the losses by step
        return deque(msgspec.convert(value, list[tuple[int, float]]), maxlen=LOSS_VALUES_MAX)
    raise NotImplementedError


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_images = msgspec.msgpack.Decoder(EstateImage, dec_hook=_restored)
_entries: msgspec.msgpack.Decoder[EstateEntry] = msgspec.msgpack.Decoder(EstateEntry)


def entry_bytes(entry: EstateEntry) -> bytes:
    return _encoder.encode(entry)


def entry_of(data: bytes) -> EstateEntry:
    """The entry in these bytes. Raise `MalformedFrame` if they are not valid."""
    try:
        return _entries.decode(data)
    except UNDECODABLE as error:
        raise wire.MalformedFrame(str(error)) from None


def estate_bytes(estate: Estate) -> bytes:
    frames: dict[int, tuple[int, bytes]] = {}
    sessions = []
    for client, session in estate.sessions.items():
        kept = session.sent.kept
        places = tuple(frames.setdefault(id(frame), (len(frames), frame))[0] for frame in kept)
        sessions.append(
            SessionImage(
                client, session.number, session.received, session.sent.count, places, session.is_given_up
            )
        )
    image = EstateImage(
        state=estate.state,
        frames_max=estate.frames_max,
        duties=estate.duties,
        frames=tuple(frame for _, frame in frames.values()),
        sessions=tuple(sessions),
        nodes=tuple(estate.nodes),
        token=estate.token,
        events=estate.events,
        ids=estate.ids,
        unwritten=estate.unwritten,
        happened=list(estate.happened),
        lines=list(estate.lines),
        commits=list(estate.commits),
        notices=estate.notices,
        wishes=estate.wishes,
        takeovers=estate.takeovers,
        line_number=estate.line_number,
        addressees=0 if estate.addressees is None else estate.addressees.number,
        known=estate.known,
        mandate=estate.mandate,
        places=estate.places,
    )
    return _encoder.encode(image)


def estate_of(data: bytes) -> Estate:
    """The estate in these bytes. Raise `MalformedFrame` if they are not valid."""
    try:
        image = _images.decode(data)
        return _estate(image)
    except (IndexError, *UNDECODABLE) as error:
        raise wire.MalformedFrame(str(error)) from None


def _estate(image: EstateImage) -> Estate:
    policy, started_ns = image.state.policy, image.state.started_ns
    estate = Estate(policy, started_ns, image.token, image.frames_max, image.duties)
    estate.state = image.state
    _make_one(image.state)
    for one in image.sessions:
        session = ClientSession(one.number, image.frames_max)
        session.received, session.is_given_up = one.received, one.is_given_up
        frames = [image.frames[place] for place in one.kept]
        session.sent = SentFrames.restored(image.frames_max, one.sent, frames)
        estate.sessions[one.client] = session
    estate.nodes = dict.fromkeys(image.nodes)
    estate.events, estate.ids, estate.unwritten = image.events, image.ids, image.unwritten
    estate.happened.extend(image.happened)
    estate.lines.extend(image.lines)
    estate.commits.extend(image.commits)
    estate.take_notices(image.notices, _generation(image.state, image.addressees))
    estate.wishes = image.wishes
    estate.takeovers, estate.line_number = image.takeovers, image.line_number
    estate.known, estate.mandate, estate.places = image.known, image.mandate, image.places
    return estate


def _make_one(state: RunState) -> None:
    """Restore shared identity of equal objects, because the membership compares them by identity."""
    generations, trouble = state.generations, state.progress.trouble
    announced, formed = generations.announced, generations.formed
    if announced is not None and formed is not None and announced.number == formed.number:
        generations.formed = announced
    for generation in (announced, formed):
        if generation is not None and trouble is not None:
            generation.because = trouble if generation.because == trouble else generation.because
            generation.trouble = trouble if generation.trouble == trouble else generation.trouble


def _generation(state: RunState, number: int) -> Generation | None:
    known = (state.generations.announced, state.generations.formed)
    return next((one for one in known if one is not None and one.number == number), None)
