"""Data by (step, lane): what a lane of a step is fed depends on nothing but the two, and on a seed.

Whoever computes a lane gets the same samples, with the same random augmentation: a member that was there from
the beginning, one that joined a moment ago, with or without processes that work ahead. So nothing is lost or
repeated when members come and go, and there is no position to save. `MapData` is for datasets with a length,
`StreamData` for those that can only be read from their beginning.
"""

import contextlib
import copy
import functools
import io
import itertools
import multiprocessing
import operator
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from holdfast.record.errors import InputError
from holdfast.run import kin
from holdfast.train import randomness
from holdfast.train.measures import FETCHING
from holdfast.train.sockets import network_sockets

EPOCHS_KEPT = 2
"""Orders kept in memory, 8 bytes a sample: a batch may straddle two epochs."""
_ORDER, _DRAWS = -2, -3
"""Lane numbers that no lane has: the seeds of what is drawn for data share nothing with the lanes' own."""

ONWARD_ONLY = False
"""Whether this process reads streams that cannot be sought in: another member's would have to be read from
their beginning."""

Collate = Callable[[list[Any]], Any]


class LaneOfStep(Protocol):
    """What data are asked for by: lane number `index` of `of`, in step `step`, the first of which is 1."""

    @property
    def step(self) -> int: ...

    @property
    def index(self) -> int: ...

    @property
    def of(self) -> int: ...


class _Key(NamedTuple):
    """The same as a value, which can be compared and sent to another process."""

    step: int
    lane: int
    lanes: int

    @classmethod
    def of(cls, lane: LaneOfStep) -> Self:
        return cls(lane.step, lane.index, lane.of)


# ---- datasets with a length ------------------------------------------------------------------------------


class MapData:
    """The batches of a dataset that has a length and can be read anywhere.

    All lanes of all steps take their samples from one endless row of epochs, each a permutation of the whole
    dataset: every sample is seen exactly once an epoch, whatever the members do, and a batch may straddle two
    epochs. workers: processes that fetch what this member is likely to need next. They are forked, because a
    process started otherwise would run the training script again; each lets go of the sockets it inherits,
    as a peer would otherwise take a dead member for alive, and dies with its parent. Close it, or use it as a
    context, to be rid of them early.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        workers: int = 0,
        collate: Collate | None = None,
    ) -> None:
        _check_batch_size(batch_size)
        if workers < 0:
            raise InputError(f"workers={workers} is not a number of processes.", hint="Take 0 or more.")
        order = _Order(_length(dataset), seed, shuffle)
        self._batches = _Batches(dataset, batch_size, order, seed, collate or default_collate)
        self._ahead = _Ahead(self._batches, workers) if workers else None

    def __call__(self, lane: LaneOfStep) -> Any:
        """The batch of this lane in this step."""
        key = _Key.of(lane)
        is_expected = self._ahead is not None and not getattr(lane, "is_again", False)
        with FETCHING:
            return self._ahead.take(key) if self._ahead and is_expected else self._batches[key]

    def indices(self, lane: LaneOfStep) -> list[int]:
        """Which samples these are."""
        return self._batches.indices(_Key.of(lane))

    def close(self) -> None:
        """End the processes that work ahead. Data can be asked for still, and are fetched when they are."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Order:
    """Which sample stands where in the endless row of epochs."""

    def __init__(self, length: int, seed: int, shuffle: bool) -> None:
        self._length = length
        self._seed = randomness.seed_of(seed, 0, _ORDER)
        self._shuffle = shuffle
        self._epochs: dict[int, torch.Tensor] = {}

    def samples(self, start: int, count: int) -> list[int]:
        """The samples at `count` places from `start` on."""
        found: list[int] = []
        while len(found) < count:
            epoch, first = divmod(start + len(found), self._length)
            last = min(first + count - len(found), self._length)
            found += self._permutation(epoch)[first:last].tolist() if self._shuffle else range(first, last)
        return found

    def _permutation(self, epoch: int) -> torch.Tensor:
        if epoch not in self._epochs:
            generator = torch.Generator().manual_seed(randomness.seed_of(self._seed, epoch, 0))
            self._epochs[epoch] = torch.randperm(self._length, generator=generator)
            for old in sorted(self._epochs, key=lambda known: abs(known - epoch))[EPOCHS_KEPT:]:
                del self._epochs[old]
        return self._epochs[epoch]


