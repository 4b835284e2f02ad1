"""What a coordinator does for its reign beside coordinating: it beats, keeps the electors, and knows its end.

A coordinator without a quorum lets nobody see anything, so it can do no harm. It looks whether another one
reigns meanwhile, and ends if so, or if it has waited for long enough.
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
"""Without a quorum for so long, it looks for another coordinator."""


async def tend(hub: Coordinator, heirs: Following, token: str, arbiter: Arbiter | None) -> str:
    """Until this coordinator may not go on; returns why."""
    loop = asyncio.get_running_loop()
    asking: asyncio.Task[bool] | None = None
    beats = 0
    while True:
        await asyncio.sleep(BEAT_INTERVAL_S)
        heirs.beat()
        beats += 1
        if beats % 2:
            hub.reign()
        _keep_electors(hub, heirs)
        if arbiter is not None:
            await _halved(hub, heirs, arbiter)
        silent_s = loop.time() - heirs.quorum_s if heirs.is_doubtful else 0.0
        if asking is not None and asking.done():
            if asking.result():
                return "another machine coordinates the run now"
            asking = None
        if silent_s > QUORUM_WAIT_S:
            return f"most of the run's machines could not be reached for {QUORUM_WAIT_S:g} s"
        if silent_s > DOUBT_S and asking is None:
            asking = asyncio.create_task(_is_deposed(heirs, token))


def _keep_electors(hub: Coordinator, heirs: Following) -> None:
    heirs.ask_for_term()
    if (won := heirs.term_won(hub.now_ns())) is not None:
        hub.enter(won)
    heirs.admit()
    if (change := heirs.change()) is not None:
        hub.enter(change)


async def _halved(hub: Coordinator, heirs: Following, arbiter: Arbiter) -> None:
    """The other one of two is gone: the arbiter says which of them goes on."""
    reign, electorate = heirs.reign, heirs.reign.mandate.electorate
    absent = heirs.absent
    if not (electorate.has_arbiter and len(electorate.machines) == 2 and absent and reign.can_change):
        return
    term = reign.term + 1
    if await chosen(arbiter, heirs.own.machine, reign.term, term):
        heirs.renew(term, is_granted=True)
        own = heirs.own.machine
        hub.enter(TermBegun(term=term, electorate=fewer(electorate, (own,), own), now_ns=hub.now_ns()))


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
