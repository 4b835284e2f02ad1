"""What a watch sees does not depend on when it began: scrapes of every interval, looked at in every phase.

A run becomes 64 % slower at a known moment, or does not. Its steps are shorter or longer than the time
between scrapes. Its metric is scraped a little early or late, and some scrapes are missed. A watch looks
every ten seconds, and `diagnose` at the same moments.
"""

import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from quantity import sampled
from servers import daemon
from waiting import free_port

from holdfast.detect.xids import NO_OVERRIDES
from holdfast.diagnose.alerts import WORTH
from holdfast.diagnose.answering import DiagnoseQuestion, answered
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import IncidentChange, diagnosis
from holdfast.diagnose.watch_metrics import WatchMetrics
from holdfast.diagnose.watched import Looking, Scope
from holdfast.diagnose.watching import AlertOutlet, Watch
from holdfast.economics.pricing.prices import DEFAULTS
from holdfast.record.clock import ManualClock
from holdfast.record.events import IncidentDiagnosed
from holdfast.record.home import HomeJournal
from holdfast.record.store import Store
from holdfast.record.stores import open_store
from holdfast.signals.frame import Labels
from holdfast.signals.incremental import IncrementalSource
from holdfast.signals.prometheus import Prometheus, Raw
from holdfast.signals.source import Source
from holdfast.signals.stepped import SteppedSource
from holdfast.topology import file

from .conftest import await_ready

pytestmark = pytest.mark.slow

S, MS = 10**9, 10**6
BEGAN_S = 1_772_442_000
SLOWER_S = BEGAN_S + 2_400
RUN, OWN, FOREIGN = "train", "holdfast_run_step_seconds", "trainer_global_step"
LOOK_S, LOOKS = 10, 5
SCRAPES = 3
EVERY_S = (1, 2, 5, 7, 10, 13, 15, 30, 60)
PHASES = 20
STEPS_S, SLOWER = (0.5, 3.0, 10.0, 20.0), 1.64
STEPS = {OWN: 4, FOREIGN: 10}
"""Where a step takes a second or more: so many slow steps later."""
NOISE = 0.04
JITTER, MISSED = 0.05, 0.03
MIXED_S = (5, 60)
WINDOW_S = 1_800.0


def phased(kept: Iterable[tuple[float, int, int, str]]) -> pytest.MarkDecorator:
    every = product(STEPS_S, EVERY_S, range(PHASES), (OWN, FOREIGN))
    return pytest.mark.parametrize(("step_s", "every_s", "phase", "metric"), sampled(every, [*kept]))


def within_s(step_s: float, every_s: int, metric: str) -> float:
    """How soon a slower run is found."""
    steps = STEPS[metric] if step_s >= 1 else 0
    return SCRAPES * every_s + LOOKS * LOOK_S + steps * SLOWER * step_s


class Scraped(msgspec.Struct, frozen=True, eq=False):
    """One series: when it was scraped, and what it showed."""

    labels: Labels
    times_ns: NDArray[np.int64]
    values: NDArray[np.float64]


def scraped(
    every_s: float,
    phase: int,
    metric: str,
    *,
    step_s: float = STEPS_S[0],
    slower: float = SLOWER,
    until_s: int = 3_600,
    run: str = RUN,
) -> Scraped:
    """A run's metric. A share of an interval after the beginning, its first scrape is due."""
    rng = np.random.default_rng((round(every_s), phase))
    steps = round(until_s / step_s * 1.3)
    took_s = step_s * (1 + NOISE * rng.standard_normal(steps))
    took_s[np.searchsorted(np.cumsum(took_s), SLOWER_S - BEGAN_S) :] *= slower
    done_s = BEGAN_S + np.cumsum(took_s)
    times_s = BEGAN_S + phase / PHASES * every_s + np.arange(until_s / every_s) * every_s
    times_s += JITTER * min(every_s, 10) * rng.uniform(-1, 1, len(times_s))
    times_s = times_s[rng.random(len(times_s)) >= MISSED]
    made = np.maximum(1, np.searchsorted(done_s, times_s, side="right"))
    labels = {"instance": "n0:9", **({"run": run} if metric == OWN else {"job": run})}
    values = took_s[made - 1] if metric == OWN else made.astype(np.float64)
    return Scraped({"__name__": metric, **labels}, np.rint(times_s * 1e3).astype(np.int64) * MS, values)


