"""One reading of steps: what `report` prices after an import is what `diagnose` lists from the log."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.diagnose.reading import RunReading, passed, read, with_recorded_steps
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.ledger.runs import fold_run
from holdfast.record.events import CostRate, FaultObserved, StepCommitted
from holdfast.record.importers import import_file
from holdfast.record.importers.intake import Options
from holdfast.record.sqlite import SqliteStore
from holdfast.signals.frame import Frame
from holdfast.signals.step_files import StepLogSource
from holdfast.signals.stepped import STEPS_MAX, SteppedSource, runs_in, seen_steps

S = 10**9
FIRST_NS = 1_793_523_600 * S


class Nothing:
    """A source without any series."""

    def metrics(self) -> tuple[str, ...]:
        return ()

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        return None


class Counter:
    """A source with one run's count of steps, scraped every ten seconds."""

    def __init__(self, shown: Sequence[tuple[int, int]]) -> None:
        self._shown = np.array(shown, np.int64)

    def metrics(self) -> tuple[str, ...]:
        return ("trainer_global_step",)

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        if metric != "trainer_global_step":
            return None
        times_ns = np.arange(self._shown[0, 0], self._shown[-1, 0] + 1, 10 * S)
        times_ns = times_ns[(times_ns >= window_ns[0]) & (times_ns < window_ns[1])]
        rows = np.searchsorted(self._shown[:, 0], times_ns, side="right") - 1
        return Frame(
            metric=metric,
            kind="gauge",
            meaning="",
            subjects=("llama",),
            labels=({"run": "llama"},),
            times_ns=times_ns,
            values=self._shown[rows, 1].astype(np.float64)[:, None],
        )


def stepped(*paces: tuple[int, float]) -> list[tuple[int, int]]:
    """The time and the number of each step: so many of each length in seconds."""
    at_ns = FIRST_NS
    shown: list[tuple[int, int]] = []
    for length_s in (length_s for count, length_s in paces for _ in range(count)):
        at_ns += round(length_s * S)
        shown.append((at_ns, len(shown) + 1))
    return shown


def reported(path: Path, shown: Sequence[tuple[int, int]], gpus: int) -> Report:
    """What `report` says of these steps after `holdfast import`."""
    log = path / "steps.csv"
    log.write_text("step,occurred_ns\n" + "".join(f"{step},{at_ns}\n" for at_ns, step in shown))
    with SqliteStore(path / "imported.sqlite") as store:
        with import_file(log, Options(run="llama", gpus=gpus)) as reading:
            store.ingest(reading)
        return report("llama", fold_run(store, "llama"))


def from_log(
    path: Path, shown: Sequence[tuple[int, int]], gpus: int | None, run: str = "llama"
) -> RunReading:
    source = StepLogSource(Nothing(), lambda: list(shown), run, step_s=10.0)
    with SqliteStore(path / "empty.sqlite") as store:
        return read(store, source, run, shown[-1][0], gpus)


paces = st.lists(st.tuples(st.integers(1, 80), st.floats(0.5, 60.0)), min_size=1, max_size=6)


@settings(max_examples=examples(40), deadline=None)
@given(paces=paces, gpus=st.integers(1, 64))
def test_a_log_is_read_as_a_report_reads_it_after_an_import(
    paces: list[tuple[int, float]], gpus: int
) -> None:
    shown = stepped(*paces)
    with TemporaryDirectory() as place:
        told = reported(Path(place), shown, gpus)
        reading = from_log(Path(place), shown, gpus)
    assert {one.name: one for one in reading.incidents} == {one.name: one for one in told.incidents}
    assert (reading.steps, reading.last_ns) == (told.steps_kept, told.known_ns)


def test_a_standstill_is_listed_as_one_and_slow_steps_as_slow_steps(tmp_path: Path) -> None:
    for before, (count, length_s), what in (
        (60, (30, 24.0), "slow steps"),
        (119, (1, 910.0), "no step made"),
        (30, (3, 300.0), "slow steps"),
    ):
        (one,) = from_log(tmp_path, stepped((before, 10.0), (count, length_s), (120, 10.0)), 8).incidents
        assert one.what == f"{what}, nothing recorded says why"
        assert one.lost_gpu_ns == pytest.approx(8 * count * (length_s - 10.0) * S, rel=0.02)


