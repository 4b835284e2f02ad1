"""Readings on their way to the store of signals, where that takes nothing for a while."""

from pathlib import Path

import pytest

from holdfast.cli.terminal import tell
from holdfast.signals.collectors.gathering import Collected
from holdfast.signals.collectors.rounds import RoundOutcome
from holdfast.signals.collectors.storing import WAITING_MAX, storing
from holdfast.signals.frame import Reading
from holdfast.signals.store import MERGE_FILES, SignalStore

METRIC = "some_metric"
STEP_NS = 10**10


def round_of(number: int, readings: int = 1) -> Collected:
    taken = tuple(
        Reading(metric=METRIC, labels={"instance": "n1"}, at_ns=number * STEP_NS + one, value=float(number))
        for one in range(readings)
    )
    outcome = RoundOutcome(collector="one", readings=taken, problem="")
    return Collected(at_ns=number * STEP_NS, outcomes=(outcome,))


def test_readings_that_the_store_refused_are_written_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, elsewhere = tmp_path / "signals", tmp_path / "elsewhere"
    with storing(place, tell, step_s=10, keep_s=None) as outlet:
        outlet(round_of(0))
        place.rename(elsewhere)
        outlet(round_of(1))
        outlet(round_of(2))
        elsewhere.rename(place)
        outlet(round_of(3))
        assert capsys.readouterr().err.count("The signals cannot be written") == 1
    with SignalStore(place, step_s=10) as store:
        frame = store.frame(METRIC, (0, 4 * STEP_NS))
    assert frame is not None
    assert frame.values[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.slow
def test_what_had_to_be_let_go_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, elsewhere = tmp_path / "signals", tmp_path / "elsewhere"
    with storing(place, tell, step_s=10, keep_s=None) as outlet:
        place.rename(elsewhere)
        outlet(round_of(0, 3))
        outlet(round_of(1, WAITING_MAX))
        elsewhere.rename(place)
        outlet(round_of(2, 0))
        outlet(round_of(3))
    assert capsys.readouterr().err.count("The signals lack 3 readings") == 1


def test_what_waits_at_the_end_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "signals"
    with storing(place, tell, step_s=10, keep_s=None) as outlet:
        place.rename(tmp_path / "elsewhere")
        outlet(round_of(0, 3))
    assert "The signals lack the last 3 readings" in capsys.readouterr().err


@pytest.mark.slow
def test_a_round_of_more_than_may_wait_is_written_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with storing(tmp_path, tell, step_s=10, keep_s=None) as outlet:
        outlet(round_of(0, WAITING_MAX + 1))
    assert capsys.readouterr().err == ""


def test_a_merge_that_fails_writes_nothing_twice(tmp_path: Path) -> None:
    """What was appended is on disk, though a damaged file keeps it from being put together with others."""
    for number in range(MERGE_FILES):
        (tmp_path / f"{number}_{number}_0_{number:032x}.parquet").write_bytes(b"damaged")
    with storing(tmp_path, tell, step_s=10, keep_s=None) as outlet:
        outlet(round_of(0, 5))
        outlet(round_of(1, 0))
    assert len(list(tmp_path.glob("*.parquet"))) == MERGE_FILES + 1