class Server(Prometheus):
    """A server with these series, without a network. It has no sample of the future."""

    def __init__(self, *known: Scraped) -> None:
        super().__init__("http://127.0.0.1:9")
        self._known = known

    def metrics(self) -> tuple[str, ...]:
        return tuple(sorted({one.labels["__name__"] for one in self._known}))

    def series(self, selectors: Sequence[str], window_ns: tuple[int, int]) -> list[Labels]:
        return []

    def raw(self, metric: str, window_ns: tuple[int, int]) -> Raw | None:
        found = []
        for one in self._known:
            first, end = np.searchsorted(one.times_ns, window_ns).tolist()
            if one.labels["__name__"] == metric and first < end:
                found.append((one, slice(first, end)))
        if not found:
            return None
        return Raw(
            keys=tuple(msgspec.json.encode(one.labels) for one, _ in found),
            series=np.repeat(np.arange(len(found)), [part.stop - part.start for _, part in found]),
            times_ns=np.concatenate([one.times_ns[part] for one, part in found]),
            values=np.concatenate([one.values[part] for one, part in found]),
        )


class Heard:
    def __init__(self) -> None:
        self.changes: list[IncidentChange] = []

    def changed(self, change: IncidentChange) -> None:
        self.changes.append(change)

    def confirmed(self, changes: Sequence[IncidentChange]) -> None: ...

    def standing(self, incidents: Sequence[Incident]) -> None:
        self.open = [one.run for one in incidents]


