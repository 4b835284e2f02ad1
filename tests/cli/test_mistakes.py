"""Bad input: one clear sentence and a hint on stderr, nothing on stdout, exit code 2, and nothing lost."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast.record.events import RunStarted, encode
from holdfast.record.journal import line_of

GOOGLE = "google-70b-112-nodes-events.jsonl"


def complaint(done: Any) -> str:
    """The sentence of a refusal, after checking that it is one."""
    assert done.code == 2, done
    assert done.out == ""
    assert "Traceback" not in done.err
    sentence, *rest = done.err.splitlines()
    assert sentence.startswith("holdfast: ")
    assert sentence.endswith((".", "?", "'.")), sentence
    assert all(line.startswith("  hint: ") for line in rest)
    return str(sentence.removeprefix("holdfast: "))


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "--no-such-flag"],
        ["reprot"],
        ["import"],
        ["import", "x.csv", "--gpus", "many"],
        ["import", "x.csv", "--reference-step-s", "-8"],
        ["events", "--since", "yesterday"],
        ["events", "--limit", "0"],
        ["events", "--kind", "steps"],
        ["report"],
        ["report", "nobody"],
        ["mfu"],
        ["bench", "nothing"],
        ["runs", "--store", "ftp://somewhere/store"],
    ],
    ids=" ".join,
)
def test_wrong_flags_and_names(holdfast: Any, arguments: list[str]) -> None:
    assert complaint(holdfast(*arguments))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("run --nodes x t.py", "--nodes x is not a whole number from 1 to 1,024."),
        ("run --nodes 1.5 t.py", "--nodes 1.5 is not a whole number from 1 to 1,024."),
        ("chaos a", "Missing argument 'FAULT': one of kill, node, pause."),
        ("simulate --gpus 0", "--gpus 0 is not a whole number of at least 1."),
        ("run --hang-after -1 t.py", "--hang-after -1 is not a number above 0."),
        ("run --hang-after inf t.py", "--hang-after inf is not a finite number above 0."),
        ("plan fit --lemon-faults 1", "--lemon-faults 1 is not a whole number from 2 to 1,000,000."),
        ("plan fit --days 1e9", "--days 1000000000 is not a number from 0.001 to 100,000."),
        ("collect --slurm --every 0", "--every '0' must be above 0."),
        ("collect --slurm --every soon", "--every 'soon' is not a duration; write 90, 90s, 5m, 3.1h or 2d."),
        ("simulate --rates gone.json", "--rates: File 'gone.json' does not exist."),
        (
            "checkpoint export x --to y --format z",
            "--format 'z' is not one of 'safetensors', 'torch', 'dcp'.",
        ),
        ("checkpoint prove x gone.py", "SCRIPT: File 'gone.py' does not exist."),
    ],
)
def test_a_wrong_value_is_told_with_its_flag_and_what_is_expected(
    holdfast: Any, arguments: str, sentence: str
) -> None:
    done = holdfast(*arguments.split())
    assert complaint(done) == sentence
    assert " --help`." in done.err


@pytest.mark.parametrize(
    "arguments",
    [["runbook", "x\udcff/s1"], ["watch", "--once", "\udcff"], ["events", "--subject", "\udcff"]],
    ids=["runbook", "watch", "events"],
)
def test_a_name_that_is_no_text(holdfast: Any, arguments: list[str]) -> None:
    assert "cannot be a name in the record: it is not UTF-8." in complaint(holdfast(*arguments))


@pytest.mark.parametrize("verb", [["topology", "check"], ["topology", "show", "--slurm"]], ids=" ".join)
def test_a_home_that_cannot_be_looked_into(holdfast: Any, tmp_path: Path, verb: list[str]) -> None:
    # A name that is too long fails as one that may not be searched does, and for every user.
    done = holdfast(*verb, HOLDFAST_HOME=str(tmp_path / ("x" * 300)))
    assert "annot " in complaint(done)  # access it, or be read


def test_a_file_that_is_not_there(holdfast: Any) -> None:
    assert "cannot be read: No such file" in complaint(holdfast("import", "nowhere.jsonl"))


def test_an_empty_file(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    assert "is empty" in complaint(holdfast("import", tmp_path / "empty.jsonl"))


@pytest.mark.parametrize("flag", ["--checkpoints", "--log-dir"])
def test_a_file_where_a_run_needs_a_directory(holdfast: Any, tmp_path: Path, flag: str) -> None:
    (tmp_path / "train.py").write_text("print('started')\n", encoding="ascii")
    done = holdfast("run", flag, tmp_path / "train.py", tmp_path / "train.py")
    assert f"{flag} {tmp_path / 'train.py'} is a file, not a directory." in complaint(done)


@pytest.mark.parametrize("verb", ["list", "verify"])
def test_a_file_that_is_no_checkpoint(holdfast: Any, tmp_path: Path, verb: str) -> None:
    (tmp_path / "train.py").touch()
    done = holdfast("checkpoint", verb, tmp_path / "train.py")
    assert "train.py is not in a directory of checkpoints." in complaint(done)


def test_a_directory_without_journals(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "holds no journal of Holdfast and no files" in complaint(holdfast("import", tmp_path / "folder"))


def test_a_binary_file(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(os.urandom(4096) + b"\0")
    complaint(holdfast("import", tmp_path / "binary"))


def test_one_bad_file_among_good_ones_does_not_keep_the_others_out(
    holdfast: Any, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.jsonl").touch()
    done = holdfast("import", tmp_path / "empty.jsonl", data / GOOGLE)
    assert done.code == 2
    assert "empty.jsonl is empty" in done.err
    assert "7,871 new" in done.out


def test_unreadable_lines_are_counted_and_shown_with_their_numbers(holdfast: Any, tmp_path: Path) -> None:
    good = encode(RunStarted(id="a-1", occurred_ns=1, run="r", gpus=1)).decode()
    (tmp_path / "log.jsonl").write_text(f"{good}\nnonsense\n{good[:40]}\n", encoding="utf-8")
    done = holdfast("import", tmp_path / "log.jsonl")
    assert done.code == 0
    assert "2 lines skipped" in done.out
    assert "line 2" in done.err
    assert "line 3" in done.err


def test_a_truncated_journal_gives_what_is_whole(holdfast: Any, tmp_path: Path) -> None:
    lines = [line_of(encode(RunStarted(id=f"a-{n}", occurred_ns=n, run="r", gpus=1))) for n in range(3)]
    (tmp_path / "cut.journal").write_bytes(b"".join(lines)[:-7])
    done = holdfast("import", tmp_path / "cut.journal")
    assert done.code == 0
    assert "events: 2 new; 1 lines skipped" in done.out
    assert "line 3" in done.err


def test_a_database_that_is_none(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "record.sqlite").write_bytes(b"this is no database, " * 100)
    before = (tmp_path / "home" / "record.sqlite").read_bytes()
    complaint(holdfast("report"))
    assert (tmp_path / "home" / "record.sqlite").read_bytes() == before


def test_a_database_that_was_cut_off(holdfast: Any, data: Path, tmp_path: Path) -> None:
    holdfast("import", data / GOOGLE)
    path = tmp_path / "home" / "record.sqlite"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    complaint(holdfast("report"))


def test_an_unreachable_postgresql(holdfast: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    done = holdfast("runs", "--store", f"postgresql://someone:secret@127.0.0.1:{port}/nothing")
    assert "secret" not in complaint(done)


def test_a_home_that_cannot_be_made(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    complaint(holdfast("runs", HOLDFAST_HOME=str(tmp_path / "file" / "home")))


def test_a_page_and_json_at_once_on_stdout(holdfast: Any) -> None:
    assert "both print to stdout" in complaint(holdfast("report", "--html", "-", "--json"))


def test_a_complaint_stays_one_line(holdfast: Any) -> None:
    assert "no\\x1b[2Jwhere\\n.jsonl" in complaint(holdfast("import", "no\x1b[2Jwhere\n.jsonl"))
