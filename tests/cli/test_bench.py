"""`holdfast bench`: the verb finds the benchmarks in a checkout, and says so where there is none."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from launching import descendants
from waiting import WAIT_S, until

from bench.record import EVENT_US_MAX, RecordBench
from holdfast.cli.bench import checkout
from holdfast.record.errors import InputError

ROOT = Path(__file__).parents[2]


def made(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def test_the_benchmarks_are_beside_the_source_of_the_package(tmp_path: Path) -> None:
    root = made(tmp_path / "a", "src/holdfast/__init__.py", "bench/__init__.py")
    assert checkout(root / "src/holdfast/__init__.py", tmp_path) == root


def test_an_installed_package_uses_the_checkout_it_is_called_in(tmp_path: Path) -> None:
    installed = made(tmp_path, "lib/site-packages/holdfast/__init__.py") / "lib/site-packages/holdfast"
    root = made(tmp_path / "a", "src/holdfast/__init__.py", "bench/__init__.py")
    assert checkout(installed / "__init__.py", root) == root
    other = made(tmp_path / "b", "bench/__init__.py")  # somebody else's benchmarks
    with pytest.raises(InputError, match="come with the source"):
        checkout(installed / "__init__.py", other)


def test_without_the_source_one_sentence_says_where_they_are(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "lib" / "site-packages").mkdir(parents=True)
    (tmp_path / "lib" / "site-packages" / "holdfast").symlink_to(ROOT / "src" / "holdfast")
    done = holdfast("bench", "ledger", PYTHONPATH=str(tmp_path / "lib" / "site-packages"))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("holdfast: The installed package does not include the benchmarks")
    assert "Clone the repository" in done.err


def test_help_lists_the_benchmarks_under_the_name_of_the_verb(holdfast: Any) -> None:
    done = holdfast("bench", "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: holdfast bench [OPTIONS] COMMAND")
    assert "Fold a million events" in done.out
    assert holdfast("bench", "ledger", "--help").out.startswith("Usage: holdfast bench ledger [OPTIONS]")


def test_sigterm_ends_what_a_benchmark_has_started() -> None:
    command = [sys.executable, "-m", "holdfast", "bench", "faults", "--only", "drain", "--repetitions", "1"]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    until(lambda: len(descendants(running.pid)) > 4)
    started = descendants(running.pid)
    running.terminate()
    assert running.wait(WAIT_S) == 128 + signal.SIGTERM
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


def test_killed_processes_lose_nothing_and_a_program_reads_it(holdfast: Any) -> None:
    done = holdfast("bench", "record", "--rounds", "3", "--kills", "6", "--json")
    assert (done.code, done.err) == (0, "")
    result = msgspec.json.decode(done.out, type=RecordBench)
    assert (result.killed_runs, result.lost) == (6, 0)
    assert result.acknowledged > 600
    assert 0 < result.plain_write_us < result.event_us < 10 * EVENT_US_MAX  # a busy machine measures badly


@pytest.mark.soak
def test_what_is_measured_of_the_twin(holdfast: Any) -> None:
    outcome = holdfast("bench", "twin", "--days", "2", "--seeds", "4", "--json")
    told = outcome.json
    assert outcome.code == 0
    assert {"llama3_s", "peak_bytes_100k"} <= set(told)
    assert told["is_exact"] is True
    assert all(value > 0 for value in told.values())
    assert told["growth"] == pytest.approx(told["us_per_failure_4x"] / told["us_per_failure"])
    assert told["thousand_seeds_min"] == pytest.approx(told["seeds_s"] / told["seeds"] * 1000 / 60)
    assert 30e6 < told["peak_bytes_100k"] < 2e9  # an interpreter with numpy at least, and what was promised


@pytest.mark.soak
def test_the_sentences_about_the_twin(holdfast: Any) -> None:
    shown = holdfast("bench", "twin", "--days", "1", "--seeds", "4").out
    assert "16,384 GPUs for 1 day: " in shown
    assert "4 seeds on 2 processes" in shown
    assert "agreed with the simulation to the nanosecond" in shown
