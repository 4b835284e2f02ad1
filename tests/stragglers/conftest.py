"""Made-up jobs whose steps are worked out operation by operation, in another way than the product does it."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from holdfast.stragglers.trace import Trace, from_columns

Row = dict[str, Any]
Compute = tuple[str, int, int]
"""Direction, chunk on the stage, microbatch."""

TRANSFER_S = 0.01
GATHER_S, LAYERNORM_S, EMBEDDING_S, SCATTER_S, CLIP_S, OPTIMIZER_S = 0.05, 0.01, 0.02, 0.06, 0.004, 0.03


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """slow: how many times as long as usual the computations of a worker (dp_rank, stage) take.

    varies: the same for a step, data-parallel rank and microbatch.
    """

    dp: int = 2
    pp: int = 2
    microbatches: int = 4
    chunks: int = 1
    steps: int = 2
    forward_s: float = 0.1
    backward_s: float = 0.2
    slow: Mapping[tuple[int, int], float] = {}
    varies: Mapping[tuple[int, int, int], float] = {}

    def rows(self) -> list[Row]:
        return [row for step in range(self.steps) for row in _Step(self, step).rows()]

    def trace(self) -> Trace:
        return trace_of(self.rows())


def order(job: Job, stage: int) -> list[Compute]:
    """What a stage computes one after another: one forward, one backward, after a few forwards to fill it."""
    total = job.microbatches * job.chunks
    group = job.pp * job.chunks

    def forward(number: int) -> Compute:
        return "forward", number // job.pp % job.chunks, number // group * job.pp + number % job.pp

    def backward(number: int) -> Compute:
        _, chunk, microbatch = forward(number)
        return "backward", job.chunks - 1 - chunk, microbatch

    if job.chunks == 1:
        ahead = min(total, job.pp - stage - 1)
        forwards = [("forward", 0, number) for number in range(total)]
        backwards = [("backward", 0, number) for number in range(total)]
    else:
        ahead = min(total, 2 * (job.pp - stage - 1) + (job.chunks - 1) * job.pp)
        forwards, backwards = [forward(n) for n in range(total)], [backward(n) for n in range(total)]
    steady = [one for pair in zip(forwards[ahead:], backwards, strict=False) for one in pair]
    return [*forwards[:ahead], *steady, *backwards[total - ahead :]]


class _Step:
    """Starts and ends of one step, each from what it waits for."""

    def __init__(self, job: Job, step: int) -> None:
        self.job, self.step = job, step
        self.orders = [order(job, stage) for stage in range(job.pp)]
        self.last = job.pp * job.chunks - 1
        self.computed = cache(self._computed)
        self.launched = cache(self._launched)
        self.tail_start = cache(self._tail_start)

    def duration_s(self, dp: int, stage: int, one: Compute) -> float:
        usual = self.job.forward_s if one[0] == "forward" else self.job.backward_s
        varied = self.job.varies.get((self.step, dp, one[2]), 1.0)
        return usual / self.job.chunks * varied * self.job.slow.get((dp, stage), 1.0)

    def peer(self, stage: int, one: Compute, end: str) -> tuple[int, Compute] | None:
        """Where the data come from or go to."""
        direction, chunk, microbatch = one
        place = chunk * self.job.pp + stage + (1 if (direction == "forward") == (end == "send") else -1)
        if not 0 <= place <= self.last:
            return None
        return place % self.job.pp, (direction, place // self.job.pp, microbatch)

    def alike(self, stage: int, direction: str, end: str) -> list[Compute]:
        """The transfers of one kind of a stage, in order."""
        return [one for one in self.orders[stage] if one[0] == direction and self.peer(stage, one, end)]

    def _computed(self, dp: int, stage: int, one: Compute) -> float:
        """When it ends."""
        mine = self.orders[stage]
        at = mine.index(one)
        starts = self.computed(dp, stage, mine[at - 1]) if at else 0.0
        if self.peer(stage, one, "recv"):
            starts = max(starts, self.arrived(dp, stage, one, "recv"))
        if one[0] == "forward" and one == next(c for c in mine if c[:2] == one[:2]):
            starts = max(starts, GATHER_S * (one[1] + 1))
        return starts + self.duration_s(dp, stage, one)

    def _launched(self, dp: int, stage: int, one: Compute, end: str) -> float:
        """When a stage is ready to send or to receive."""
        mine = self.orders[stage]
        alike = self.alike(stage, one[0], end)
        at = alike.index(one)
        ready = [self.arrived(dp, stage, alike[at - 1], end)] if at else [0.0]
        if end == "send":
            ready.append(self.computed(dp, stage, one))
        else:
            before = [other for other in mine[: mine.index(one)] if other[0] == one[0]]
            ready += [self.computed(dp, stage, before[-1])] if before else []
        first = next(number for number, other in enumerate(mine) if other[0] == "backward")
        if one[0] == "backward" and at == 0 and first >= 2:
            ready.append(self.computed(dp, stage, mine[first - 2]))
        return max(ready)

    def arrived(self, dp: int, stage: int, one: Compute, end: str) -> float:
        found = self.peer(stage, one, end)
        assert found is not None
        there = self.launched(dp, *found, "recv" if end == "send" else "send")
        return max(there, self.launched(dp, stage, one, end)) + TRANSFER_S

    def _tail_start(self, dp: int, stage: int) -> float:
        return max(self.computed(dp, stage, one) for one in self.orders[stage])

    def rows(self) -> list[Row]:
        job = self.job
        places = [(dp, stage) for dp in range(job.dp) for stage in range(job.pp)]
        rows = [row for place in places for row in (*self._gathers(*place), *self._work(*place))]
        at = {place: self.tail_start(*place) for place in places}
        tails: list[tuple[str, float, Callable[[int, int], object]]] = [
            ("gc", 0.0, lambda dp, stage: (dp, stage)),
            ("layernorm-grads-all-reduce", LAYERNORM_S, lambda dp, stage: (dp, stage)),
            ("embedding-grads-all-reduce", EMBEDDING_S, lambda dp, stage: dp),
            ("grads-reduce-scatter", SCATTER_S, lambda dp, stage: stage),
            ("optimizer-clip-main-grad", CLIP_S, lambda dp, stage: 0),
            ("optimizer", OPTIMIZER_S, lambda dp, stage: (dp, stage)),
        ]
        for kind, duration, meets in tails:
            taking = [p for p in places if kind != "embedding-grads-all-reduce" or p[1] in (0, job.pp - 1)]
            ends = {
                place: max(at[other] for other in taking if meets(*other) == meets(*place)) + duration
                for place in taking
            }
            chunk = 0 if kind == "grads-reduce-scatter" else -1
            rows += [self._row(*place, kind, at[place], ends[place], mc=chunk) for place in taking]
            at |= ends
        return rows

    def _gathers(self, dp: int, stage: int) -> list[Row]:
        """One after another; no worker waits for another there."""
        return [
            self._row(dp, stage, "params-all-gather", GATHER_S * n, GATHER_S * (n + 1), seq=n, mc=n)
            for n in range(self.job.chunks)
        ]

    def _work(self, dp: int, stage: int) -> list[Row]:
        rows = []
        for direction in ("forward", "backward"):
            mine = [one for one in self.orders[stage] if one[0] == direction]
            for number, one in enumerate(mine):
                end = self.computed(dp, stage, one)
                begin = end - self.duration_s(dp, stage, one)
                place = {"mc": one[1], "gmc": one[1] * self.job.pp + stage, "mb": one[2]}
                rows.append(self._row(dp, stage, f"{direction}-compute", begin, end, seq=number, **place))
            for kind in ("send", "recv"):
                for number, one in enumerate(self.alike(stage, direction, kind)):
                    begin = self.launched(dp, stage, one, kind)
                    end = self.arrived(dp, stage, one, kind)
                    rows.append(self._row(dp, stage, f"{direction}-{kind}", begin, end, seq=number))
        return rows

    def _row(
        self,
        dp: int,
        stage: int,
        kind: str,
        begin: float,
        end: float,
        *,
        seq: int = 0,
        mc: int = -1,
        gmc: int = -1,
        mb: int = -1,
    ) -> Row:
        return {
            "dp_rank": dp,
            "stage": stage,
            "rank": stage * self.job.dp + dp,
            "step": self.step,
            "optype": kind,
            "start_ts": begin,
            "duration": end - begin,
            "seq_id": seq,
            "mc": mc,
            "mb_id": mb,
            "gmc": gmc,
        }


def trace_of(rows: list[Row]) -> Trace:
    kinds = sorted({row["optype"] for row in rows})
    names = ("step", "dp_rank", "stage", "rank", "seq_id", "mc", "gmc", "mb_id", "start_ts", "duration")
    columns = {name: np.array([row[name] for row in rows]) for name in names}
    return from_columns(kinds, {"kind": np.array([kinds.index(row["optype"]) for row in rows]), **columns})


@pytest.fixture(scope="session")
def published() -> Path:
    """The published traces and their analysis."""
    return Path(__file__).parents[1] / "data" / "straggler"


@pytest.fixture(scope="session")
def job() -> type[Job]:
    return Job


@pytest.fixture(scope="session")
def traced() -> Callable[[list[Row]], Trace]:
    return trace_of
