"""From a machine's own journal into the store: what is new since the last time, and what of it is damaged."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent
from holdfast.record.files import is_there
from holdfast.record.journal import JOURNAL_DIRECTORY, Damage, read_directory
from holdfast.record.store import Ingested, Store


class HomeJournal:
    """What the processes of this machine recorded in its home, on its way into the store.

    tell: is given what is damaged, each place once.
    """

    def __init__(self, store: Store, home: Path, tell: Callable[[Sequence[Damage]], None]) -> None:
        self._store = store
        self._directory = home / JOURNAL_DIRECTORY
        self._tell = tell
        self._told: set[Damage] = set()

    def take_in(self) -> None:
        """Take in what is new and tell what of it is damaged: the next reading begins behind it.

        An unfinished line is no news: its writer is about to finish it, or died over it.
        """
        damages: list[Damage] = []
        try:
            ingest_directory(self._store, self._directory, damages)
        except InputError:
            if is_there(self._directory):
                raise
            return  # nobody has recorded here yet, not even what is still on its way to this directory
        news = [damage for damage in damages if not damage.torn and damage not in self._told]
        self._told.update(news)
        if news:
            self._tell(news)


def ingest_directory(store: Store, directory: Path, damages: list[Damage]) -> Ingested:
    """Take in what is new in a journal directory; what cannot be read is added to `damages`."""
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
    """A reading's offsets as marks, as they are when the store writes them: after the last event."""

    def __init__(self, prefix: str, offsets: dict[str, int]) -> None:
        self._prefix = prefix
        self._offsets = offsets

    def __getitem__(self, name: str) -> int:
        return self._offsets[name.removeprefix(self._prefix)]

    def __iter__(self) -> Iterator[str]:
        return (self._prefix + name for name in self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)