def test_logs_that_tell_of_every_hundredth_step_do_not_stand_still_between(tmp_path: Path) -> None:
    every = [(at_ns, step) for at_ns, step in stepped((6_000, 10.0), (1_500, 14.0), (6_000, 10.0))]
    (one,) = from_log(tmp_path, every[99::100], 8).incidents
    assert one.what.startswith("slow steps")


def test_where_the_record_ends_the_log_goes_on(tmp_path: Path) -> None:
    shown = stepped((100, 10.0), (1, 910.0), (100, 10.0))
    first_ns = FIRST_NS + 1
    with SqliteStore(tmp_path / "store.sqlite") as store:
        made = [
            StepCommitted(id=f"{step}", occurred_ns=at_ns, run="llama", step=step)
            for at_ns, step in shown[:50]
        ]
        store.ingest([CostRate(id="gpus", occurred_ns=first_ns, run="llama", gpus=16), *made])
        source = StepLogSource(Nothing(), lambda: shown, "llama", step_s=10.0)
        reading = read(store, source, "llama", shown[-1][0], None)
        assert (reading.steps_from, reading.steps, reading.gpus) == ("step log", 201, 16)
        (one,) = reading.incidents
        assert one.lost_gpu_ns == pytest.approx(16 * 900 * S, rel=0.02)
        alone = read(store, Nothing(), "llama", shown[-1][0], None)
        assert (alone.steps_from, alone.steps, alone.incidents) == ("record", 50, ())


def test_steps_of_a_metric_are_read_too(tmp_path: Path) -> None:
    shown = stepped((120, 15.0), (1, 915.0), (120, 15.0))
    source = SteppedSource(Counter(shown), "trainer_global_step")
    with SqliteStore(tmp_path / "store.sqlite") as store:
        reading = read(store, source, "llama", shown[-1][0], 8)
    assert reading.steps_from == "signals"
    assert reading.steps == pytest.approx(241, abs=2 * STEPS_MAX)
    (one,) = reading.incidents
    assert one.what.startswith("no step made")
    assert seen_steps(Nothing(), "llama", (0, FIRST_NS)) == []


def test_the_record_gives_steps_to_a_source_that_has_none(tmp_path: Path) -> None:
    shown = stepped((100, 10.0))
    window_ns = (FIRST_NS, shown[-1][0] + 1)
    with SqliteStore(tmp_path / "store.sqlite") as store:
        store.ingest(StepCommitted(id=f"{n}", occurred_ns=at_ns, run="llama", step=n) for at_ns, n in shown)
        source = with_recorded_steps(Nothing(), store, "llama", window_ns)
        assert runs_in(source, window_ns) == {"llama"}
        assert runs_in(with_recorded_steps(Nothing(), store, "other", window_ns), window_ns) == set()
        own = StepLogSource(Nothing(), lambda: shown, "llama", step_s=10.0)
        assert with_recorded_steps(own, store, "llama", window_ns) is own


def test_what_an_incident_explains_is_not_listed_again_but_what_is_recorded_is(tmp_path: Path) -> None:
    shown = stepped((60, 10.0), (30, 24.0), (60, 10.0))
    end_ns = shown[-1][0] + 1
    with SqliteStore(tmp_path / "store.sqlite") as store:
        store.ingest(
            [
                FaultObserved(
                    id="xid", occurred_ns=shown[100][0] + 1, run="llama", subject="n1", fault="xid-48"
                )
            ]
        )
        source = StepLogSource(Nothing(), lambda: shown, "llama", step_s=10.0)
        reading = read(store, source, "llama", end_ns - 1, None)
    slow, killed = sorted(reading.incidents, key=lambda one: one.began_ns)
    assert (slow.name, killed.what) == ("slow-1", "xid-48")
    window_ns = (FIRST_NS, end_ns)
    assert passed(reading, window_ns, []) == (slow, killed)
    assert passed(reading, window_ns, [(slow.began_ns, slow.began_ns + 60 * S)]) == (slow, killed)
    assert passed(reading, window_ns, [(slow.began_ns, end_ns)]) == (killed,)
    assert passed(reading, (end_ns - 60 * S, end_ns), []) == ()
