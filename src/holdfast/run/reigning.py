"""How a coordinator maintains its reign: it sends heartbeats, manages the electors, and notices its end.

A coordinator without a quorum makes nothing visible, so it can do no harm. It checks whether another one
reigns meanwhile, and ends if so, or if it has waited long enough.
"""

import asyncio

from holdfast.run.arbiter import Arbiter, chosen
from holdfast.run.coordinator import Coordinator
from holdfast.run.dial import dial
from holdfast.run.estate import TermBegun
from holdfast.run.following import Following, fewer
from holdfast.run.handshake import Rejected, Stranger, Unreachable
from holdfast.run.seeking import SEEK_WAIT_S
from holdfast.run.succession import QUORUM_WAIT_S

BEAT_INTERVAL_S = 0.5
DOUBT_S = 2.0
"""After this long without a quorum, it looks for another coordinator."""


async def tend(hub: Coordinator, heirs: Following, token: str, arbiter: Arbiter | None) -> str:
    """Maintain the reign until this coordinator has to end; return why."""
    loop = asyncio.get_running_loop()
    asking: asyncio.Task[bool] | None = None
    halving: asyncio.Task[None] | None = None  # an arbiter may take seconds, and heirs need heartbeats
    beats = 0
    try:
        while True:
            await asyncio.sleep(BEAT_INTERVAL_S)
            heirs.beat()
            beats += 1
            if beats % 2:
                hub.reign()
            _keep_electors(hub, heirs)
            if halving is not None and halving.done():
                halving.result()
                halving = None
            if arbiter is not None and halving is None and _is_halved(heirs):
                halving = asyncio.create_task(_halved(hub, heirs, arbiter))
            silent_s = loop.time() - heirs.quorum_s if heirs.is_doubtful else 0.0
            if asking is not None and asking.done():
                if asking.result():
                    return "another machine coordinates the run now"
                asking = None
            if silent_s > QUORUM_WAIT_S:
                return f"most of the run's machines could not be reached for {QUORUM_WAIT_S:g} s"
            if silent_s > DOUBT_S and asking is None:
                asking = asyncio.create_task(_is_deposed(heirs, token))
    finally:
        for task in (asking, halving):
            if task is not None:
                task.cancel()


def _keep_electors(hub: Coordinator, heirs: Following) -> None:
    heirs.ask_for_term()
    if (won := heirs.term_won(hub.now_ns())) is not None:
        hub.enter(won)
    heirs.admit()
    if (change := heirs.change()) is not None:
        hub.enter(change)


async def _halved(hub: Coordinator, heirs: Following, arbiter: Arbiter) -> None:
    """The other one of two machines is gone: let the arbiter decide which of them continues."""
    reign = heirs.reign
    known, electorate = reign.term, reign.mandate.electorate
    term = known + 1
    is_chosen = await chosen(arbiter, heirs.own.machine, known, term)
    if is_chosen and reign.term == known and reign.mandate.electorate == electorate and reign.can_change:
        heirs.renew(term, is_granted=True)
        own = heirs.own.machine
        hub.enter(TermBegun(term=term, electorate=fewer(electorate, (own,), own), now_ns=hub.now_ns()))


def _is_halved(heirs: Following) -> bool:
    electorate = heirs.reign.mandate.electorate
    is_pair = electorate.has_arbiter and len(electorate.machines) == 2
    return is_pair and bool(heirs.absent) and heirs.reign.can_change


async def _is_deposed(heirs: Following, token: str) -> bool:
    for place in tuple(heirs.places.values()):
        if place.machine == heirs.own.machine:
            continue
        try:
            found = await dial(place.host, place.port, token, role="operator", wait_s=SEEK_WAIT_S)
        except (Unreachable, Stranger, Rejected):
            continue
        await found.close()
        if found.term > heirs.reign.term:
            return True
    return False
