"""`holdfast plan cadence`: the answer, where its inputs come from, and what is refused."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.cli import main
from holdfast.record import events
from holdfast.record.clock import ManualClock
from holdfast.record.recorder import Recorder
from holdfast.wording.parsing import seconds

Holdfast = Callable[..., Any]
GOOGLE = "test-040104-goodput-n112-70b-a3m"


def inputs(answer: Any) -> dict[str, Any]:
    return {one["name"]: one for one in answer["inputs"]}


def efficiencies(answer: Any) -> dict[str, float]:
    return {choice["rule"]: choice["efficiency"] for choice in answer["choices"]}


@pytest.mark.parametrize(
    ("text", "value_s"),
    [
        ("90", 90),
        ("90s", 90),
        ("5m", 300),
        ("5 min", 300),
        ("3.1h", 11_160),
        ("2d", 172_800),
        ("250ms", 0.25),
    ],
)
def test_times_are_written_as_people_write_them(text: str, value_s: float) -> None:
    assert seconds(text) == pytest.approx(value_s)


def test_aupys_and_dalys_figures_come_out(holdfast: Holdfast) -> None:
    aupy = ("--stall", "600", "--restore", "10m", "--downtime", "60s", "--write", "0")
    answer = holdfast("plan", "cadence", "--mtbf", "7519s", *aupy, "--interval", "1h", "--json").json
    assert answer["young_s"] == pytest.approx(3604 - 600, abs=1)
    assert answer["optimum_s"] == pytest.approx(3218, abs=1)
    growth = math.exp(600 / 7519) * math.expm1(3600 / 7519)
    assert answer["efficiency"] == pytest.approx((3600 - 600) / ((7519 + 60) * growth))
    daly = holdfast("plan", "cadence", "--mtbf", "24h", "--stall", "5m", "--json").json
    assert daly["daly_s"] / 60 == pytest.approx(117, abs=0.5)


def test_a_plan_is_at_the_rate_that_holds_with_factors_and_in_the_currency(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    """3 USD since 2020 for any run × 1.2 is 3.60 USD, 1.80 GOLD; neither the old rate nor one team's."""
    prices = tmp_path / "prices.toml"
    prices.write_text(
        "currency = 'GOLD'\nusd_per_gpu_hour = 7\n"
        "[[rates]]\nper_gpu_hour = 5\nto = 2020-01-01\n[[rates]]\nper_gpu_hour = 3\nfrom = 2020-01-01\n"
        "[[rates]]\nper_gpu_hour = 9\nteam = 'red'\n[factors]\ntax = 1.2\n[usd_per]\nGOLD = 2\n"
    )
    asked = ("--prices", str(prices), "--gpus", "64")
    answer = holdfast("plan", "cadence", *asked, "--json").json
    assert inputs(answer)["GPU-hour"]["value"] == pytest.approx(3.6)
    assert inputs(answer)["GPU-hour"]["source"] == "the prices file: rate (no. 2); × 1.2 tax"
    shown = holdfast("plan", "cadence", *asked).out
    assert "1.80 GOLD" in shown
    assert "USD" not in shown
    size = ("plan", "size", "--model", "llama3-8b", "--chip", "h100", *asked)
    assert holdfast(*size, "--json").json["usd_per_gpu_hour"] == pytest.approx(3.6)
    run = ("plan", "run", "--days", "1", "--mtbf", "20h", "--runs", "0", *asked)
    assert holdfast(*run, "--json").json["usd_per_gpu_hour"] == pytest.approx(3.6)
    assert "at 1.80 GOLD a GPU-hour" in holdfast(*run).out


def test_what_the_present_interval_costs(holdfast: Holdfast) -> None:
    given = ("--gpus", "16384", "--stall", "30s", "--write", "2m", "--step", "10s", "--interval", "1h")
    outcome = holdfast("plan", "cadence", *given)
    assert outcome.code == 0
    assert outcome.err == ""
    first, second, *_ = outcome.out.splitlines()
    assert first == "Checkpoint every 13 min 50 s, 80 steps: 89.4 % of the time is kept."
    assert second.startswith("Every 1 h, as now, it is 80.9 %: 33,483 GPU-hours a day less, ")
    answer = holdfast("plan", "cadence", *given, "--json").json
    assert answer["optimum_steps"] == 80
    assert answer["regret_gpu_hours_per_day"] == pytest.approx(33_483, abs=1)
    kept = efficiencies(answer)
    assert max(kept, key=lambda rule: kept[rule]) == "optimum"
    assert kept["now"] == answer["efficiency"]
    assert answer["levels"] is None