class _Batches(Dataset[Any]):
    """The batch of each key. Is all that a process that works ahead has of a `MapData`."""

    def __init__(self, dataset: Any, batch_size: int, order: _Order, seed: int, collate: Collate) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._order = order
        self._seed = seed
        self._collate = collate

    def indices(self, key: _Key) -> list[int]:
        start = ((key.step - 1) * key.lanes + key.lane) * self._batch_size
        return self._order.samples(start, self._batch_size)

    def __getitem__(self, key: _Key) -> Any:
        indices = self.indices(key)
        with _drawing(self._seed, key.step, key.lane):
            if hasattr(self._dataset, "__getitems__"):  # torch's way to fetch many at once
                return self._collate(self._dataset.__getitems__(indices))
            return self._collate([self._dataset[index] for index in indices])


class _Sequence:
    """What is expected to be asked for: the same lanes, step after step. Begins where it was last told to."""

    def __init__(self) -> None:
        self.first: _Key | None = None
        self.lanes: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[_Key]:
        first, lanes = self.first, self.lanes
        assert first is not None
        assert lanes
        for step in itertools.count(first.step):
            for lane in lanes:
                yield _Key(step, lane, first.lanes)


class _Ahead:
    """Fetches ahead, in other processes, the lanes that this member had in the last step.

    A guess costs nothing when it is wrong: what was not expected is fetched here and now.
    """

    def __init__(self, batches: _Batches, workers: int) -> None:
        self._batches = batches
        self._step = 0
        self._lanes: list[int] = []
        self._sequence = _Sequence()
        self._keys: Iterator[_Key] = iter(())
        self._items: Iterator[Any] = iter(())
        self._expected: _Key | None = None
        self._loader: DataLoader[Any] = DataLoader(
            batches,
            batch_size=None,
            sampler=self._sequence,
            num_workers=workers,
            collate_fn=_as_it_is,
            worker_init_fn=_start,
            multiprocessing_context="fork",
            generator=torch.Generator(),  # else every beginning would draw from the training script's own
            persistent_workers=True,
        )

    def take(self, key: _Key) -> Any:
        if self._expected is None and self._lanes and key.step == self._step + 1:
            self._begin(key)
        is_repeated = self._note(key)
        if key == self._expected:
            self._expected = None  # and so it stays where the dataset raises
            item = next(self._items)
            self._expected = next(self._keys)
            return item
        if not is_repeated:
            self._expected = None
        return self._batches[key]

    def _begin(self, key: _Key) -> None:
        """Let the processes begin at this step, with the lanes of the one before."""
        self._sequence.first, self._sequence.lanes = key, tuple(self._lanes)
        self._keys = iter(self._sequence)
        self._items = iter(self._loader)
        self._expected = next(self._keys)

    def close(self) -> None:
        # torch ends the processes when their iterator is collected, which the traceback of anything that the
        # dataset has raised may put off for long; there is no public way to have it done now.
        if isinstance(self._items, _MultiProcessingDataLoaderIter):
            self._items._shutdown_workers()

    def _note(self, key: _Key) -> bool:
        """Learn the lanes of the step; whether this one was asked for before, as when a step is begun again
        after a loss: then what was fetched ahead is still good for what comes after.
        """
        if key.step != self._step:
            self._step, self._lanes = key.step, [key.lane]
            return False
        is_repeated = key.lane in self._lanes
        if is_repeated and key.lane != self._lanes[-1]:
            self._lanes = []
        if key.lane not in self._lanes:
            self._lanes.append(key.lane)
        return is_repeated


