"""The events of a store, and then new ones as they arrive."""

import time
from collections.abc import Callable, Iterator
from itertools import chain, islice

import msgspec

from holdfast.record.errors import StoreError
from holdfast.record.events import AnyEvent
from holdfast.record.home import HomeJournal
from holdfast.record.store import Selection, Store

POLL_INTERVAL_S = 0.5


def following(
    store: Store,
    journal: HomeJournal,
    selection: Selection,
    say: Callable[[str], None],
    rest: Callable[[], None] = lambda: None,
) -> Iterator[AnyEvent]:
    """Yield the stored events by time, and then new ones as they arrive. rest: called when there is no more
    for now.

    Ends with an interrupt. If the store cannot be used for a while, for example because its server restarts,
    this is reported once, and reading goes on when it is back.
    """
    cursor = store.end()
    shown: set[str] = set()
    last: AnyEvent | None = None
    is_listed = is_troubled = False
    while True:
        try:
            if not is_listed:
                for event in _present(store, selection, cursor, last, shown):
                    last = event
                    yield event
                is_listed = True
            journal.take_in()
            end = store.end()
            for arrival, event in store.since(cursor, selection):
                cursor = arrival
                if event.id not in shown:
                    yield event
            cursor = max(cursor, end)
        except StoreError as error:
            if not is_troubled:
                say(f"{error.sentence} It is tried again.")
            is_troubled = True
        else:
            if is_troubled:
                say("The store can be used again; nothing was missed.")
            is_troubled = False
        if is_listed:
            rest()
        time.sleep(POLL_INTERVAL_S)


def _present(
    store: Store, selection: Selection, cursor: int, last: AnyEvent | None, shown: set[str]
) -> Iterator[AnyEvent]:
    """The stored events, after `last` if an earlier reading got that far. Adds to `shown` the events that
    arrived after the cursor and will be read again there."""
    if last is not None:
        selection = msgspec.structs.replace(selection, since_ns=last.occurred_ns)
    present = store.select(selection)
    first = list(islice(present, 1))  # now the read has begun, and will see nothing newer
    # Events that arrived between the two reads are after the cursor, and may be among `present` as well.
    began = store.end()
    unsure = {event.id for arrival, event in store.since(cursor, selection) if arrival <= began}
    for event in chain(first, present):
        if last is not None and (event.occurred_ns, event.id) <= (last.occurred_ns, last.id):
            continue
        if event.id in unsure:
            shown.add(event.id)
        yield event
