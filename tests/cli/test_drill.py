"""`holdfast drill`: the operator's view first, and the truth nowhere before it is asked for."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.drill.text import show, show_list, sparkline
from holdfast.drills.live.keeping import DrillNote, note_path, write_note
from holdfast.drills.scenarios import SCENARIOS, Played, play
from holdfast.drills.tabletop import BoardRow


@pytest.fixture
def drill(holdfast: Any) -> Callable[..., Any]:
    """The verb as one line; it must end as expected."""

    def run(line: str, code: int = 0) -> Any:
        outcome = holdfast("drill", *shlex.split(line))
        assert outcome.code == code, outcome.err
        return outcome

    return run


def test_a_drill_keeps_its_secret_until_asked(drill: Any) -> None:
    hidden = drill("play cooling-pump --seed 3").out
    told = drill("reveal cooling-pump --seed 3").out
    assert "pump" not in hidden
    assert "pump" in told
    assert told.startswith(hidden)


def test_a_drill_as_data(drill: Any) -> None:
    told = drill("reveal quiet --gpus 256 --json").json
    assert told["gpus"] == 256
    assert told["truth"]["is_incident"] is False
    assert drill("play quiet --gpus 256 --json").json == {**told, "truth": None}
    assert drill("list --json").json == {name: one.title for name, one in SCENARIOS.items()}


def test_a_drill_as_files(drill: Any, tmp_path: Path) -> None:
    written = drill(f"play gc-pause --gpus 256 --out {tmp_path / 'drill'}").err
    assert {"events.jsonl", "truth.json"} <= {path.name for path in (tmp_path / "drill").iterdir()}
    assert f"Wrote {tmp_path / 'drill' / 'events.jsonl'}" in written
    again = drill(f"play gc-pause --gpus 256 --out {tmp_path / 'drill'}", code=2)
    assert "is not empty" in again.err


@pytest.mark.parametrize(
    ("line", "sentence", "hint"),
    [
        ("play cooling-pmp", "cooling-pmp", "cooling-pump"),
        ("reveal cooling-pmp", "cooling-pmp", "cooling-pump"),
        ("play cooling-pump --days 3", "No such option", "holdfast drill play --help"),
        ("play quiet --gpus 0", "--gpus", "holdfast drill play --help"),
    ],
)
def test_mistakes_are_told_in_a_sentence(drill: Any, line: str, sentence: str, hint: str) -> None:
    outcome = drill(line, code=2)
    assert sentence in outcome.err
    assert hint in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("scenario", "target", "told"),
    [("slow-storage", "storage", "slow-storage is"), ("half-speed", "n2.1+2", "half-speed of n2.1+2 is")],
)
def test_an_abort_names_the_drill(drill: Any, tmp_path: Path, scenario: str, target: str, told: str) -> None:
    note = DrillNote(id="one", run="big", scenario=scenario, target=target, due_ns=2**62, put_back=())
    write_note(note_path(tmp_path / "home", "big"), note)
    assert drill("live big --abort").out == f"{told} over; all changes are undone.\n"


@pytest.fixture(scope="module")
def played() -> Played:
    return play("cooling-pump", 1)


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_the_terminal(
    played: Played, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    show(played, True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert not any("…" in line for line in lines)


def test_the_view_comes_first_and_the_truth_last(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    show(played, False)
    view = capsys.readouterr().out
    show(played, True)
    revealed = capsys.readouterr().out
    assert revealed.startswith(view)
    assert played.truth.cause.subject not in view
    assert f"Cause     {played.truth.cause.subject}, in cooling" in revealed
    headings = ("What the record says", "What monitoring shows", "Questions for the table", "The truth")
    assert [revealed.index(heading) for heading in headings] == sorted(map(revealed.index, headings))


def test_a_quiet_half_hour_has_no_story(capsys: pytest.CaptureFixture[str]) -> None:
    show(play("quiet", 1), True)
    printed = capsys.readouterr().out
    assert "Nothing but steps and checkpoints, as usual." in printed
    assert "nothing is wrong" in printed


def row(*values: float | None, notable: float = 1.0) -> BoardRow:
    return BoardRow(label="level", unit="m", notable=notable, values=values)


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        (row(0, 7), "▁█"),
        (row(5, 5.05, 5), "▁▁▁"),
        (row(0, None, 7), "▁ █"),
        (row(None, None), "  "),
        (row(7, 3.5, 0), "█▅▁"),
        (row(0, 0, 7, 7, 0, 0), "▁█▁"),
    ],
)
def test_a_sparkline(given: BoardRow, drawn: str) -> None:
    assert sparkline(given, 3) == drawn


def test_the_list_has_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    show_list()
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if line[0] != " "] == list(SCENARIOS)