def test_prices_come_from_the_prices_file(holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text("usd_per_gpu_hour = 2.0\n", encoding="utf-8")
    answer = holdfast("plan", "cadence", "--gpus", "8", "--prices", "prices.toml", "--json").json
    assert answer["regret_usd_per_day"] == pytest.approx(2 * answer["regret_gpu_hours_per_day"])
    assert not inputs(answer)["GPU-hour"]["assumed"]


def test_what_nobody_gave_is_assumed_and_says_so(holdfast: Holdfast) -> None:
    outcome = holdfast("plan", "cadence", "--mtbf", "3.1h")
    assert "as is assumed of now" in outcome.out
    answer = holdfast("plan", "cadence", "--mtbf", "3.1h", "--json").json
    assumed = {name for name, one in inputs(answer).items() if one["assumed"]}
    assert assumed == {"GPUs", "GPU-hour", "stall", "write", "restore", "downtime", "present interval"}
    assert all(one["source"] for one in answer["inputs"])
    assert inputs(answer)["GPUs"]["value"] == 16_344  # Llama 3's rate has this MTBF at so many


def test_nodes_fail_as_often_as_is_said(holdfast: Holdfast) -> None:
    rate = ("--nodes", "100", "--failures-per-1000-node-days", "10")
    known = inputs(holdfast("plan", "cadence", *rate, "--json").json)
    assert known["MTBF"]["value"] == 86_400
    assert known["GPUs"]["value"] == 800


def test_levels(holdfast: Holdfast) -> None:
    levels = ("--level", "memory:0.5s:90%", "--level", "peer:2s:0.95", "--level", "nvme:20s:0.96")
    given = ("--mtbf", "3h", "--gpus", "1024", "--stall", "30s", "--step", "5s")
    outcome = holdfast("plan", "cadence", *given, *levels)
    assert "nvme is left out: it would cost more than it saves." in outcome.out
    answer = holdfast("plan", "cadence", *given, *levels, "--json").json["levels"]
    assert [level["name"] for level in answer["levels"]] == ["memory", "peer", "storage"]
    assert answer["dropped"] == ["nvme"]
    assert answer["levels"][0]["steps"] == round(math.sqrt(2 * 0.5 * 10_800 / 0.9) / 5)
    assert answer["gained_gpu_hours_per_day"] > 0


@pytest.mark.soak
def test_other_distributions_are_simulated_alike_every_time(holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "gaps.txt").write_text("3h # the first\n20m\n\n70 min\n2h\n9000\n", encoding="utf-8")
    given = ("plan", "cadence", "--gpus", "1024", "--stall", "2m", "--json")
    weibull, again = (holdfast(*given, "--mtbf", "2h", "--distribution", "weibull:0.7") for _ in range(2))
    assert weibull.out == again.out
    exponential = holdfast(*given, "--mtbf", "2h").json
    assert weibull.json["optimum_s"] > exponential["optimum_s"]
    assert weibull.json["efficiency_stderr"] > 0
    assert exponential["efficiency_stderr"] is None
    recorded = holdfast(*given, "--distribution", "gaps:gaps.txt").json
    assert inputs(recorded)["MTBF"]["value"] == pytest.approx((10_800 + 1_200 + 4_200 + 7_200 + 9_000) / 5)
    assert recorded["distribution"] == "as in gaps.txt"


def test_a_run_tells_what_it_knows(holdfast: Holdfast, data: Path) -> None:
    file = data / "google-70b-112-nodes-events.jsonl"
    assert holdfast("import", file, "--reference-step-s", "8").code == 0
    answer = holdfast("plan", "cadence", "--run", GOOGLE, "--json").json
    known = inputs(answer)
    recorded = {name for name, one in known.items() if one["source"] == "recorded in the run"}
    assert recorded == {"GPUs", "step", "downtime", "present interval"}
    assert known["GPUs"]["value"] == 896
    assert known["present interval"]["value"] == pytest.approx(20 * 8, abs=8)  # it saved every 20 steps
    assert known["MTBF"]["source"] == "22 failures in 3 h 23 min up"
    assert known["MTBF"]["value"] == pytest.approx((3 * 60 + 23) * 60 / 22, rel=0.01)
    assert not known["MTBF"]["assumed"]
    assert "failures" not in known  # it has enough of its own
    assert known["stall"]["assumed"]  # that log has no stalls
    stated = holdfast("plan", "cadence", "--run", GOOGLE, "--mtbf", "1h", "--step", "4s", "--json").json
    assert inputs(stated)["MTBF"]["value"] == 3600
    assert inputs(stated)["step"]["source"] == "given"


def test_a_run_of_our_own_tells_stall_writing_and_price(holdfast: Holdfast, tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000 * 10**9)
    with Recorder(tmp_path / "home" / "journal", run="own", clock=clock) as recorder:
        recorder.record(events.RunStarted, gpus=16)
        recorder.record(events.CostRate, usd_per_gpu_hour=2.5)
        recorder.record(events.CheckpointLoaded, step=0, restore_ns=2 * 10**9)
        for step in range(1, 102):
            clock.advance_ns(10**9)
            recorder.record(events.StepCommitted, step=step)
            if step % 25 == 0:
                recorder.record(events.CheckpointBegun, step=step, blocking=False)
                clock.advance_ns(4 * 10**9)
                recorder.record(events.CheckpointSaved, step=step, stall_ns=10**9, write_ns=3 * 10**9)
        recorder.record(events.RunEnded, outcome="completed")
    known = inputs(holdfast("plan", "cadence", "--run", "own", "--json").json)
    assert known["stall"]["value"] == pytest.approx(1)
    assert known["write"]["value"] == pytest.approx(3)  # by the writer's own clock
    assert (known["restore"]["value"], known["restore"]["source"]) == (2, "recorded in the run")
    assert known["GPU-hour"]["value"] == 2.5
    assert known["step"]["value"] == pytest.approx(1, rel=0.2)
    assert known["present interval"]["value"] == pytest.approx(26, rel=0.2)
    assert "0 failures in" in known["MTBF"]["source"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "The failure rate of the run is unknown."),
        (("--mtbf", "soon"), "'soon' is not a duration; write 90, 90s, 5m, 3.1h or 2d."),
        (("--mtbf", "0"), "must be above 0"),
        (("--mtbf", "1.2.3h"), "is not a duration"),
        (("--mtbf", "1e30"), "is not a duration"),
        (("--mtbf", "20"), "'20' has no unit: 20h or 20s?"),
        (("--gpus", "4", "--nodes", "9"), "4 GPUs cannot be on 9 nodes."),
        (
            ("--gpus", "8", "--stall", "30s", "--interval", "20s"),
            "with a stall of 30 s, leaves no time to train.",
        ),
        (("--gpus", "8", "--stall", "-5s"), "is not a duration"),
        (("--gpus", "0"), "--gpus"),
        (("--mtbf", "3h", "--failures-per-1000-node-days", "2"), "both say how often the run fails."),
        (("--gpus", "8", "--level", "memory"), "is not a level; write NAME:STALL:SHARE"),
        (("--gpus", "8", "--level", "memory:1s:120%"), "'120%' is not a share of failures"),
        (("--gpus", "8", "--level", "memory:1s:most"), "'most' is not a share of failures"),
        (("--gpus", "8", "--level", "a:1s:0.5", "--level", "a:2s:0.6"), "Two levels have the same name."),
        (("--gpus", "8", "--level", "storage:1s:0.5"), "A level cannot be called storage"),
        (("--gpus", "8", "--distribution", "bell:1"), "'bell:1' is not a distribution"),
        (("--gpus", "8", "--distribution", "weibull:low"), "'low' is not a shape."),
        (("--gpus", "8", "--distribution", "weibull:0.01"), "cannot be simulated"),
        (("--distribution", "gaps:nowhere.txt"), "nowhere.txt cannot be read"),
        (("--failures-per-1000-node-days", "nan"), "nan is not a finite number"),
        (("--distribution", "gaps:few.txt"), "2 times between failures say too little"),
        (("--distribution", "gaps:wrong.txt"), "In wrong.txt, 'often' is not a duration"),
        (("--distribution", "gaps:enough.txt", "--mtbf", "3h"), "both say"),
        (("--run", "nothing"), "The store holds no runs yet."),
    ],
)
def test_a_mistake_is_one_sentence_and_a_hint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    # In this process: to start one for each of them would take longer than all the rest.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", "home")
    for name, text in {"few": "3h\n2h\n", "enough": "3h\n" * 5, "wrong": "3h\noften\n"}.items():
        Path(f"{name}.txt").write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        main(["plan", "cadence", *arguments])
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    told, hint = err.splitlines()
    assert sentence in told
    assert hint.startswith("  hint: ")


def test_the_answer_fits_a_narrow_terminal(holdfast: Holdfast) -> None:
    given = ("plan", "cadence", "--gpus", "16384", "--step", "10s", "--level", "memory:1s:90%")
    lines = holdfast(*given, COLUMNS="80").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("optimum, whole steps") and "%" in line for line in lines)


def test_json_is_for_programs(holdfast: Holdfast) -> None:
    answer = holdfast("plan", "cadence", "--gpus", "64", "--json")
    keys = {"young_s", "daly_s", "optimum_s", "regret_gpu_hours_per_day", "levels", "optimum_steps"}
    assert keys <= msgspec.json.decode(answer.out, type=dict[str, Any]).keys()
