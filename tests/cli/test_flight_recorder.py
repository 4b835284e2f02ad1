"""`holdfast diagnose --flight-recorder`: jobs that hang, the dumps that torch writes, and the answer."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flight_entries import dump, entry, write

from holdfast.wording import stamp

Holdfast = Callable[..., Any]
JOB = Path(__file__).with_name("flight_job.py")
JOB_LIMIT_S = 400.0
S = 10**9
LAST_NS = 1_794_887_615 * S
"""When a run made its last step."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each case of flight_job.py."""
    folder = tmp_path_factory.mktemp("jobs")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "100"}
    command = [sys.executable, str(JOB), str(folder)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=JOB_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def line_of(function: str, part: str) -> int:
    """The line of the job in which a function does something."""
    lines = JOB.read_text(encoding="utf-8").splitlines()
    begins = next(number for number, line in enumerate(lines) if line.startswith(f"def {function}("))
    return next(number for number, line in enumerate(lines[begins:], begins + 1) if part in line)


def told(holdfast: Holdfast, *words: str) -> Any:
    return holdfast("diagnose", *words, "--json").json["flight_recorder"]


@pytest.mark.parametrize("dumps", ["", "named", "json_"])
def test_the_rank_that_loads_while_others_reduce_is_named(holdfast: Holdfast, jobs: Path, dumps: str) -> None:
    found = told(holdfast, "--flight-recorder", str(jobs / "absent" / dumps))
    (one,) = found["standstills"]
    inside, (place,) = one["inside"], one["others"]
    assert (one["kind"], one["holding"], one["size"]) == ("absent", [1], 3)
    assert (inside["ranks"], inside["call"], inside["seq"]) == ([0, 2], "all_reduce", 5)
    assert (place["ranks"], place["call"], place["seq"], place["is_finished"]) == ([1], "barrier", 4, True)
    if dumps != "json_":  # in which torch writes no stacks
        assert inside["lines"][0]["function"] == "train_step"
        assert inside["lines"][0]["line"] == line_of("train_step", "all_reduce")
        assert inside["lines"][1]["function"] == "absent"
        assert place["lines"][0]["line"] == line_of("be_rank", "dist.barrier()")
    said = (jobs / "absent" / "peer.json").read_text(encoding="utf-8")
    for line in ("collective, sequence number: 5", "collective: gloo:all_reduce", "missing ranks: {1}"):
        assert line in said, "torch's own analyser says the same"


def test_the_rank_that_entered_another_collective_is_named(holdfast: Holdfast, jobs: Path) -> None:
    (one,) = told(holdfast, "--flight-recorder", str(jobs / "other"))["standstills"]
    assert (one["kind"], one["holding"], one["inside"]["ranks"]) == ("other", [1], [0, 2])
    (place,) = one["others"]
    assert (place["call"], place["seq"]) == ("all_gather", 5)
    assert place["lines"][0]["line"] == line_of("other", "dist.all_gather")
    said = (jobs / "other" / "peer.json").read_text(encoding="utf-8")
    assert "Collective sequence number: 5 has errors" in said
    assert "Culprit rank 1" in said


def test_who_waits_for_somebody_that_waits_is_not_blamed(holdfast: Holdfast, jobs: Path) -> None:
    found = told(holdfast, "--flight-recorder", str(jobs / "chain" / "named"))
    first, second = found["standstills"]
    assert (first["inside"]["group"], first["absent"], first["holding"]) == ("default_pg", [0, 2], [2])
    assert (second["inside"]["ranks"], second["holding"]) == ([0], [1])
    # torch's own analyser names all that are not there, in the order of the dumps.
    said = json.loads((jobs / "chain" / "peer.json").read_text(encoding="utf-8"))
    assert [line for line in said if "missing ranks" in line] == [
        "missing ranks: {1}",
        "missing ranks: {0, 2}",
    ]


def test_the_answer_on_the_terminal(holdfast: Holdfast, jobs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in (0, 2):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(
            (jobs / "absent" / "named" / f"nccl_trace_rank_{rank}").read_bytes()
        )
    (folder / "stack_rank_1.txt").write_text('Thread 9 (idle): "MainThread"\n    load_batch (loader.py:33)\n')
    done = holdfast("diagnose", "--flight-recorder", str(folder), "--check")
    out = " ".join(done.out.split())
    assert done.code == 1
    assert "dumps of 2 of 3 ranks 2 of 3 ranks stand in all_reduce #5 of group default_pg" in out
    assert "there is no dump of rank 1. Do: Look at rank 1: the process died" in out
    assert "Rank 1 now, by its stack load_batch, loader.py:33" in out


def test_a_hang_that_a_step_log_shows_gets_the_collective_as_evidence(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    """2,000 steps of 2 s; then ranks 0 and 2 enter the last collective a second after the last step."""
    log, signals = tmp_path / "llama.jsonl", tmp_path / "signals"
    signals.mkdir()
    lines = (
        json.dumps({"time": LAST_NS / S - 2 * (1_999 - number), "step": number}) for number in range(2_000)
    )
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    entered = [entry(seq=1, state="completed"), entry(seq=2, time_created_ns=LAST_NS + S)]
    dumps = {rank: dump(entered[: 2 - (rank == 1)], {"0": [0, 1, 2]}) for rank in range(3)}
    folder = write(tmp_path / "dumps", dumps)

    def asked(at_ns: int, *words: str) -> Any:
        at = stamp(at_ns).replace(" ", "T")
        step_log = ("--signals", str(signals), "--step-log", str(log))
        return holdfast("diagnose", *step_log, "--flight-recorder", str(folder), "--at", at, *words)

    found = asked(LAST_NS + 60 * S, "--json").json
    (incident,) = found["incidents"]
    assert incident["cause"]["mechanism"] == "hang"
    assert found["flight_recorder"]["summary"].rstrip(".") in [one["text"] for one in incident["evidence"]]
    assert incident["decides"] == "A stack (py-spy dump) of rank 1."
    shown = " ".join(asked(LAST_NS + 60 * S).out.split())
    assert "rank 1: after all_reduce #1 of group default_pg, its last; train_step, train.py:41" in shown
    # While the run still made its steps, they are no evidence of anything.
    before = asked(LAST_NS - 60 * S)
    assert "The steps of llama do not show that it stands." in before.out


@pytest.mark.parametrize(
    "words",
    [
        ("--record",),
        ("--at", "2026-11-17T04:00:00Z"),
        ("--gpus", "8"),
        ("--window", "1h"),
        ("--topology", "cluster.toml"),
        ("--prices", "prices.toml"),
        ("--signals", "."),
        ("--store", "elsewhere.db"),
    ],
    ids=lambda words: words[0],
)
def test_what_is_about_a_run_needs_one(holdfast: Holdfast, tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = write(tmp_path / "dumps", {0: dump([entry()], {"0": [0, 1]})})
    for name in ("cluster.toml", "prices.toml", "elsewhere.db"):
        (tmp_path / name).touch()
    given = [str(tmp_path / word) if word.endswith((".toml", ".db")) else word for word in words]
    done = holdfast("diagnose", "--flight-recorder", str(folder), *given)
    assert (done.code, done.out) == (2, "")
    assert f"{words[0]} needs a run, and none is named." in done.err
    assert "Name the RUN." in done.err


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_dumps_are_shown_although_nothing_is_known_of_the_run(
    holdfast: Holdfast, tmp_path: Path, form: tuple[str, ...]
) -> None:
    folder = write(tmp_path / "dumps", {0: dump([entry()], {"0": [0, 1]})})
    done = holdfast("diagnose", "llama", "--flight-recorder", str(folder), *form)
    assert done.code == 2
    assert "1 of 2 ranks stands in all_reduce #1" in done.out
    assert done.err


def test_a_pipeline_that_works_passes_the_check(holdfast: Holdfast, tmp_path: Path) -> None:
    """Its sends and receives are in batches, of which torch marks only the closing entry as completed."""
    closing = entry("nccl:coalesced", 1, "completed", is_p2p=True, p2p_seq_id=1)
    ends = ("nccl:send 0->1", "nccl:recv 1<-0")
    dumps = {
        rank: dump([entry(name, 1, "scheduled"), closing], {"0": [0, 1]}) for rank, name in enumerate(ends)
    }
    done = holdfast("diagnose", "--flight-recorder", str(write(tmp_path / "dumps", dumps)), "--check")
    assert done.code == 0
    assert "No rank stands in a collective" in done.out


class Touching:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_dump_that_would_run_something_is_refused_and_runs_nothing(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    attack = pickle.dumps(dump([entry(profiling_name=Touching(made))], {"0": [0]}), 2)
    folder = write(tmp_path / "dumps", {0: attack})
    done = holdfast("diagnose", "--flight-recorder", str(folder))
    assert (done.code, done.out) == (2, "")
    assert "asks for more than plain values" in done.err
    assert "Traceback" not in done.err
    assert not made.exists()


def test_a_name_in_a_dump_cannot_command_the_terminal(holdfast: Holdfast, tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", {0: dump([entry("nccl:\x1b[2Jall_reduce")], {"0": [0, 1]})})
    assert "\x1b[2J" not in holdfast("diagnose", "--flight-recorder", str(folder)).out


@pytest.mark.parametrize("name", ["", "missing", "x" * 300], ids=["none", "missing", "too-long"])
def test_a_folder_without_dumps_is_a_mistake_in_a_sentence(
    holdfast: Holdfast, tmp_path: Path, name: str
) -> None:
    done = holdfast("diagnose", "--flight-recorder", str(tmp_path / "none" / name))
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "hint: " in done.err