class Recording:
    """Writes into the record, at once."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def changed(self, change: IncidentChange) -> None:
        one = IncidentDiagnosed(
            id=f"{id(self)}-{change.incident.name}-{change.at_ns}",
            occurred_ns=change.at_ns,
            run=change.incident.run,
            incident=change.incident.name,
            state=change.state,
            diagnosis=diagnosis(change.incident),
        )
        self._store.ingest([one])

    def confirmed(self, changes: Sequence[IncidentChange]) -> None:
        for change in changes:
            self.changed(change)

    def standing(self, incidents: Sequence[Incident]) -> None: ...


class Watcher:
    """A watch that looks when it is told to, at the times that it is told."""

    def __init__(self, server: Prometheus, metric: str, store: Store, home: Path) -> None:
        self._server, self._metric, self._store = server, metric, store
        self._cluster = file.read("").described(file.read("").survey)
        self._clock = ManualClock()
        self.heard, self.said = Heard(), list[str]()
        scope = Scope(
            runs=(),
            window_s=WINDOW_S,
            is_only_look=False,
            logged_runs=(),
            prices=DEFAULTS,
            worth=WORTH,
            journal=HomeJournal(store, home, lambda damages: None),
            topology=lambda: self._cluster,
            xids=lambda: NO_OVERRIDES,
            remark=lambda: None,
            say=self.said.append,
        )
        looking = Looking(scope, store, self._with_steps(IncrementalSource(server)), self._clock)
        outlets: list[AlertOutlet] = [self.heard, Recording(store)]
        self._watch = Watch(looking, looking.book(0), outlets, WatchMetrics(), self.said.append)

    def _with_steps(self, source: Source) -> Source:
        return source if self._metric == OWN else SteppedSource(source, self._metric)

    def look(self, at_s: float) -> int:
        at_ns = round(at_s * 1e3) * MS
        self._clock.advance_ns(at_ns - self._clock.now_ns())
        assert self._watch.turn(at_ns), self.said
        return at_ns

    def is_slow(self) -> bool:
        return bool(self.heard.open)

    def is_slow_to_diagnose(self, at_ns: int) -> bool:
        return bool(self.diagnosed(at_ns))

    def diagnosed(self, at_ns: int) -> list[Incident]:
        asked = DiagnoseQuestion(run=RUN, at_ns=at_ns, window_s=WINDOW_S, is_exact=False)
        source = self._with_steps(self._server)
        answer, _ = answered(asked, self._store, source, self._cluster, DEFAULTS)
        assert answer.sees_run
        return [one for one in answer.incidents if one.ended_ns is None]


@contextmanager
def watching(server: Prometheus, metric: str, home: Path) -> Iterator[Watcher]:
    with open_store(None, home) as store, server:
        yield Watcher(server, metric, store, home)


def agree(watcher: Watcher, at_s: float) -> bool:
    """Whether the watch and `diagnose` say the same of this moment."""
    at_ns = watcher.look(at_s)
    return watcher.is_slow() == watcher.is_slow_to_diagnose(at_ns)


def found_s(watcher: Watcher, first_s: float, most_s: float) -> float:
    """When the watch found the run slower, in seconds after it became so. Nothing is wrong before.

    A scrape that is due at the very moment of a look may be read by the one and not yet by the other; then
    they agree at the next look.
    """
    differed = False
    for at_s in np.arange(first_s, SLOWER_S + most_s, LOOK_S).tolist():
        differs = not agree(watcher, at_s)
        assert not (differs and differed), at_s - SLOWER_S
        differed = differs
        if watcher.is_slow():
            assert at_s > SLOWER_S
            break
    assert agree(watcher, at_s + LOOK_S)
    first, *later = watcher.heard.changes
    assert (first.state, first.incident.run) == ("open", RUN)
    assert {one.state for one in later} <= {"changed"}
    assert not [text for text in watcher.said if "labels only" in text or "Nothing can be said" in text]
    return float(at_s - SLOWER_S)


@phased(
    [
        *(
            (STEPS_S[0], every_s, (place * 7 + phase) % PHASES, metric)
            for place, every_s in enumerate(EVERY_S)
            for phase, metric in ((0, OWN), (4, FOREIGN), (13, FOREIGN))
        ),
        *(
            (step_s, every_s, (place * 7 + round(step_s)) % PHASES, FOREIGN)
            for place, every_s in enumerate(EVERY_S)
            for step_s in STEPS_S[1:]
        ),
        *((step_s, every_s, 9, OWN) for step_s, every_s in ((3.0, 5), (10.0, 15), (20.0, 15), (20.0, 30))),
    ]
)
def test_a_slower_run_is_found_within_three_scrapes_five_looks_and_some_steps(
    step_s: float, every_s: int, phase: int, metric: str, tmp_path: Path
) -> None:
    most_s = within_s(step_s, every_s, metric)
    until_s = round(SLOWER_S - BEGAN_S + 2 * most_s)
    server = Server(scraped(every_s, phase, metric, step_s=step_s, until_s=until_s))
    with watching(server, metric, tmp_path) as watcher:
        assert found_s(watcher, SLOWER_S - 20 + phase / 2, most_s) <= most_s


@phased(
    [
        *((STEPS_S[0], every_s, every_s % PHASES, FOREIGN) for every_s in EVERY_S[::2]),
        *((10.0, 5, phase, FOREIGN) for phase in (8, 12)),
        *((10.0, every_s, 16, FOREIGN) for every_s in (1, 10, 15)),
        *((step_s, every_s, 3, FOREIGN) for step_s in (3.0, 20.0) for every_s in (5, 13, 30)),
        (10.0, 15, 3, OWN),
        (20.0, 30, 3, OWN),
    ]
)
def test_a_healthy_run_is_not_named_in_an_hour(
    step_s: float, every_s: int, phase: int, metric: str, tmp_path: Path
) -> None:
    server = Server(scraped(every_s, phase, metric, step_s=step_s, slower=1.0, until_s=4_200))
    with watching(server, metric, tmp_path) as watcher:
        for number, at_s in enumerate(range(BEGAN_S + 600, BEGAN_S + 4_200, 6 * LOOK_S)):
            at_ns = watcher.look(at_s + number % 6 * LOOK_S + phase / 2)
            assert number % 20 or not watcher.is_slow_to_diagnose(at_ns)
        assert watcher.heard.changes == []


def test_each_slow_stretch_has_its_own_onset_and_size(tmp_path: Path) -> None:
    """Three in half an hour."""
    stretches = ((300, 500, 3.3), (1_020, 1_120, 3.3), (1_500, 1_570, 3.3))
    at_s, steps = 0.0, [0.0]
    while at_s < 1_700:
        at_s += next((took_s for first, end, took_s in stretches if first <= at_s < end), 2.0)
        steps.append(at_s)
    times_s = np.arange(2.0, 1_700, 5)
    counts = np.searchsorted(steps, times_s, side="right").astype(np.float64)
    times_ns = BEGAN_S * S + np.rint(times_s * 1e3).astype(np.int64) * MS
    server = Server(Scraped({"__name__": FOREIGN, "job": RUN, "instance": "n0:9"}, times_ns, counts))
    with watching(server, FOREIGN, tmp_path) as watcher:
        for first, end, took_s in stretches:
            (found,) = watcher.diagnosed((BEGAN_S + end - 5) * S)
            assert abs(found.began_ns / S - BEGAN_S - first) <= 15
            assert found.slowdown == pytest.approx(took_s / 2, abs=0.15)


def test_runs_that_are_scraped_at_different_intervals_are_both_seen(tmp_path: Path) -> None:
    often, seldom = MIXED_S
    others = [scraped(often, phase, FOREIGN, slower=1.0, run=f"other-{phase}") for phase in range(2)]
    with watching(Server(*others, scraped(seldom, 3, FOREIGN)), FOREIGN, tmp_path) as watcher:
        most_s = SCRAPES * seldom + LOOKS * LOOK_S
        assert found_s(watcher, SLOWER_S - 10, most_s) <= most_s


def test_an_interval_that_changes_is_followed(tmp_path: Path) -> None:
    """An operator has Prometheus scrape every 30 s instead of every 5 s, ten minutes before."""
    before, after = scraped(5, 3, FOREIGN), scraped(30, 3, FOREIGN)
    rows = before.times_ns < (SLOWER_S - 600) * S
    later = after.times_ns >= (SLOWER_S - 600) * S
    both = Scraped(
        before.labels,
        np.concatenate((before.times_ns[rows], after.times_ns[later])),
        np.concatenate((before.values[rows], after.values[later])),
    )
    with watching(Server(both), FOREIGN, tmp_path) as watcher:
        for before_s in range(900, 0, -60):
            watcher.look(SLOWER_S - before_s)
        most_s = SCRAPES * 30 + LOOKS * LOOK_S
        assert found_s(watcher, SLOWER_S, most_s) <= most_s


@pytest.fixture(scope="session")
def scraping(need: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus that scraped a run every 5 s."""
    need("prometheus")
    home, port, known = tmp_path_factory.mktemp("scraping"), free_port(), scraped(5, 8, FOREIGN)
    lines = [
        f'{FOREIGN}{{job="{RUN}",instance="n0:9"}} {value} {at_ns / S:.3f}\n'
        for at_ns, value in zip(known.times_ns.tolist(), known.values.tolist(), strict=True)
    ]
    (home / "history.txt").write_text("".join(lines) + "# EOF\n", encoding="utf-8")
    (home / "prometheus.yml").write_text("global: {}\n", encoding="utf-8")
    blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(home / "history.txt"), str(home)]
    subprocess.run(blocks, check=True, capture_output=True)
    command = [
        "prometheus",
        f"--config.file={home / 'prometheus.yml'}",
        f"--storage.tsdb.path={home}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with daemon(command, home):
        await_ready(f"http://127.0.0.1:{port}", home)
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("after_s", [2.6, 5.6, 8.1])
def test_a_real_server_is_looked_at_in_any_phase(scraping: str, after_s: float, tmp_path: Path) -> None:
    server = Prometheus(scraping, as_of_ns=(SLOWER_S + 600) * S)
    with watching(server, FOREIGN, tmp_path) as watcher:
        most_s = SCRAPES * 5 + LOOKS * LOOK_S
        assert found_s(watcher, SLOWER_S - 10 + after_s, most_s) <= most_s
