"""Where a member's time goes: divided completely, and attributed to the right member in a live run."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from waiting import WAIT_S, until

from holdfast.train.group import Sending
from holdfast.train.measures import (
    FETCHING,
    SAMPLE_INTERVAL_S,
    Collections,
    HostWatch,
    Measures,
    OfLanes,
    Stopwatch,
)

pytestmark = pytest.mark.slow

STEPS_MIN = 20
"""How many steps a member measures before the test looks."""
DATA_S, SLOW_S, GARBAGE_S = 0.03, 0.15, 0.01

SCRIPT = f"""
import atexit, gc, sys, time
import torch
import holdfast.train as hf
from holdfast.train.data import MapData

class Slow(list):
    def __getitem__(self, index):
        time.sleep({DATA_S})
        return torch.full((4,), float(index))

atexit.register(lambda: print("left", file=sys.stderr))

with hf.join() as run:
    model = torch.nn.Linear(4, 4)
    state = run.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), lanes=2, seed=1)
    data = MapData(Slow(range(64)), batch_size=1)
    gc.freeze()
    kept = [[] for _ in range(20_000)]  # collecting takes about a millisecond; telling of it, a microsecond
    for step in state.steps(1_000_000):
        for lane in step.lanes:
            if run.member == "n1.0":
                time.sleep({SLOW_S})
            if run.member == "n0.0":
                collecting_s = 0.0  # and not the time in between, of which a busy machine makes most
                while collecting_s < {GARBAGE_S}:
                    begun_s = time.perf_counter()
                    gc.collect()
                    collecting_s += time.perf_counter() - begun_s
            lane.backward(model(data(lane)).square().mean())
        step.commit()
