import io
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples, sampled
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from waiting import is_alive, until

from holdfast.record.errors import InputError
from holdfast.train.data import MapData, StreamData

# From Python 3.12 on; `MapData` says why the fetching processes are forked all the same.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

WORKERS = min(2, len(os.sched_getaffinity(0)))
"""torch warns of more processes than cores, and warnings are errors."""
SAMPLE_S = 270
GONE_S_MAX = SAMPLE_S / 3
"""DataLoader's own processes look for their parent between two samples."""


@dataclass(frozen=True)
class At:
    step: int
    index: int
    of: int


class Noisy(Dataset[torch.Tensor]):
    """Samples with their number and three augmentations, one from each generator that a dataset may use."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, torch.rand(()).item(), random.random(), np.random.random()])


class Counting(Noisy):
    """Notes which samples were fetched in this process."""

    def __init__(self) -> None:
        self.fetched: list[int] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        self.fetched.append(index)
        return super().__getitem__(index)


def children() -> set[int | None]:
    return {child.pid for child in multiprocessing.active_children()}


def steps_of(
    data: Callable[[At], torch.Tensor], dealt: list[list[int]], lanes: int
) -> dict[tuple[int, int], torch.Tensor]:
    return {(step, lane): data(At(step, lane, lanes)) for step, own in enumerate(dealt, 1) for lane in own}


def assert_same(
    left: dict[tuple[int, int], torch.Tensor], right: dict[tuple[int, int], torch.Tensor]
) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)


# ---- datasets with a length ------------------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(
    length=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    lanes=st.sampled_from([1, 2, 8]),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64),
)
def test_every_sample_is_seen_exactly_once_an_epoch(
    length: int, batch_size: int, lanes: int, shuffle: bool, seed: int
) -> None:
    data = MapData(range(length), batch_size, seed=seed, shuffle=shuffle)
    row: list[int] = []
    step = 0
    while len(row) < 3 * length:
        step += 1
        for lane in range(lanes):
            row += data.indices(At(step, lane, lanes))
    for epoch in range(3):
        assert sorted(row[epoch * length : (epoch + 1) * length]) == list(range(length))
    if not shuffle:
        assert row[:length] == list(range(length))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return MapData(range(100), 100, seed=seed).indices(At(epoch + 1, 0, 1))

    orders = [order(seed, epoch) for seed in range(3) for epoch in range(3)]
    assert len({tuple(found) for found in orders}) == 9
    assert order(1, 2) == order(1, 2)


def test_a_batch_is_what_the_dataset_has_at_its_indices() -> None:
    dataset = TensorDataset(torch.arange(40).reshape(20, 2), torch.arange(20))
    data = MapData(dataset, 3, seed=5)
    for lane in (At(1, 0, 4), At(2, 3, 4), At(90, 1, 4)):
        values, numbers = data(lane)
        assert numbers.tolist() == data.indices(lane)
        assert values.tolist() == [[2 * i, 2 * i + 1] for i in data.indices(lane)]


def test_samples_are_collated_and_fetched_together_where_the_user_says_how() -> None:
    class Together:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            raise AssertionError("fetched one by one")

        def __getitems__(self, indices: list[int]) -> list[int]:
            return [10 * index for index in indices]

    assert MapData(Together(), 4, shuffle=False, collate=tuple)(At(1, 1, 2)) == (40, 50, 0, 10)


def test_the_same_batches_with_and_without_processes_for_any_deal() -> None:
    """Lanes move, a step is begun again after a loss, a member joins late: always the same bits."""
    alone = steps_of(MapData(Noisy(), 4, seed=3), [[0, 1, 2, 3, 4, 5, 6, 7]] * 12, 8)
    asked = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (4, 0)]
    asked += [(4, 0), (4, 1), (4, 2), (4, 3), (5, 0), (5, 1), (5, 2), (5, 3), (6, 0), (6, 1), (6, 2), (6, 3)]
    asked += [(6, 0), (6, 1), (6, 2), (6, 3), (7, 0), (7, 1), (8, 0), (8, 0), (8, 1), (9, 0), (9, 1)]
    asked += [(11, 7), (12, 7)]
    with MapData(Noisy(), 4, seed=3, workers=WORKERS) as data:
        for step, lane in asked:
            assert torch.equal(data(At(step, lane, 8)), alone[step, lane]), (step, lane)
    assert len({tuple(batch[:, 1].tolist()) for batch in alone.values()}) == len(alone)  # all drawn anew


@settings(max_examples=examples(15), deadline=None)
@given(dealt=st.lists(st.sets(st.integers(0, 3), min_size=1).map(sorted), min_size=1, max_size=8))
def test_any_deal_of_lanes_gives_the_same_batches(dealt: list[list[int]]) -> None:
    with MapData(Noisy(), 3, seed=1, workers=1) as data:
        assert_same(steps_of(data, dealt, 4), steps_of(MapData(Noisy(), 3, seed=1), dealt, 4))


def test_what_is_expected_comes_from_the_processes() -> None:
    dataset = Counting()
    with MapData(dataset, 2, workers=1) as data:
        steps_of(data, [[4, 5]] * 6, 8)
        first_step = data.indices(At(1, 4, 8)) + data.indices(At(1, 5, 8))
    assert dataset.fetched == first_step


def test_a_step_that_is_begun_again_does_not_lose_what_was_fetched_ahead() -> None:
    dataset = Counting()
    with MapData(dataset, 2, workers=1) as data:
        steps_of(data, [[4, 5]] * 3, 8)
        dataset.fetched.clear()
        for step in (3, 4, 5):
            for lane in (4, 5):
                data(At(step, lane, 8))
        assert dataset.fetched == data.indices(At(3, 4, 8)) + data.indices(At(3, 5, 8))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_training_scripts_own_random_numbers_are_left_alone(workers: int) -> None:
    def drawn() -> tuple[float, float, float]:
        return torch.rand(()).item(), random.random(), float(np.random.random())

    def seed() -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)

    seed()
    expected = drawn()
    with MapData(Noisy(), 4, workers=workers) as data:
        seed()
        steps_of(data, [[0, 1], [0, 1], [2], [2]], 4)
        assert drawn() == expected


def test_a_dataset_that_raises_is_heard_and_the_next_batch_is_right() -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index in bad:
                raise LookupError("sample cannot be read")
            return super().__getitem__(index)

    bad = set(MapData(Noisy(), 1).indices(At(3, 0, 1)))
    sound = MapData(Noisy(), 1)
    before = children()
    with MapData(Broken(), 1, workers=1) as data:
        steps_of(data, [[0], [0]], 1)
        for _ in range(2):
            with pytest.raises(LookupError, match="sample cannot be read") as caught:
                data(At(3, 0, 1))
        for step in (4, 5, 6):
            assert torch.equal(data(At(step, 0, 1)), sound(At(step, 0, 1)))
        started = children() - before
        data.close()
    assert started
    assert not children() & started, caught.traceback  # the traceback keeps everything alive


@pytest.mark.parametrize("way", ["close", "context", "drop"])
def test_no_process_outlives_the_data(way: str) -> None:
    before = children()
    data: MapData | None = MapData(Noisy(), 4, workers=WORKERS)
    assert data is not None
    steps_of(data, [[0]] * 3, 2)
    started = children() - before
    assert len(started) == WORKERS
    if way == "close":
        data.close()
        assert torch.equal(data(At(4, 0, 2)), MapData(Noisy(), 4)(At(4, 0, 2)))
    elif way == "context":
        with data:
            pass
    else:
        data = None
    assert not children() & started


MEMBER = """
import os, signal, socket, sys, time
from typing import NamedTuple
from holdfast.train.data import MapData

