"""Takes new events of a machine's own journal into the store, and reports damage."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent
from holdfast.record.files import is_there
from holdfast.record.journal import JOURNAL_DIRECTORY, Damage, read_directory
from holdfast.record.store import Ingested, Store


class HomeJournal:
    """The journal in this machine's home, which is taken into the store.

    tell: called with new damage, each place once.
    """

    def __init__(self, store: Store, home: Path, tell: Callable[[Sequence[Damage]], None]) -> None:
        self._store = store
        self._directory = home / JOURNAL_DIRECTORY
        self._tell = tell
        self._told: set[Damage] = set()

    def take_in(self) -> None:
        """Take in new events and report new damage; the next reading begins after them.

        An unfinished line is not reported: its writer is about to finish it, or died while writing.
        """
        damages: list[Damage] = []
        try:
            ingest_directory(self._store, self._directory, damages)
        except InputError:
            if is_there(self._directory):
                raise
            return  # nothing was recorded here yet, not even events still on their way to this directory
        news = [damage for damage in damages if not damage.torn and damage not in self._told]
        self._told.update(news)
        if news:
            self._tell(news)


def ingest_directory(store: Store, directory: Path, damages: list[Damage]) -> Ingested:
    """Take in the new events of a journal directory; add unreadable parts to `damages`."""
    prefix = f"journal:{directory.resolve()}/"
    marks = store.marks()
    offsets = {name.removeprefix(prefix): mark for name, mark in marks.items() if name.startswith(prefix)}
    events = _events_of(read_directory(directory, offsets), damages)
    return store.ingest(events, marks=_Marks(prefix, offsets))


def _events_of(items: Iterable[AnyEvent | Damage], damages: list[Damage]) -> Iterator[AnyEvent]:
    for item in items:
        if isinstance(item, Damage):
            damages.append(item)
        else:
            yield item


class _Marks(Mapping[str, int]):
    """A reading's offsets as marks, read when the store writes them: after the last event."""

    def __init__(self, prefix: str, offsets: dict[str, int]) -> None:
        self._prefix = prefix
        self._offsets = offsets

    def __getitem__(self, name: str) -> int:
        return self._offsets[name.removeprefix(self._prefix)]

    def __iter__(self) -> Iterator[str]:
        return (self._prefix + name for name in self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)
