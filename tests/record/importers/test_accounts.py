"""What imported logs come to in the ledger, however they were cut into files."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.record.importers import Options, import_file
from holdfast.record.sqlite import SqliteStore
from holdfast.record.store import Selection

SECOND = 10**9
BEGAN_S = 1_760_000_000
STEP_S = 10
GPUS = 8
SACCT = "JobID|State|Submit|Start|End|NNodes|AllocTRES"


class Desk:
    """A store, and a user who imports files into it."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.conflicting = 0
        self._folder = folder
        self._options = options

    def take(self, *lines: str) -> None:
        path = self._folder / "log"
        path.write_text("\n".join(lines), encoding="utf-8")
        with SqliteStore(self._folder / "store.sqlite") as store, import_file(path, self._options) as reading:
            self.conflicting += store.ingest(reading).conflicting

    def report(self, run: str) -> Report:
        ledger = Ledger()
        with SqliteStore(self._folder / "store.sqlite") as store:
            ledger.add(store.select(Selection(run=run)))
        told = report(run, ledger.fold)
        assert sum(told.partition.values()) == told.paid_gpu_ns
        return told


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, Options(run="parts", gpus=GPUS, reference_step_s=STEP_S, usd_per_gpu_hour=2))


@pytest.fixture
def accounting(tmp_path: Path) -> Desk:
    return Desk(tmp_path, Options())


def steps(first: int, last: int) -> list[str]:
    return ["step,time", *(f"{step},{BEGAN_S + STEP_S * step}" for step in range(first, last + 1))]


@pytest.mark.parametrize(
    "parts",
    [
        [(1, 100)],
        [(1, 60), (61, 100)],
        [(61, 100), (1, 60)],
        [(1, 60), (40, 100)],
        [(41, 70), (1, 30), (20, 50), (60, 100)],
        [(1, 60), (1, 100)],
        [(2, 100), (1, 100)],
        [(1, 100), (1, 100)],
    ],
    ids=["whole", "halves", "backwards", "overlapping", "pieces", "grown", "an earlier line", "twice"],
)
def test_a_log_in_parts_is_one_run_without_an_incident(desk: Desk, parts: list[tuple[int, int]]) -> None:
    for first, last in parts:
        desk.take(*steps(first, last))
    told = desk.report("parts")
    assert {category: gpu_ns for category, gpu_ns in told.partition.items() if gpu_ns} == {
        "useful": GPUS * 99 * STEP_S * SECOND
    }
    counts = told.counts
    assert (counts.steps, counts.starts, counts.restarts, counts.incidents) == (100, 1, 0, 0)
    assert told.incidents == ()
    assert told.gpus == GPUS
    assert desk.conflicting == 0


def test_lines_in_any_order_come_to_the_same(desk: Desk) -> None:
    header, *rows = steps(1, 100)
    random.Random(3).shuffle(rows)
    desk.take(header, *rows[:50])
    desk.take(header, *rows[50:])
    told = desk.report("parts")
    assert (told.counts.steps, told.counts.restarts, told.counts.incidents) == (100, 0, 0)
    assert told.paid_gpu_ns == told.partition["useful"] == GPUS * 99 * STEP_S * SECOND


def test_a_table_that_tells_its_gpus_is_not_disturbed(tmp_path: Path) -> None:
    reports = []
    for gpus in (None, 64):
        folder = tmp_path / str(gpus)
        folder.mkdir()
        desk = Desk(folder, Options(run="parts", gpus=gpus))
        desk.take(
            "time,kind,step,gpus,outcome",
            f"{BEGAN_S},run.started,,16,",
            *(f"{BEGAN_S + STEP_S * step},step.committed,{step},," for step in range(1, 5)),
            f"{BEGAN_S + 50},run.ended,,,completed",
        )
        reports.append(desk.report("parts"))
    assert reports[0] == reports[1]
    assert reports[0].paid_gpu_ns == 16 * 50 * SECOND


def minute(at: int) -> str:
    return f"2025-03-01T10:{at:02}:00"


def attempt(state: str, times: Sequence[int], gpus: int = 16) -> str:
    submit, start, end = map(minute, times)
    return f"77|{state}|{submit}|{start}|{end}|2|gres/gpu={gpus}"


ATTEMPTS = [
    attempt("NODE_FAIL", (0, 0, 10)),
    attempt("NODE_FAIL", (10, 10, 20)),  # within a second of the end before: submitted and started
    attempt("PREEMPTED", (20, 25, 30)),
    attempt("COMPLETED", (30, 30, 40)),
]


@pytest.mark.parametrize("windows", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_overlapping_windows_of_accounting_agree(accounting: Desk, windows: list[int]) -> None:
    for window in windows:
        accounting.take(SACCT, *ATTEMPTS[window : window + 2])
    told = accounting.report("77")
    assert accounting.conflicting == 0
    assert (told.counts.starts, told.counts.restarts) == (4, 3)
    assert told.paid_gpu_ns == 16 * 35 * 60 * SECOND
    assert [incident.what for incident in told.incidents] == ["node-fail"]


def test_a_resize_is_neither_a_restart_nor_an_incident(accounting: Desk) -> None:
    accounting.take(
        SACCT,
        attempt("RESIZING", (0, 0, 10), gpus=16),
        attempt("COMPLETED", (10, 10, 30), gpus=8),
    )
    told = accounting.report("77")
    assert (told.counts.starts, told.counts.restarts, told.counts.incidents) == (1, 0, 0)
    assert told.paid_gpu_ns == (16 * 10 + 8 * 20) * 60 * SECOND