class At(NamedTuple):
    step: int
    index: int
    of: int

def busy(samples):
    time.sleep({sample_s} if samples[0] >= 6 else 0)
    return samples

peer = socket.create_connection(("127.0.0.1", {port}))
data = MapData(range(100), 2, shuffle=False, workers={workers}, collate=busy)
for step in range(1, 4):
    data(At(step, 0, 1))
import multiprocessing
print(*[child.pid for child in multiprocessing.active_children()], flush=True)
if {closes}:
    peer.close()
    sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("closes", sampled([False, True], [True]))
def test_a_member_that_dies_or_hangs_up_is_seen_to_at_once(closes: bool) -> None:
    """Its processes keep neither the connection nor themselves alive, even in the middle of a sample."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = MEMBER.format(
            port=server.getsockname()[1], workers=WORKERS, closes=closes, sample_s=SAMPLE_S
        )
        member = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with member, server.accept()[0] as connection:
            connection.settimeout(60)
            assert member.stdout is not None
            workers = [int(pid) for pid in member.stdout.readline().split()]
            assert len(workers) == WORKERS
            connection.settimeout(GONE_S_MAX)
            assert connection.recv(1) == b""
            if closes:
                assert all(map(is_alive, workers))
                member.communicate("now\n")
            assert member.wait(GONE_S_MAX) == -signal.SIGKILL
            until(lambda: not any(map(is_alive, workers)), wait_s=GONE_S_MAX)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda: MapData([], 4), "empty"),
        (lambda: MapData(range(3), 0), "batch_size=0"),
        (lambda: MapData(range(3), 1, workers=-1), "workers=-1"),
        (lambda: MapData(iter([1]), 1), "no length"),
        (lambda: MapData({1, 2}, 1), "cannot be indexed"),
        (lambda: MapData(Numbers(3), 1), "no length"),
        (lambda: StreamData(Numbers(3), 0), "batch_size=0"),
        (lambda: StreamData(Numbers(3), collate=tuple), "no batch_size"),
        (lambda: StreamData([1, 2, 3]), "cannot open"),  # type: ignore[arg-type]
        (lambda: StreamData(lambda lane, lanes, epoch: [], 2)(At(1, 0, 1)), "lane 0 is empty in epoch 0"),
        (lambda: StreamData(lambda lane, lanes, epoch: 7, 2)(At(1, 3, 4)), "lane 3 is a int"),  # type: ignore[arg-type,return-value]
        (lambda: StreamData(Numbers(0))(At(1, 0, 1)), "the dataset is empty"),
    ],
)
def test_mistakes_are_told_in_one_sentence(mistake: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        mistake()
    assert caught.value.hint


# ---- streams ---------------------------------------------------------------------------------------------


class Numbers(IterableDataset[int]):
    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._length))


class Opened:
    """A source of streams that counts how often it is opened, and how many samples are read."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.opened: list[tuple[int, int, int]] = []
        self.samples_read = 0

    def __call__(self, lane: int, lanes: int, epoch: int) -> Iterable[tuple[int, int, int]]:
        self.opened.append((lane, lanes, epoch))
        for number in range(self._length):
            self.samples_read += 1
            yield lane, epoch, number


