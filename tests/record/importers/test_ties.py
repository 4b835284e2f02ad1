"""Logs with stamps of whole seconds: what ended and what began in one second come out in that order."""

from pathlib import Path

import msgspec
import pytest

from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.record.events import KINDS
from holdfast.record.importers import Options, import_file
from holdfast.record.importers.table import _TIE_RANKS

STEP_S = 10


def _rows(run: str) -> list[dict[str, object]]:
    """100 steps, a crash, 300 s, and from step 81 to 200; a commit and the next begin share their stamp."""
    rows: list[dict[str, object]] = []
    at_s = 1_760_000_000

    def tell(kind: str, **fields: object) -> None:
        rows.append({"kind": kind, "time": at_s, "run": run, **fields})

    tell("cost.rate", gpus=8)
    for first, last in ((1, 100), (81, 200)):
        tell("run.started", gpus=8)
        if first > 1:
            tell("checkpoint.loaded", step=first - 1)
        for step in range(first, last + 1):
            tell("step.begun", step=step)
            at_s += STEP_S
            tell("step.committed", step=step)
        if last == 100:
            tell("fault.observed", fault="xid-79")
            tell("run.ended", outcome="failed")
            at_s += 300
    return rows


def _told(path: Path) -> Report:
    ledger = Ledger()
    with import_file(path, Options(run=None, gpus=8)) as reading:
        ledger.add(reading)
    return report("any", ledger.fold)


def test_every_kind_has_its_place() -> None:
    assert set(_TIE_RANKS) == set(KINDS)
    assert max(_TIE_RANKS.values()) < 16  # one hex digit of an id


@pytest.mark.parametrize("run", ["a", "b", "llm-70b", "E1", "E2"])
def test_the_name_of_a_run_does_not_change_its_account(run: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in _rows(run)))
    told = _told(path)
    seconds = {key: part / 10**9 for key, part in told.partition.items() if part}
    assert seconds == {"useful": 16_000, "recomputed": 1_600, "recovering": 2_400}
    assert (told.counts.steps, told.counts.restarts) == (200, 1)


def test_several_steps_in_one_second_stay_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{step},{1_760_000_000 + step // 5},r" for step in range(1, 101)]
    path.write_text("step,time,run\n" + "\n".join(rows) + "\n", encoding="utf-8")
    told = _told(path)
    assert (told.counts.steps, told.counts.incidents) == (100, 0)


@pytest.mark.parametrize(("end", "skipped"), [("4,17723", 1), ("4,1772323240.5", 0), ("4,1772323240.5\n", 0)])
def test_half_a_last_line_is_doubted(end: str, skipped: int, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"step,time\n1,1772323210.5\n2,1772323220.5\n3,1772323230.5\n{end}", encoding="utf-8")
    with import_file(path, Options(run="r")) as reading:
        events = list(reading)
    assert reading.imported().skipped_count == skipped
    assert min(event.occurred_ns for event in events) > 1_772_323_000 * 10**9
