"""Holds docs/import.md against the importers: its example runs, and every kind and state is described."""

import doctest
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from holdfast.record.events import KINDS, Event, KnownEvent
from holdfast.record.importers import slurm

PAGE = (Path(__file__).parents[3] / "docs" / "import.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```pycon\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    example = doctest.DocTestParser().get_doctest(blocks[0], {}, "import.md", None, None)
    printed: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(example, out=printed.append)
    assert results.attempted > 5
    assert results.failed == 0, "".join(printed)


@pytest.mark.parametrize(("kind", "struct"), list(zip(KINDS, get_args(KnownEvent), strict=True)))
def test_every_kind_is_described_with_all_its_columns(kind: str, struct: type[msgspec.Struct]) -> None:
    (row,) = re.findall(
        rf"^\|[^|]*`{re.escape(kind)}`[^|]*\| (.*) \|$", PAGE.split("| kind | its own")[1], re.MULTILINE
    )
    shared = {field.name for field in msgspec.structs.fields(Event)}
    own = [field.name for field in msgspec.structs.fields(struct) if field.name not in shared]
    assert re.findall(r"`(\w+)`", row) == own


def test_every_end_of_a_job_is_described_with_its_outcome() -> None:
    rows = re.findall(r"^\| (`[A-Z_`, ]+`) \| (.*) \|$", PAGE.split("| `State` |")[1], re.MULTILINE)
    described = {state: said for states, said in rows for state in re.findall(r"`([A-Z_]+)`", states)}
    ends = {state: outcome for state, outcome in slurm.OUTCOMES.items() if outcome}
    assert described.keys() == ends.keys()
    assert all(f"`run.ended`, {outcome}" in described[state] for state, outcome in ends.items())
