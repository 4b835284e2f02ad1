"""The tabletop as people get it: the operator's view first, and the truth nowhere before it is asked for."""

import re
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.scenario_text import Row, show, show_list, sparkline, tabletop, write
from holdfast.drills.scenarios import SCENARIOS, Played, Truth, play
from holdfast.record.errors import InputError
from holdfast.record.importers import Options, import_file
from holdfast.topology import file


@pytest.fixture(scope="module")
def played() -> Played:
    return play("cooling-pump", 1)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_operators_view_does_not_give_the_cause_away(name: str) -> None:
    one = play(name, 2)
    view = msgspec.json.encode(tabletop(one, reveal=False)).decode()
    assert name not in view
    assert one.truth.cause.mechanism not in view or not one.truth.is_incident
    assert one.truth.decides not in view
    assert tabletop(one, reveal=False).truth is None
    assert tabletop(one, reveal=True).truth == one.truth


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


def test_the_story_says_when_steps_became_slow_and_when_they_were_well(played: Played) -> None:
    truth = played.truth
    slow, well = tabletop(played, reveal=False).story
    assert re.fullmatch(r"steps take [67]\.\d\d s, usually 6\.0\d s", slow.what)
    assert well.what == "steps are as usual again"
    assert truth.surface.at_ns is not None
    assert truth.ended_ns is not None
    assert 0 <= slow.at_ns - truth.surface.at_ns < 30 * 10**9
    assert abs(well.at_ns - truth.ended_ns) < 60 * 10**9


def test_a_quiet_half_hour_has_no_story(capsys: pytest.CaptureFixture[str]) -> None:
    show(play("quiet", 1), True)
    printed = capsys.readouterr().out
    assert "Nothing but steps and checkpoints, as usual." in printed
    assert "nothing is wrong" in printed


def row(*values: float | None, notable: float = 1.0) -> Row:
    return Row(label="level", unit="m", notable=notable, values=values)


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
def test_a_sparkline(given: Row, drawn: str) -> None:
    assert sparkline(given, 3) == drawn


def test_the_list_has_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    show_list()
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if line[0] != " "] == list(SCENARIOS)


def test_what_is_written_can_be_read_back(played: Played, tmp_path: Path) -> None:
    files = write(played, tmp_path / "drill")
    names = ["events.jsonl", "signals.om", "redfish.jsonl", "topology.yaml", "truth.json"]
    assert [path.name for path in files] == names
    events, signals, redfish, topology, truth = files
    page = file.read(topology.read_text("utf-8"))
    assert played.run in page.described(page.survey).topology
    with import_file(events, Options()) as reading:
        assert list(reading) == list(played.events)
    assert msgspec.json.decode(truth.read_bytes(), type=Truth) == played.truth
    readings = [msgspec.json.decode(line) for line in redfish.read_bytes().splitlines()]
    assert len(readings) == 180 * played.layout.count("loop")
    flows = [reading["FlowLitersPerMinute"] for reading in readings if "FlowLitersPerMinute" in reading]
    assert {type(flow) for flow in flows} == {float, str}
    with signals.open("rb") as text:
        text.seek(-6, 2)
        assert text.read() == b"# EOF\n"


def test_a_place_that_cannot_be_written_to_is_refused(played: Played, tmp_path: Path) -> None:
    (tmp_path / "drill").write_text("a file")
    with pytest.raises(InputError, match="cannot be written"):
        write(played, tmp_path / "drill")
