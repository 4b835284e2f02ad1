"""`holdfast reference` as its user meets it."""

import json
from typing import Any

import pytest

from holdfast.cli import main
from holdfast.ledger.references import published

Captured = pytest.CaptureFixture[str]
COLUMNS = 80


def reference(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["reference", *arguments])
    printed = capsys.readouterr()
    return int(str(ended.value.code)), printed.out, printed.err


def as_json(capsys: Captured, *arguments: str) -> dict[str, Any]:
    code, out, err = reference(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_everything_fits_a_plain_terminal(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    code, out, err = reference(capsys)
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert max(map(len, lines)) <= COLUMNS
    assert "…" not in out
    assert "\x1b" not in out
    figures = sum(line.endswith("]") for line in lines)
    table = published()
    assert figures == len(table.mfu) + len(table.bandwidth) + len(table.models)


def test_the_nearest_row_is_first_and_has_its_source(capsys: Captured) -> None:
    _, out, err = reference(capsys, "--chip", "NVIDIA H100 80GB HBM3", "--params", "70b", "--gpus", "512")
    first = out.splitlines()[2]
    assert first.split() == ["MPT-70B", "64.9B", "h100", "512", "bf16", "2,048", "41.2", "%", "full", "[1]"]
    assert "[1]  MosaicML LLM Foundry, MPT training benchmarks." in out
    assert err == "holdfast: 10 of 72 rows of MFU are shown; see --limit.\n"


def test_json_is_the_whole_table(capsys: Captured) -> None:
    answer = as_json(capsys)
    table = published()
    assert len(answer["mfu"]) == len(table.mfu)
    assert len(answer["bandwidth"]) == len(table.bandwidth)
    assert set(answer["models"]) == set(table.models)
    assert set(answer["sources"]) == set(table.sources)


def test_a_filter_keeps_its_rows_and_their_sources_only(capsys: Captured) -> None:
    answer = as_json(capsys, "--chip", "gb200", "--gpus", "512", "--limit", "3")
    assert [(row["chip"], row["gpus"]) for row in answer["mfu"]] == [("gb200", 512)] * 3
    assert [row["gpus"] for row in answer["bandwidth"]] == [1440, 128, 72]
    assert answer["models"] == {}
    assert set(answer["sources"]) == {row["source"] for row in answer["mfu"] + answer["bandwidth"]}


@pytest.mark.parametrize(
    ("chip", "table", "remark"),
    [
        ("h200", "Bus bandwidth", "holdfast: No MFU on this chip; `holdfast mfu` takes the chip"),
        ("b300", "MFU", "holdfast: No bus bandwidth is published for this chip."),
    ],
)
def test_a_table_without_rows_is_not_passed_over(
    capsys: Captured, chip: str, table: str, remark: str
) -> None:
    code, out, err = reference(capsys, "--chip", chip)
    assert code == 0
    assert out.startswith(table)
    assert err.startswith(remark)


def test_size_alone_sorts_by_size(capsys: Captured) -> None:
    answer = as_json(capsys, "--params", "405e9", "--limit", "5")
    assert {row["params"] for row in answer["mfu"]} == {405_000_000_000}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--chip tpu", "The chip 'tpu' is not known."),
        ("--gpus many", "'many' is not a count"),
        ("--limit 0", "--limit 0 is not a whole number"),
    ],
)
def test_a_mistake_is_a_sentence_and_a_hint(capsys: Captured, arguments: str, sentence: str) -> None:
    code, out, err = reference(capsys, *arguments.split())
    assert (code, out) == (2, "")
    said, hint = err.splitlines()
    assert sentence in said
    assert hint.startswith("  hint: ")
