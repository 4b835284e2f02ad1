"""Data by (step, lane): the samples of a lane in a step depend only on these two and on a seed.

Every member that computes a lane gets the same samples with the same random augmentation, whether it has been
there from the beginning or joined a moment ago, with or without processes that fetch ahead. So nothing is
lost or repeated when members come and go, and there is no position to save. `MapData` is for datasets with a
length, `StreamData` for those that can only be read from their beginning.
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
"""How many permutations are kept in memory, at 8 bytes a sample: a batch may straddle two epochs."""
_ORDER, _DRAWS = -2, -3
"""Lane numbers that no lane has, so that the seeds for data differ from those of all lanes."""

ONWARD_ONLY = False
"""Whether this process reads streams without seek(). Another member's lane would then have to be read from
its beginning.
"""

Collate = Callable[[list[Any]], Any]


class LaneOfStep(Protocol):
    """The key of a batch: lane number `index` of `of`, in step `step`; steps count from 1."""

    @property
    def step(self) -> int: ...

    @property
    def index(self) -> int: ...

    @property
    def of(self) -> int: ...


class _Key(NamedTuple):
    """The key of a batch as a value that can be compared and sent to another process."""

    step: int
    lane: int
    lanes: int

    @classmethod
    def of(cls, lane: LaneOfStep) -> Self:
        return cls(lane.step, lane.index, lane.of)


# ---- datasets with a length ------------------------------------------------------------------------------


class MapData:
    """The batches of a dataset that has a length and random access.

    All lanes of all steps take their samples from one endless row of epochs. Each epoch is a permutation of
    the whole dataset: every sample is seen exactly once an epoch, whatever the members do, and a batch may
    straddle two epochs. workers: processes that fetch what this member is likely to need next. They are
    forked, because a process started otherwise would run the training script again. Each closes the sockets
    it inherits, because a peer would otherwise take a dead member for alive, and dies with its parent. Close
    the object, or use it as a context manager, to end them early.
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
        """The indices of this lane's samples in this step."""
        return self._batches.indices(_Key.of(lane))

    def close(self) -> None:
        """End the processes that fetch ahead. Batches are still available, and are fetched on request."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Order:
    """The order of samples in the endless row of epochs."""

    def __init__(self, length: int, seed: int, shuffle: bool) -> None:
        self._length = length
        self._seed = randomness.seed_of(seed, 0, _ORDER)
        self._shuffle = shuffle
        self._epochs: dict[int, torch.Tensor] = {}

    def samples(self, start: int, count: int) -> list[int]:
        """The samples at `count` positions from `start` on."""
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
    """The batch of each key. A process that fetches ahead has only this part of a `MapData`."""

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
    """The keys expected next: the same lanes, step after step, beginning at `first`."""

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

    A wrong guess costs nothing: a batch that was not expected is fetched here and now.
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
            generator=torch.Generator(),  # else every iterator would draw from the script's generator
            persistent_workers=True,
        )

    def take(self, key: _Key) -> Any:
        if self._expected is None and self._lanes and key.step == self._step + 1:
            self._begin(key)
        is_repeated = self._note(key)
        if key == self._expected:
            self._expected = None  # stays None if the dataset raises
            item = next(self._items)
            self._expected = next(self._keys)
            return item
        if not is_repeated:
            self._expected = None
        return self._batches[key]

    def _begin(self, key: _Key) -> None:
        """Let the processes begin at this step, with the lanes of the previous one."""
        self._sequence.first, self._sequence.lanes = key, tuple(self._lanes)
        self._keys = iter(self._sequence)
        self._items = iter(self._loader)
        self._expected = next(self._keys)

    def close(self) -> None:
        # torch ends the processes when their iterator is collected. The traceback of an exception from the
        # dataset may delay that for long, and there is no public way to end them now.
        if isinstance(self._items, _MultiProcessingDataLoaderIter):
            self._items._shutdown_workers()

    def _note(self, key: _Key) -> bool:
        """Learn the lanes of the step. Returns whether this lane was requested before, as when a step is
        begun again after a loss: the batches fetched ahead are then still valid for the steps that follow.
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
    """Set up a process that fetches ahead: it must not be taken for the member it was forked from."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    kin.die_with(parent.pid)
    _let_go_of_connections()


def _let_go_of_connections() -> None:
    """Replace every inherited connection by /dev/null.

    A connection ends for the other side when its last holder is gone. Peers thereby see that a member is dead
    or has left a group, and must not wait for its data processes. The descriptors stay open, because objects
    that this process inherited still close them.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, _ in network_sockets():
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


