"""Runs that only their own log tells of: what `watch` and `diagnose` say of their steps."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.wording import stamp

Holdfast = Callable[..., Any]


@pytest.fixture
def signals(tmp_path: Path) -> Path:
    """A store without any series."""
    path = tmp_path / "signals"
    path.mkdir()
    return path


def written(path: Path, *paces: tuple[int, float], ago_s: float = 0.0) -> float:
    """Steps, so many of each length one after the other, and when the last was made: so long before now.

    Every step takes exactly as long as the others of its pace.
    """
    lengths_s = [length_s for count, length_s in paces for _ in range(count)]
    last_s = time.time() - ago_s
    at_s = last_s - sum(lengths_s)
    lines = []
    for number, length_s in enumerate(lengths_s):
        at_s += length_s
        lines.append(json.dumps({"time": at_s, "step": number}))
    path.write_text("\n".join(lines) + "\n")
    return last_s


def at(moment_s: float) -> str:
    return stamp(round(moment_s * 1e9)).replace(" ", "T")


@pytest.fixture
def watch(holdfast: Holdfast, signals: Path) -> Callable[..., Any]:
    def run(log: Path | str, *options: str) -> Any:
        return holdfast("watch", "--once", "--signals", str(signals), "--step-log", str(log), *options)

    return run


@pytest.mark.parametrize("step_s", [2.0, 10 / 64])
def test_a_stop_is_told_in_half_a_minute_though_all_steps_took_the_same_time(
    watch: Callable[..., Any], tmp_path: Path, step_s: float
) -> None:
    # At 10 / 64 s, 64 steps lie between two looks at the log.
    last_s = written(tmp_path / "llama.jsonl", (round(4_000 / step_s), step_s), ago_s=300)
    assert watch(tmp_path / "llama.jsonl", "--at", at(last_s + 10)).out == ""
    told = watch(tmp_path / "llama.jsonl", "--at", at(last_s + 30)).out
    assert "llama is at a standstill: the run makes no steps" in told


def test_a_stop_ends_no_slowdown_and_is_told_at_once_after_one(
    watch: Callable[..., Any], tmp_path: Path
) -> None:
    last_s = written(tmp_path / "llama.jsonl", (600, 2.0), (200, 3.0), ago_s=600)
    slow = watch(tmp_path / "llama.jsonl", "--at", at(last_s + 5)).out
    assert "slower" in slow
    # Of a run that is known for half an hour only, a stop would be told after two minutes.
    stopped = watch(tmp_path / "llama.jsonl", "--at", at(last_s + 40)).out
    assert "the run makes no steps" in stopped
    later = watch(tmp_path / "llama.jsonl", "--at", at(last_s + 400)).out
    assert "resolved" not in stopped + later


def test_an_incident_is_over_only_for_a_look_that_could_have_seen_its_run(
    watch: Callable[..., Any], holdfast: Holdfast, tmp_path: Path
) -> None:
    """And that comes ten minutes after the last one that saw it: another watch may have better signals."""
    last_s = written(tmp_path / "llama.jsonl", (2_000, 2.0), ago_s=1_000)
    written(tmp_path / "other.jsonl", (2_000, 2.0))
    assert "open" in watch(tmp_path / "llama.jsonl", "--at", at(last_s + 120)).out
    beyond = watch(tmp_path / "other.jsonl")
    assert (beyond.code, beyond.out) == (0, "")
    assert "These signals have no data about llama: llama/s1 stays open." in beyond.err
    assert [one["state"] for one in holdfast("incidents", "--json").json] == ["open"]
    # Its own log can say that it goes on.
    with (tmp_path / "llama.jsonl").open("a") as log:
        for number in range(500):
            log.write(json.dumps({"time": last_s + number * 2.0, "step": 2_000 + number}) + "\n")
    assert "resolved" not in watch(tmp_path / "llama.jsonl", "--at", at(last_s + 400)).out
    assert "resolved" in watch(tmp_path / "llama.jsonl").out


def test_a_log_without_a_step_is_not_passed_over_in_silence(
    watch: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "train.log").write_text("loading weights\nready\n")
    done = watch(tmp_path / "train.log")
    assert done.code == 0
    assert f"No step can be read from {tmp_path / 'train.log'} so far." in done.err
    assert "Nothing can be said of train: the signals have no step of it in the window." in done.err


def test_a_run_without_a_step_in_the_window_is_told_with_its_last(
    watch: Callable[..., Any], holdfast: Holdfast, signals: Path, tmp_path: Path
) -> None:
    last_s = written(tmp_path / "llama.jsonl", (500, 2.0), ago_s=7_200)
    said = f"the signals have no step of it in the window; its last step was at {stamp(round(last_s * 1e9))}."
    assert said in watch(tmp_path / "llama.jsonl").err
    log = ("--signals", str(signals), "--step-log", str(tmp_path / "llama.jsonl"))
    shown = holdfast("diagnose", "llama", "--window", "30m", *log)
    said = said.replace("the signals have", "the log has")
    assert said in " ".join(shown.out.split())
    assert "Nothing is wrong" not in shown.out
    refused = holdfast("diagnose", "llama", "--check", "--window", "30m", *log)
    assert refused.code == 2
    assert said in refused.err


def test_a_run_that_stopped_before_the_usual_window_is_at_a_standstill(
    holdfast: Holdfast, signals: Path, tmp_path: Path
) -> None:
    """After 2,400 s, 64 GPUs have lost up to 64 * 2,400 / 3,600 = 42.7 hours, at 2.50 USD 106.67 USD."""
    last_s = written(tmp_path / "llama.jsonl", (500, 2.0), ago_s=2_400)
    (tmp_path / "prices.toml").write_text("[[rates]]\nper_gpu_hour = 2.5\n")
    log = ("--signals", str(signals), "--step-log", str(tmp_path / "llama.jsonl"), "--at", at(last_s + 2_400))
    priced = ("--prices", "prices.toml", "--gpus", "64")
    shown = holdfast("diagnose", *log, *priced)  # its log names the run
    assert "llama/s1: at a standstill since" in shown.out
    assert "The price of a GPU-hour is assumed" not in shown.out
    (incident,) = holdfast("diagnose", *log, *priced, "--json").json["incidents"]
    assert incident["cost"]["lost_gpu_hours"] == pytest.approx(64 * 2_400 / 3_600, rel=0.02)
    assert incident["cost"]["usd"] == pytest.approx(2.5 * incident["cost"]["lost_gpu_hours"])
    unpriced = holdfast("diagnose", "llama", *log).out
    assert "not known, as nothing says how many GPUs the run has" in " ".join(unpriced.split())
    written(tmp_path / "other.jsonl", (500, 2.0))
    both = holdfast("diagnose", *log, "--step-log", str(tmp_path / "other.jsonl"))
    assert (both.code, "Name one of llama, other." in both.err) == (2, True)


def test_times_ahead_of_now_are_told(watch: Callable[..., Any], tmp_path: Path) -> None:
    written(tmp_path / "llama.jsonl", (500, 2.0), ago_s=-7_300)
    assert "is 2 h 1 min ahead of now." in watch(tmp_path / "llama.jsonl").err
    written(tmp_path / "llama.jsonl", (500, 2.0), ago_s=-5)
    assert "ahead of now" not in watch(tmp_path / "llama.jsonl").err


def test_a_run_that_returned_to_a_checkpoint_and_goes_on_is_not_at_a_standstill(
    watch: Callable[..., Any], tmp_path: Path
) -> None:
    now_s = time.time()
    numbers = [*range(1_500), *range(1_000, 1_300)]
    lines = [
        json.dumps({"time": now_s - 3.0 * (len(numbers) - row), "step": number})
        for row, number in enumerate(numbers)
    ]
    (tmp_path / "llama.jsonl").write_text("\n".join(lines) + "\n")
    done = watch(tmp_path / "llama.jsonl", "--at", at(now_s))
    assert (done.code, done.out) == (0, "")


def test_a_step_log_needs_no_signals_beside_it(holdfast: Holdfast, tmp_path: Path) -> None:
    last_s = written(tmp_path / "llama.jsonl", (1_000, 2.0))
    log = ("--step-log", str(tmp_path / "llama.jsonl"), "--at", at(last_s))
    watched = holdfast("watch", "--once", *log)
    assert (watched.code, watched.out) == (0, "")
    assert "only steps are judged" in watched.err
    diagnosed = holdfast("diagnose", "llama", *log)
    assert diagnosed.code == 0
    assert "The steps are as they should be; nothing else is seen." in diagnosed.out
    seen = holdfast("doctor", *log)
    assert seen.code == 0
    assert "llama: on unknown nodes, known by its step log." in seen.out
    # A directory that is named and not there is a mistake still, and so is none at all.
    for options in (("--signals", str(tmp_path / "none"), *log), ("--at", at(last_s))):
        refused = holdfast("watch", "--once", *options)
        assert refused.code == 2
        assert "There are no signals in" in refused.err


def test_doctor_says_when_the_last_step_of_a_log_was(
    holdfast: Holdfast, signals: Path, tmp_path: Path
) -> None:
    last_s = written(tmp_path / "llama.jsonl", (500, 2.0), ago_s=7_200)
    (tmp_path / "empty.csv").write_text("time,step\n")
    logs = [word for name in ("llama.jsonl", "empty.csv") for word in ("--step-log", str(tmp_path / name))]
    told = " ".join(holdfast("doctor", "--signals", str(signals), *logs).out.split())
    last = f"its last step was at {stamp(round(last_s * 1e9))}."
    assert f"known by its step log, but its pace now is unknown: {last}" in told
    assert "empty: on unknown nodes, known by its step log, but it has no step so far." in told
    assert "None is known" not in told


def test_two_steps_are_said_to_be_too_few_and_not_to_be_none(
    watch: Callable[..., Any], holdfast: Holdfast, signals: Path, tmp_path: Path
) -> None:
    last_s = written(tmp_path / "llama.jsonl", (2, 3.0))
    said = (
        "the signals have too few steps of it in the window: two do not tell its pace; "
        f"its last step was at {stamp(round(last_s * 1e9))}."
    )
    log = ("--step-log", str(tmp_path / "llama.jsonl"), "--at", at(last_s + 2))
    assert said in watch(tmp_path / "llama.jsonl", "--at", at(last_s + 2)).err
    shown = holdfast("diagnose", "llama", "--signals", str(signals), *log)
    said = said.replace("the signals have", "the log has")
    assert said in " ".join(shown.out.split())


STEPS = Path(__file__).parents[1] / "data" / "steps.csv"


def test_a_slow_stretch_that_a_report_prices_is_listed_from_the_log_and_from_the_record(
    holdfast: Holdfast,
) -> None:
    log = ("--step-log", f"my-run={STEPS}", "--gpus", "8", "--at", "2026-11-01T09:23:28Z")
    logged = holdfast("diagnose", *log)
    assert "no step made, nothing recorded says why 3 min 43 s 0.46" in " ".join(logged.out.split())
    assert "Nothing that is wrong is seen" not in logged.out
    (listed,) = holdfast("diagnose", *log, "--json").json["past"]
    assert holdfast("import", STEPS, "--run", "my-run", "--gpus", "8").code == 0
    (priced,) = holdfast("report", "my-run", "--json").json["incidents"]
    assert listed == priced
    recorded = holdfast("diagnose", "my-run", "--json").json
    assert recorded["past"] == [priced]
    assert recorded["quality"]["steps_from"] == "record"
    shown = " ".join(holdfast("diagnose", "my-run").out.split())
    assert "Steps 120, the last at 2026-11-01 09:23:28Z; a healthy one takes 10 s" in shown
    assert "There are no signals" in shown
    assert "--prometheus URL" in shown


def test_a_run_that_stands_is_told_from_its_record_alone(holdfast: Holdfast, tmp_path: Path) -> None:
    written(tmp_path / "llama.jsonl", (600, 2.0), ago_s=300)
    text = (tmp_path / "llama.jsonl").read_text()
    of_log, recorded = (
        f'"run": "{run}", "source": "{source}", "step"'
        for run, source in (("cut", "table"), ("llama", "n1/77"))
    )
    (tmp_path / "cut.jsonl").write_text(text.replace('"step"', of_log))
    (tmp_path / "llama.jsonl").write_text(text.replace('"step"', recorded))
    assert holdfast("import", tmp_path / "cut.jsonl", tmp_path / "llama.jsonl").code == 0
    ended = holdfast("diagnose", "cut", "--check")  # where a log ends, nobody knows whether the run stands
    assert (ended.code, "standstill" in ended.out) == (0, False)
    done = holdfast("diagnose", "llama", "--check")
    assert done.code == 1
    assert "llama/s1: at a standstill since" in done.out
    assert "holdfast diagnose llama --record" in done.out