def _as_it_is(item: Any) -> Any:
    return item


def _start(_: int) -> None:
    """What a process that works ahead does first: it must not be taken for the member it was forked from."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    kin.die_with(parent.pid)
    _let_go_of_connections()


def _let_go_of_connections() -> None:
    """Turn every inherited connection into nothing.

    A connection ends for the other side when its last holder is gone; peers see by that that a member is dead
    or has left a group, and must not wait for its data processes. The numbers stay taken, because objects
    that this process inherited still close them.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, _ in network_sockets():
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


# ---- datasets that are read from their beginning ---------------------------------------------------------


class StreamData:
    """The batches of data that can only be read one after the other.

    open_stream(lane, lanes, epoch) gives the samples of one lane from their beginning; what it gives in epoch
    0, 1, ... follow one another, so one that is endless is never asked for epoch 1. batch_size: so many
    samples are collated; without it a sample is a batch already. Streams stay open. A lane that comes here in
    the middle of a run is read from its beginning up to where it is, at the cost of reading it all; a stream
    with a method `seek(position)`, which makes sample number `position` the next one, is spared that, and has
    to be endless.

    A torch `IterableDataset` is accepted too: sample number i is lane i % lanes's. Every member then reads
    every sample, and throws away those of other members' lanes.
    """

    def __init__(
        self,
        source: Callable[[int, int, int], Iterable[Any]] | IterableDataset[Any],
        batch_size: int | None = None,
        *,
        seed: int = 0,
        collate: Collate | None = None,
    ) -> None:
        if batch_size is not None:
            _check_batch_size(batch_size)
        elif collate is not None:
            raise InputError("StreamData has a collate, and no batch_size.", hint="Give it a batch_size.")
        if not callable(source) and not isinstance(source, IterableDataset):
            raise InputError(
                f"StreamData was given a {type(source).__name__}, which it cannot open.",
                hint="Give it a function of (lane, lanes, epoch), or an IterableDataset; MapData takes "
                "datasets with a length.",
            )
        self._source = source
        self._batch_size = batch_size
        self._seed = seed
        self._collate = collate
        self._streams: dict[int, _Stream] = {}

    def __call__(self, lane: LaneOfStep) -> Any:
        """The batch of this lane in this step."""
        with FETCHING:
            return self._fetched(lane)

    def _fetched(self, lane: LaneOfStep) -> Any:
        source, size = self._source, self._batch_size or 1
        if isinstance(source, IterableDataset):
            # All lanes read alike, so that a dataset that shuffles by itself is shuffled alike for all.
            stream = self._stream(_EVERY_LANE, lambda _: source, size * lane.of)
            return self._batch(stream.samples(lane.step)[lane.index :: lane.of])
        open_epoch = functools.partial(source, lane.index, lane.of)
        return self._batch(self._stream(lane.index, open_epoch, size).samples(lane.step))

    def _stream(self, lane: int, open_epoch: Callable[[int], Iterable[Any]], size: int) -> "_Stream":
        if lane not in self._streams:
            self._streams[lane] = _Stream(lane, open_epoch, size, self._seed)
        return self._streams[lane]

    def _batch(self, samples: list[Any]) -> Any:
        if self._batch_size is not None and self._collate is None:
            return default_collate(samples)  # which copies
        # What is handed out may be changed in place, and the step be asked for again after a loss.
        samples = copy.deepcopy(samples)
        return samples[0] if self._collate is None else self._collate(samples)


_EVERY_LANE = -1