# ---- datasets that are read from their beginning ---------------------------------------------------------


class StreamData:
    """The batches of data that can only be read one after the other.

    open_stream(lane, lanes, epoch) returns the samples of one lane from their beginning. The samples of
    epochs 0, 1, ... follow one another, so an endless stream is never asked for epoch 1. batch_size: how many
    samples are collated; without it each sample is a batch already. Streams stay open. A lane that comes here
    in the middle of a run is read from its beginning to its position, at the cost of reading it all. A stream
    with a method `seek(position)`, which makes sample number `position` the next one, avoids that, and must
    be endless.

    A torch `IterableDataset` is accepted too: sample number i belongs to lane i % lanes. Every member then
    reads every sample, and discards those of other members' lanes.
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
            raise InputError("StreamData has a collate but no batch_size.", hint="Give it a batch_size.")
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
            # All lanes read the same stream, so that a dataset that shuffles by itself is shuffled alike for
            # all.
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
        # The script may change a batch in place, and the step may be requested again after a loss.
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
        """The samples of this step: the last ones again, the next ones, or after a rewind those of an earlier
        step.
        """
        if step < self._step:
            self._rewind()
        while self._step < step:
            # Skipped samples draw random numbers as well: what a stream does later may depend on them.
            with _drawing(self._seed, self._step + 1, self._lane):
                if not self._seek(step):
                    self._samples = [self._next() for _ in range(self._size)]
                    self._step += 1
        return self._samples

    def _seek(self, step: int) -> bool:
        """Skip to this step. False if it comes next anyway, or if the stream cannot seek."""
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
                f"The stream of {self._name} has seek(), but ended.",
                hint="A stream with seek() must be endless: let it begin again by itself.",
            )
        global ONWARD_ONLY  # a global like FETCHING, because a process is one member
        self._epoch += 1
        self._opened = self._open_epoch(self._epoch)
        ONWARD_ONLY |= self._lane != _EVERY_LANE and not _can_seek(self._opened)
        try:
            self._iterator = iter(self._opened)
        except TypeError:
            raise InputError(
                f"The stream of {self._name} is a {type(self._opened).__name__}, which is not iterable.",
                hint="The function given to StreamData must return an iterable of samples.",
            ) from None

    @property
    def _name(self) -> str:
        return "the dataset" if self._lane == _EVERY_LANE else f"lane {self._lane}"


def _can_seek(opened: object) -> bool:
    """Whether it can seek by samples. A file has a seek() too, which counts bytes."""
    return callable(getattr(opened, "seek", None)) and not isinstance(opened, io.IOBase)


# ---- shared by both --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _drawing(seed: int, step: int, lane: int) -> Iterator[None]:
    """Seed the random numbers for the samples of this lane and step; restore the generators afterwards.

    Only the CPU's generators: samples are made on the host, and the generators of the model's device are left
    alone.
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
    """The whole number that a script gave under this name, or `InputError`."""
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(
            f"{name}={value!r} is a {type(value).__name__}.", hint="Give a whole number."
        ) from None


def _check_batch_size(batch_size: int) -> None:
    if whole("batch_size", batch_size) < 1:
        raise InputError(f"batch_size={batch_size} is not a number of samples.", hint="Take 1 or more.")


def _length(dataset: Any) -> int:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError(
            f"MapData was given a {type(dataset).__name__}, which has no length or cannot be indexed.",
            hint="For data that can only be read from the beginning, use StreamData.",
        )
    length = len(dataset)
    if not length:
        raise InputError("The dataset is empty.", hint="Check where it looks for its samples.")
    return length