"""

seconds = st.floats(0.0, 10.0)


class Hand:
    """A watch that the test sets."""

    def __init__(self, *, is_prompt: bool = True) -> None:
        self.now_s = 0.0
        self.is_prompt = is_prompt

    def mark(self) -> float:
        return self.now_s

    def seconds(self, since: float, until: float) -> float:
        return until - since


@pytest.fixture
def measures() -> Iterator[Measures]:
    measures = Measures(HostWatch(), Collections())
    yield measures
    measures.close()


def stepped(hands: list[Hand], members: list[Measures], lanes_s: list[float], exchange_s: float) -> None:
    """One step of all members: each computes this long, and the reduction begins when the last is through."""
    for hand, member, lane_s in zip(hands, members, lanes_s, strict=True):
        hand.now_s += lane_s
        member.arrived()
    told = [member.told() for member in members]
    latest = max(through for through, _ in told), max(sending for _, sending in told)
    end_s = max(hand.now_s for hand in hands) + exchange_s
    for hand, member in zip(hands, members, strict=True):
        hand.now_s = end_s
        member.reduced(latest)


@given(
    lanes_s=st.lists(st.lists(seconds, min_size=3, max_size=3), min_size=3, max_size=6), exchange_s=seconds
)
def test_a_step_is_divided_completely_and_only_the_last_member_does_not_wait(
    lanes_s: list[list[float]], exchange_s: float
) -> None:
    hands = [Hand() for _ in range(3)]
    members = [Measures(hand) for hand in hands]
    try:
        for lane_s in lanes_s:
            stepped(hands, members, lane_s, exchange_s)
        # The first step has no earlier reduction to begin from, and the last is reported in the next.
        measured = lanes_s[1:-1]
        for number, member in enumerate(members):
            spent = member.report()
            assert spent is not None
            assert spent.steps == len(measured)
            assert spent.compute_s == pytest.approx(sum(lane_s[number] for lane_s in measured))
            waited_s = sum(max(lane_s) - lane_s[number] for lane_s in measured)
            assert spent.wait_s == pytest.approx(waited_s, abs=1e-9)
            assert spent.exchange_s == pytest.approx(exchange_s * len(measured), abs=1e-9)
    finally:
        for member in members:
            member.close()


def test_a_slow_link_is_the_exchange_of_its_member_and_the_wait_of_the_others() -> None:
    """Connections report how long each was sending: all of one member's are slow, and one of each other's."""
    hands = [Hand() for _ in range(4)]
    members = [Measures(hand) for hand in hands]
    counts = [[0.0] * 3 for _ in members]

    def ask(number: int) -> tuple[Sending, ...]:
        is_behind = number == 3
        for peer in range(3):
            counts[number][peer] += 0.5 if is_behind or peer == 2 else 0.01
        return tuple(Sending(busy_s=busy_s, resent=0) for busy_s in counts[number])

    try:
        for number, member in enumerate(members):
            member.restart(lambda number=number: ask(number))  # type: ignore[misc]
        for _ in range(3):  # far enough apart that connections are queried in each
            stepped(hands, members, [0.1] * 4, 0.6)
            time.sleep(SAMPLE_INTERVAL_S)
        before = [member.report() for member in members]
        stepped(hands, members, [0.1] * 4, 0.6)
        for number, (member, last) in enumerate(zip(members, before, strict=True)):
            spent = member.report()
            assert spent is not None
            assert last is not None
            exchange_s, wait_s = spent.exchange_s - last.exchange_s, spent.wait_s - last.wait_s
            # The rest of the exchange, 0.1 s, comes with the sending that was slow.
            assert (exchange_s, wait_s) == pytest.approx((0.6, 0.0) if number == 3 else (0.012, 0.588))
    finally:
        for member in members:
            member.close()


def test_data_are_counted_once_for_any_fetcher(measures: Measures) -> None:
    fetching_s = []

    def step() -> None:
        begun_s = time.perf_counter()
        measures.handed()
        time.sleep(0.02)  # the script's own loader
        with FETCHING:  # and one of our helpers
            time.sleep(0.02)
        measures.asked()
        fetching_s.append(time.perf_counter() - begun_s)
        measures.stalled(10_000_000)
        time.sleep(0.03)
        measures.arrived()
        measures.reduced(measures.told())

    for _ in range(4):
        step()
    spent = measures.report()
    assert spent is not None
    assert spent.steps == 2
    assert 0.08 <= spent.data_s <= sum(fetching_s[1:3])
    assert spent.checkpoint_s == pytest.approx(0.02)
    assert spent.compute_s >= 0.03
    assert spent.wait_s == 0


@pytest.mark.parametrize("is_prompt", [True, False])
def test_lanes_are_told_apart_from_what_is_done_beside_them(is_prompt: bool) -> None:
    """Figures of this step, if the device is done when they are read; else of the previous step."""
    hand = Hand(is_prompt=is_prompt)
    member = Measures(hand)
    told_of_lanes = []
    for number in range(4):
        hand.now_s += 2.0  # the optimizer, and what the script does
        member.asked()
        for cost in (4.0, 1.0):
            hand.now_s += 0.5 * number
            member.computed(cost)
        told = member.told()
        told_of_lanes.append(member.told_of_lanes())
        member.arrived()
        hand.now_s += 5.0
        member.reduced((0.0, 0.0))
    assert told == (4.0, 0.0)
    first, second, third = (
        OfLanes(lanes_s=number, cost=5.0, data_s=0.0, rest_s=2.0, quickest_s=number / 8)
        for number in (1.0, 2.0, 3.0)
    )
    assert told_of_lanes == [
        OfLanes(),
        *([first, second, third] if is_prompt else [OfLanes(), first, second]),
    ]
    member.restart(lambda: ())
    assert member.told_of_lanes() == OfLanes()


def test_a_lane_that_is_computed_again_after_the_reduction_is_not_one_of_the_step() -> None:
    """As an audit does that finds a difference: otherwise its member would seem quicker than it is."""
    hand = Hand(is_prompt=False)
    member = Measures(hand)
    for is_disputed in (False, True):
        member.asked()
        hand.now_s += 3.0
        member.computed(1.0)
        member.arrived()
        member.reduced((0.0, 0.0))
        if is_disputed:
            hand.now_s += 1.0
            member.computed(1.0)
    assert member.told_of_lanes() == OfLanes(lanes_s=3.0, cost=1.0, quickest_s=3.0)


def test_what_was_told_before_the_members_changed_is_forgotten(measures: Measures) -> None:
    for _ in range(2):
        measures.arrived()
        measures.reduced((0.0, 0.0))
    assert measures.told()[0] > 0
    measures.restart(lambda: ())
    assert measures.told() == (0.0, 0.0)
    measures.arrived()
    measures.reduced((5.0, 5.0))
    assert measures.report() is None


def test_a_stopwatch_counts_a_block_inside_a_block_once() -> None:
    watch = Stopwatch()
    begun_s = time.perf_counter()
    with watch, watch:
        time.sleep(0.02)
    assert 0.02 <= watch.total_s <= time.perf_counter() - begun_s


def test_collections_are_counted_until_it_is_closed() -> None:
    callbacks = len(gc.callbacks)
    watched = Collections()
    gc.collect()
    counted_s = watched.total_s
    assert counted_s > 0
    watched.close()
    gc.collect()
    assert watched.total_s == counted_s
    assert len(gc.callbacks) == callbacks


# ---- a live run ------------------------------------------------------------------------------------------


class Page:
    """A run's metrics, by name and member."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(url, timeout=60) as page:  # on loopback
            text = page.read().decode()
        self.values = {
            (sample.name, sample.labels.get("member", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def of(self, name: str) -> dict[str, float]:
        return {member: value for (known, member), value in self.values.items() if known == name}


@pytest.fixture
def page_url(tmp_path: Path) -> Iterator[str]:
    """The page of a run with two members: one is slow, one collects garbage, both are short of data."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    options = ["--nodes", "2", "--warm", "0", "--metrics-port", "0"]
    run = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", *options, str(script)],
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    try:
        yield next(match[1] for line in run.stderr if (match := re.search(r"metrics at (\S+)", line)))
    finally:
        run.send_signal(signal.SIGTERM)
        said = run.stderr.read()
        run.wait(WAIT_S)
        run.stderr.close()
    # The signal hits one of them in the middle of a collection. It must leave all the same, without a kill.
    assert said.count("] left") == 2, said
    assert "Exception ignored" not in said


def test_a_run_shows_who_is_slow_who_waits_and_for_what(page_url: str) -> None:
    until(lambda: min(Page(page_url).of("holdfast_member_steps_total").values(), default=0.0) >= STEPS_MIN)
    page = Page(page_url)
    steps = page.of("holdfast_member_steps_total")
    assert set(steps) == {"n0.0", "n1.0"}

    def mean_s(part: str) -> dict[str, float]:
        totals = page.of(f"holdfast_member_{part}_seconds_total")
        return {member: total / steps[member] for member, total in totals.items()}

    compute_s, wait_s, data_s, collecting_s = map(mean_s, ("compute", "wait", "data", "gc"))
    assert compute_s["n1.0"] - compute_s["n0.0"] > (SLOW_S - GARBAGE_S) / 2
    assert wait_s["n0.0"] - wait_s["n1.0"] > (SLOW_S - GARBAGE_S) / 2
    assert all(DATA_S <= each < compute_s["n1.0"] for each in data_s.values())
    assert collecting_s["n0.0"] > max(GARBAGE_S / 2, collecting_s["n1.0"])

    def is_divided(page: Page) -> bool:
        """Each figure is a mean over its own last second, so the machine may have been busy for
        some of them.
        """
        parts = ("compute", "data", "exchange", "wait", "checkpoint")
        divided_s = sum(page.of(f"holdfast_member_{part}_seconds")["n0.0"] for part in parts)
        return divided_s == pytest.approx(page.of("holdfast_run_step_seconds")[""], rel=0.5)

    until(lambda: is_divided(Page(page_url)))