class Endless:
    """A stream with seek()."""

    def __init__(self) -> None:
        self.sought: list[int] = []
        self._position = 0

    def seek(self, position: int) -> None:
        self.sought.append(position)
        self._position = position

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self._position
            self._position += 1


def test_a_lane_reads_its_own_stream_and_begins_again_at_its_end() -> None:
    source = Opened(5)
    data = StreamData(source, 2, collate=list)
    read = [data(At(step, 3, 4)) for step in range(1, 6)]
    samples = [sample for batch in read for sample in batch]
    assert samples == [(3, epoch, number) for epoch in range(2) for number in range(5)]
    assert source.opened == [(3, 4, 0), (3, 4, 1)]
    assert source.samples_read == 10


def test_without_a_batch_size_a_sample_is_a_batch() -> None:
    data = StreamData(lambda lane, lanes, epoch: iter([torch.ones(2), torch.zeros(2)]))
    assert data(At(2, 0, 1)).tolist() == [0, 0]


@settings(max_examples=examples(40))
@given(
    length=st.integers(1, 7),
    asked=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=12),
)
def test_a_lane_that_moves_is_read_forward_or_from_its_beginning(
    length: int, asked: list[tuple[int, int]]
) -> None:
    data = StreamData(Opened(length), 2, collate=list)
    for step, lane in asked:
        expected = [(lane, place // length, place % length) for place in (2 * step - 2, 2 * step - 1)]
        assert data(At(step, lane, 4)) == expected


def test_a_step_that_is_begun_again_is_not_read_again_and_is_as_it_was() -> None:
    source = Opened(10)
    data = StreamData(lambda lane, lanes, epoch: ([sample] for sample in source(lane, lanes, epoch)))
    data(At(1, 0, 1))
    for _ in range(3):
        batch = data(At(2, 0, 1))
        assert batch == [(0, 0, 1)]
        batch.append("changed in place")
    assert source.samples_read == 2


def test_a_stream_with_seek_is_spared_the_reading() -> None:
    stream = Endless()
    data = StreamData(lambda lane, lanes, epoch: stream, 3, collate=list)
    assert data(At(1_000_001, 0, 1)) == [3_000_000, 3_000_001, 3_000_002]
    assert data(At(1_000_002, 0, 1)) == [3_000_003, 3_000_004, 3_000_005]
    assert data(At(2_000_001, 0, 1)) == [6_000_000, 6_000_001, 6_000_002]
    assert stream.sought == [3_000_000, 6_000_000]


def test_a_stream_with_seek_may_not_end() -> None:
    class Finite(Endless):
        def __iter__(self) -> Iterator[int]:
            return iter(range(self._position, 4))

    data = StreamData(lambda lane, lanes, epoch: Finite(), 3, collate=list)
    assert data(At(1, 0, 1)) == [0, 1, 2]
    with pytest.raises(InputError, match="ended"):
        data(At(2, 0, 1))


def test_a_file_is_read_by_lines_and_not_sought_in_by_bytes() -> None:
    data = StreamData(lambda lane, lanes, epoch: io.StringIO("a\nb\nc\nd\n"))
    assert data(At(3, 0, 1)) == "c\n"
    assert data(At(6, 0, 1)) == "b\n"


def test_an_iterable_dataset_is_dealt_out_sample_by_sample() -> None:
    data = StreamData(Numbers(10), 2, collate=list)
    read = [data(At(step, lane, 4)) for step in (1, 2) for lane in range(4)]
    assert read == [[0, 4], [1, 5], [2, 6], [3, 7], [8, 2], [9, 3], [0, 4], [1, 5]]
    assert StreamData(Numbers(10), 2)(At(2, 1, 4)).tolist() == [9, 3]


def test_a_stream_that_shuffles_by_itself_is_shuffled_alike_on_every_member() -> None:
    class Shuffled(IterableDataset[int]):
        """Keeps a few samples back and draws from those, as shuffling buffers do."""

        def __iter__(self) -> Iterator[int]:
            kept: list[int] = []
            for number in range(24):
                kept.append(number)
                if len(kept) == 5:
                    yield kept.pop(random.randrange(5))
            yield from kept

    early, late = (
        StreamData(Shuffled(), 3, seed=2, collate=list),
        StreamData(Shuffled(), 3, seed=2, collate=list),
    )
    steps = {step: [early(At(step, lane, 2)) for lane in range(2)] for step in range(1, 9)}
    assert [late(At(7, lane, 2)) for lane in range(2)] == steps[7]
    assert [late(At(3, lane, 2)) for lane in (1, 0)] == steps[3][::-1]
    first_epoch = [number for step in range(1, 5) for batch in steps[step] for number in batch]
    assert sorted(first_epoch) == list(range(24))
    assert first_epoch != sorted(first_epoch)