class _Stream:
    """One stream of samples with its position, read a step at a time."""

    def __init__(self, lane: int, open_epoch: Callable[[int], Iterable[Any]], size: int, seed: int) -> None:
        self._lane = lane
        self._open_epoch = open_epoch
        self._size = size
        self._seed = seed
        self._rewind()

    def _rewind(self) -> None:
        self._step = 0
        self._samples: list[Any] = []
        self._epoch = -1
        self._opened: Iterable[Any] = ()
        self._iterator: Iterator[Any] = iter(())

    def samples(self, step: int) -> list[Any]:
        """The samples of this step: the last ones once more, or further ones, or from the beginning again."""
        if step < self._step:
            self._rewind()
        while self._step < step:
            # What is only passed over is drawn for as well: what a stream does later may depend on it.
            with _drawing(self._seed, self._step + 1, self._lane):
                if not self._seek(step):
                    self._samples = [self._next() for _ in range(self._size)]
                    self._step += 1
        return self._samples

    def _seek(self, step: int) -> bool:
        """Skip to this step; False where it comes next, or the stream can only be read."""
        if step == self._step + 1:
            return False
        if self._epoch < 0:
            self._open()
        if not _can_seek(self._opened):
            return False
        self._opened.seek((step - 1) * self._size)  # type: ignore[attr-defined]
        self._iterator = iter(self._opened)
        self._step = step - 1
        return True

    def _next(self) -> Any:
        for sample in self._iterator:
            return sample
        self._open()
        for sample in self._iterator:
            return sample
        raise InputError(
            f"The stream of {self._name} is empty in epoch {self._epoch}.",
            hint="Every lane needs samples of its own in every epoch; an iterator cannot be read twice.",
        )

    def _open(self) -> None:
        if _can_seek(self._opened):
            raise InputError(
                f"The stream of {self._name} has seek(), and ended.",
                hint="A stream that can be sought in has to be endless: let it begin again by itself.",
            )
        global ONWARD_ONLY  # as FETCHING: a process is one member
        self._epoch += 1
        self._opened = self._open_epoch(self._epoch)
        ONWARD_ONLY |= self._lane != _EVERY_LANE and not _can_seek(self._opened)
        try:
            self._iterator = iter(self._opened)
        except TypeError:
            raise InputError(
                f"The stream of {self._name} is a {type(self._opened).__name__}, which cannot be read.",
                hint="The function given to StreamData returns an iterable of samples.",
            ) from None

    @property
    def _name(self) -> str:
        return "the dataset" if self._lane == _EVERY_LANE else f"lane {self._lane}"


def _can_seek(opened: object) -> bool:
    """A file has a seek() too, which counts bytes and not samples."""
    return callable(getattr(opened, "seek", None)) and not isinstance(opened, io.IOBase)


# ---- what both need --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _drawing(seed: int, step: int, lane: int) -> Iterator[None]:
    """Random numbers for the samples of this lane and step; afterwards the generators are as they were.

    On the CPU: where samples are made is not where the model runs, and its generators are left alone.
    """
    numpy = sys.modules.get("numpy")
    before = random.getstate(), torch.default_generator.get_state(), numpy and numpy.random.get_state()
    randomness.seed_host(randomness.seed_of(randomness.seed_of(seed, 0, _DRAWS), step, lane))
    try:
        yield
    finally:
        random.setstate(before[0])
        torch.default_generator.set_state(before[1])
        if numpy:
            numpy.random.set_state(before[2])


def whole(name: str, value: int) -> int:
    """The number that a script gave under this name."""
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(
            f"{name}={value!r} is a {type(value).__name__}.", hint="Give it a whole number."
        ) from None


def _check_batch_size(batch_size: int) -> None:
    if whole("batch_size", batch_size) < 1:
        raise InputError(f"batch_size={batch_size} is not a number of samples.", hint="Take 1 or more.")


def _length(dataset: Any) -> int:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError(
            f"MapData was given a {type(dataset).__name__}, which has no length or cannot be indexed.",
            hint="StreamData takes data that can only be read from their beginning.",
        )
    length = len(dataset)
    if not length:
        raise InputError("The dataset is empty.", hint="Check where it looks for its samples.")
    return length
