"""A drill that cannot be made, or that is another's: nothing is left behind, and the other's stays."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from waiting import until

from holdfast.drills.live.judging import DRILL, DrillCost
from holdfast.drills.live.keeping import (
    DrillNote,
    Remove,
    abort,
    aborted_path,
    kept,
    note_path,
    read_note,
    write_note,
)
from holdfast.drills.live.playing import DrillAborted, DrillSetting, LiveDrill, LivePlan
from holdfast.drills.live.scenarios import live_scenario
from holdfast.drills.live.scene import LiveMember, LiveScene
from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.stores import open_store
from holdfast.run.endpoint import run_directory
from holdfast.run.lines import LINES_FILE
from holdfast.run.whereabouts import is_stopped

NO_PROCESS = 2**30
"""The number of no process: nothing is to be stopped here."""
STOPPED_S_MAX = 10.0
NOTE = DrillNote(
    id="one", run="big", scenario="full-disk", target="storage", due_ns=2**62, put_back=(Remove(path="none"),)
)

outlived = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A keeper outlives the object that started it, on purpose."""


@pytest.fixture
def plan(tmp_path: Path) -> LivePlan:
    lines = run_directory(tmp_path, "big") / LINES_FILE
    lines.parent.mkdir(parents=True)
    lines.touch()
    members = tuple(LiveMember(name=f"n{one}.0", node=f"n{one}", pid=NO_PROCESS) for one in range(2))
    scene = LiveScene(run="big", members=members, coordinator=5, successor=6, step_s=1.0, place="")
    cost = DrillCost(gpu_hours=0, usd=0)
    return LivePlan(
        scenario=live_scenario("half-speed"), scene=scene, target="n0.0", for_s=60.0, forecast=cost
    )


def play(home: Path, plan: LivePlan, say: Callable[[str], None] = lambda sentence: None) -> None:
    with open_store(str(home / "record.sqlite"), home) as store:
        setting = DrillSetting(
            home=home, store=store, take_in=lambda: None, usd_per_gpu_hour=1.0, wait_s=1.0, end_s=1.0
        )
        LiveDrill(setting, "big").played(plan, say=say)


def test_a_strike_that_fails_is_told_in_a_sentence_and_put_back(
    tmp_path: Path, plan: LivePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))  # by which the keeper would be started
    with pytest.raises(HoldfastError, match="could not be made: No such file or directory"):
        play(tmp_path, plan)
    assert read_note(note_path(tmp_path, "big")) is None
    journals = [path for path in (tmp_path / JOURNAL_DIRECTORY).rglob("*") if path.is_file()]
    assert any(f'"{DRILL}"'.encode() in path.read_bytes() for path in journals)  # told before it was tried


def test_a_drill_that_is_another_ones_is_not_put_back(tmp_path: Path, plan: LivePlan) -> None:
    write_note(note_path(tmp_path, "big"), NOTE)
    with pytest.raises(InputError, match="is under way"):
        play(tmp_path, plan)
    assert read_note(note_path(tmp_path, "big")) == NOTE


@outlived
def test_an_aborted_drill_ends_at_once_without_a_verdict(tmp_path: Path, plan: LivePlan) -> None:
    path = note_path(tmp_path, "big")

    def aborting(sentence: str) -> None:
        assert sentence.startswith("n0.0 is struck;")
        undone = abort(tmp_path, "big")
        assert undone is not None
        assert undone.scenario == "half-speed"
        write_note(path, NOTE)  # another drill begins before this one looks again

    with pytest.raises(
        DrillAborted, match=r"^half-speed of n0\.0 was aborted after \d+ s; it is not judged\.$"
    ) as ended:
        play(tmp_path, plan, aborting)
    assert ended.value.exit_code == 3
    assert read_note(path) == NOTE
    assert not aborted_path(tmp_path, "big").exists()


@outlived
def test_a_fault_made_only_after_its_drill_was_aborted_is_undone(
    tmp_path: Path, plan: LivePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = tmp_path / "keeper"  # aborts before the fault is made, and leaves it standing
    keeper.write_text('#!/bin/sh\nmv "$3" "${3%.json}.aborted"\necho ready\n', encoding="ascii")
    keeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(keeper))
    with subprocess.Popen(["sleep", "600"]) as agent:
        members = tuple(msgspec.structs.replace(one, agent=agent.pid) for one in plan.scene.members)
        frozen = msgspec.structs.replace(
            plan,
            scenario=live_scenario("agent-frozen"),
            scene=msgspec.structs.replace(plan.scene, members=members),
            target="n0",
        )
        try:
            with pytest.raises(DrillAborted):
                play(tmp_path, frozen)
            until(lambda: not is_stopped(agent.pid), wait_s=STOPPED_S_MAX)
        finally:
            agent.kill()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".."])
def test_a_run_whose_name_leads_elsewhere_has_no_drill(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.json").write_text("{}", encoding="ascii")
    with pytest.raises(InputError, match="cannot be the name of a run"):
        abort(tmp_path, name)
    assert (tmp_path / "x.json").exists()


def test_what_is_no_note_is_not_removed(tmp_path: Path) -> None:
    path = note_path(tmp_path, "big")
    path.parent.mkdir()
    path.write_text("{}", encoding="ascii")
    assert abort(tmp_path, "big") is None
    assert path.exists()


def test_a_keeper_that_says_nothing_is_waited_for_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 600\n", encoding="ascii")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr("holdfast.drills.live.keeping.KEEPER_WAIT_S", 2.0)
    with pytest.raises(HoldfastError, match="keeper of the drill did not start"):
        kept(note_path(tmp_path, "big"), NOTE)
    assert not note_path(tmp_path, "big").exists()
