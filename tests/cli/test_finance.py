"""`holdfast finance` as its user runs it: three teams' month, and the published run of 112 nodes."""

from pathlib import Path
from typing import Any

import pytest

GOOGLE = "google-70b-112-nodes-events.jsonl"
TEAMS = "three-teams.csv"
TARGETS = "[team_targets]\npretraining = 0.9\npost-training = 0.85\nvision = 0.6\n"


@pytest.fixture
def month(holdfast: Any, take_in: Any, data: Path, tmp_path: Path) -> Any:
    take_in(data / TEAMS)
    (tmp_path / "prices.toml").write_text(TARGETS, encoding="utf-8")
    return lambda *arguments, **variables: holdfast(
        "finance", "--prices", tmp_path / "prices.toml", "--as-of", "2026-11-09", *arguments, **variables
    )


def test_the_month_sums_and_agrees_with_the_ledger(holdfast: Any, month: Any) -> None:
    told = month("--json").json
    reports = {run["run"]: holdfast("report", run["run"], "--json").json for run in told["runs"]}
    assert told["spend"]["gpu_ns"] == sum(report["paid_gpu_ns"] for report in reports.values())
    assert told["spend"]["usd"] == pytest.approx(sum(report["paid_usd"] for report in reports.values()))
    assert told["useful"]["gpu_ns"] == sum(report["partition"]["useful"] for report in reports.values())
    assert (
        told["useful"]["gpu_ns"] + sum(cause["gpu_ns"] for cause in told["causes"]) == told["spend"]["gpu_ns"]
    )
    assert sum(team["spend"]["gpu_ns"] for team in told["teams"]) == told["spend"]["gpu_ns"]
    assert {team["team"]: team["standing"] for team in told["teams"]} == {
        "vision": "below",
        "pretraining": "met",
        "post-training": "met",
    }


def test_warm_coolant_is_seen_in_the_price_of_progress(month: Any) -> None:
    rise = month("--json").json["trend"]["rise"]
    assert rise["verdict"] == "yes"
    assert rise["ratio"] == pytest.approx(1.198, abs=0.001)
    assert rise["ratio_low"] > 1
    before = month("--json", "--to", "2026-10-17T00:00:00Z").json["trend"]["rise"]
    assert before["verdict"] != "yes"


def test_the_terminal_has_the_answer_first(month: Any) -> None:
    shown = month().out
    assert shown.startswith(
        "2,056,963 USD spent, 89.1 % of it useful (estimated ± 0.1 %), 224,924 USD lost.\n"
    )
    for expected in (
        "A useful GPU-hour cost 2.91 USD, at 2.58 USD paid.",
        "coolant inlet too warm, GPUs throttled (loop-3), 138,445 USD (pretrain-70b/3)",
        "2.9 points below",
        "Spend rises faster than progress\n",
        "26 restarts, 17 launches came to nothing.",
        "Cold data fetched",
        "417.60 USD assumed",
        "egress_usd_per_gb = 0.09",
    ):
        assert expected in shown
    assert "Own" not in shown
    owned = month("--own-or-rent", COLUMNS="120").out
    for expected in ("Owning is cheaper", "utilisation = 0.8", "It rests on guesses: network_share = 0.24"):
        assert expected in owned


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(month: Any, columns: int) -> None:
    assert max(map(len, month(COLUMNS=str(columns)).out.splitlines())) <= columns


def test_no_figure_is_cut_off_on_80_columns(month: Any) -> None:
    shown = month(COLUMNS="80").out
    rows = [" ".join(row.split()) for row in shown.splitlines()]
    for run in month("--json").json["runs"]:
        figures = f"{run['run']} {run['spend']['usd']:,.0f} {100 * run['useful_share']:.1f} %"
        assert any(row.startswith(figures) for row in rows)


def test_a_run_that_failed_all_the_time(holdfast: Any, data: Path) -> None:
    assert holdfast("import", data / GOOGLE, "--reference-step-s", "8", "--usd-per-gpu-hour", "4").code == 0
    told = holdfast("finance", "--own-or-rent", "--json").json
    assert told["useful_share"] == pytest.approx(0.4157, abs=1e-4)
    assert told["usd_per_useful_gpu_hour"] == pytest.approx(4 / told["useful_share"])
    assert (told["retries"]["restarts"], told["retries"]["fruitless_launches"]) == (67, 20)
    assert told["causes"][0]["key"] == "starting"
    assert told["own_or_rent"]["terms"]["goodput"]["value"] == pytest.approx(0.4157, abs=1e-4)
    assert told["own_or_rent"]["terms"]["rent_usd_per_gpu_hour"]["value"] == pytest.approx(4)


def test_some_runs_some_teams_some_time(month: Any) -> None:
    assert [run["run"] for run in month("--run", "agents-rl", "--json").json["runs"]] == ["agents-rl"]
    assert [run["run"] for run in month("--team", "vision", "--json").json["runs"]] == ["video-ablation"]
    whole = month("--run", "pretrain-70b", "--json").json
    late = month("--run", "pretrain-70b", "--from", "2026-10-19T00:00:00Z", "--json").json
    assert late == month("--run", "pretrain-70b", "--from", "2026-10-19", "--json").json
    assert late["window"][0] == late["first_ns"] == 1_792_368_000 * 10**9
    assert late["spend"]["gpu_ns"] < whole["spend"]["gpu_ns"]
    assert late["useful_share"] < whole["useful_share"]
    assert late["retries"]["restarts"] == 0
    assert {moved["what"]: moved["times"] for moved in late["data"]["transfers"]}["egress"] == 2


def test_terms_of_owning_can_be_given(month: Any, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("server_usd_per_gpu = 60_000\nutilisation = 0.4\n", encoding="utf-8")
    found = month("--own", tmp_path / "own.toml", "--json").json["own_or_rent"]
    assert found["cheaper"] == "rent"
    assert not found["terms"]["utilisation"]["assumed"]
    template = month("--example-own").out
    (tmp_path / "own.toml").write_text(template, encoding="utf-8")
    assert (
        month("--own", tmp_path / "own.toml", "--json").json["own_or_rent"]
        == (month("--own-or-rent", "--json").json["own_or_rent"])
    )


def test_the_page_is_written_where_it_is_wanted(month: Any, tmp_path: Path) -> None:
    done = month("--html", tmp_path / "page.html")
    assert done.out == ""
    assert "page.html" in done.err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "2,056,963 USD" in page
    assert month("--html", "-", PYTHONIOENCODING="ascii").out == page
    both = month("--html", tmp_path / "page.html", "--json")
    assert both.json["runs"]


@pytest.mark.parametrize(
    ("arguments", "sentence", "hint"),
    [
        (("--run", "agent-rl"), "There is no run 'agent-rl' in the store.", "Did you mean 'agents-rl'?"),
        (("--team", "visions"), "No run names the team 'visions'.", "Named are: 'post-training'"),
        (
            ("--run", "agents-rl", "--team", "vision"),
            "None of the runs given with --run is of the team 'vision'.",
            "agents-rl is of 'post-training'; leave out --run or --team.",
        ),
        (("--from", "yesterday"), "--from:", "2026-01-31T12:00:00Z"),
        (("--to", "2020-01-01T00:00:00Z"), "No run has an event in that time.", "holdfast runs"),
        (("--from", "2026-11-02"), "No run held GPUs in that time.", "2026-10-29 01:42:00Z"),
        (("--month", "October"), "'October' is not a month.", "--month 2026-10"),
        (("--month", "2026-13"), "'2026-13' is not a month.", "--month 2026-10"),
        (
            ("--month", "2026-10", "--to", "2026-10-05"),
            "a window of its own",
            "Leave `--from` and `--to` out",
        ),
        (("--csv", "-", "--html", "-"), "can have stdout", "Name a file."),
        (("--from", "1760000002", "--to", "1760000001"), "`--to` is not after", "Swap them"),
        (("--own", "nowhere.toml"), "The terms cannot be read from nowhere.toml", "--example-own"),
        (("--html", "-", "--json"), "would both print to stdout", "Leave one of them out."),
        (("--html", "nowhere/page.html"), "The page cannot be written", "a directory that exists"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    month: Any, arguments: tuple[str, ...], sentence: str, hint: str
) -> None:
    done = month(*arguments)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert hint in done.err


def test_three_steps_are_no_trend(holdfast: Any, tmp_path: Path) -> None:
    rows = ["time,kind,run,gpus,step", "2026-10-01T00:00:00Z,run.started,run,64,"]
    rows += [f"2026-10-01T{hour:02}:00:00Z,step.committed,run,,{n}" for n, hour in enumerate((1, 3, 7), 1)]
    (tmp_path / "run.csv").write_text("\n".join(rows), encoding="utf-8")
    assert holdfast("import", "run.csv").code == 0
    assert holdfast("finance", "--json").json["trend"]["rise"]["verdict"] == "unknown"
    assert "The comparison needs 5 stretches of time and as many" in holdfast("finance", COLUMNS="120").out


def test_simulated_runs_cost_nothing_unless_named(holdfast: Any, month: Any) -> None:
    real = month("--json").json
    record = ("--preset", "rsc-1-1024", "--policy", "holdfast", "--days", "1", "--record", "events.jsonl")
    assert holdfast("simulate", *record).code == 0
    assert holdfast("import", "events.jsonl").code == 0
    assert holdfast("drill", "play", "cooling-pump", "--out", "drill").code == 0
    assert holdfast("import", "drill/events.jsonl").code == 0
    told = month("--json").json
    remark = "2 simulated runs are left out; `--run` names one to read it."
    assert told["remarks"] == [*real["remarks"], remark]
    assert {**told, "remarks": real["remarks"]} == real
    named = month("--json", "--run", "rsc-1-1024").json
    assert [run["run"] for run in named["runs"]] == ["rsc-1-1024"]
    assert named["spend"]["usd"] > 0
    assert remark not in named["remarks"]


def test_a_store_of_simulated_runs_only(holdfast: Any) -> None:
    record = ("--preset", "rsc-1-1024", "--policy", "holdfast", "--days", "1", "--record", "events.jsonl")
    assert holdfast("simulate", *record).code == 0
    assert holdfast("import", "events.jsonl").code == 0
    for verb in (("finance",), ("plan", "fit")):
        done = holdfast(*verb)
        assert done.code == 2
        assert "The store has only simulated runs" in done.err
        assert "--run" in done.err


def test_an_empty_store(holdfast: Any) -> None:
    done = holdfast("finance")
    assert done.code == 2
    assert "The store holds no runs yet." in done.err


def test_a_window_that_is_still_to_come_has_nothing(holdfast: Any, tmp_path: Path) -> None:
    """A run that goes on now holds nothing yet of next month, and is not said to have told nothing."""
    log = tmp_path / "steps.csv"
    log.write_text(
        "time,step\n" + "".join(f"2026-10-05T{hour:02}:00:00Z,{hour + 1}\n" for hour in range(8)),
        encoding="utf-8",
    )
    done = holdfast("import", str(log), "--run", "going", "--gpus", "8")
    assert done.code == 0, done.err
    later = holdfast("finance", "--as-of", "2026-10-05T09:00:00Z", "--month", "2026-11")
    assert later.code == 2
    assert "No run held GPUs in that time." in later.err
    now = holdfast("finance", "--as-of", "2026-10-05T09:00:00Z", "--month", "2026-10")
    assert now.code == 0, now.err
    assert "neither steps nor checkpoints" not in now.out


def test_a_month_of_which_a_run_has_only_the_first_moment_has_nothing(holdfast: Any, tmp_path: Path) -> None:
    """Its last event is of midnight, where the log ends."""
    log = tmp_path / "steps.csv"
    hours = "".join(f"2026-09-30T{hour:02}:00:00Z,{hour}\n" for hour in range(16, 24))
    log.write_text(f"time,step\n{hours}2026-10-01T00:00:00Z,24\n", encoding="utf-8")
    done = holdfast("import", str(log), "--run", "touching", "--gpus", "8")
    assert done.code == 0, done.err
    october = holdfast("finance", "--as-of", "2026-11-09", "--month", "2026-10")
    assert october.code == 2
    assert "No run held GPUs in that time." in october.err
    assert holdfast("finance", "--as-of", "2026-11-09", "--month", "2026-09").code == 0


def test_a_run_that_is_slow_from_its_first_step_is_told_of(holdfast: Any, tmp_path: Path) -> None:
    """Steps of 60 s in llama-1, of 120 s in llama-2: by its own steps all is useful, by the others half."""
    rows = ["time_s,kind,run,gpus,step,outcome"]
    for run, began_s, step_s in (("llama-1", 1_760_000_000, 60), ("llama-2", 1_760_100_000, 120)):
        rows.append(f"{began_s},run.started,{run},8,,")
        rows += [f"{began_s + step * step_s},step.committed,{run},,{step}," for step in range(1, 101)]
        rows.append(f"{began_s + 100 * step_s},run.ended,{run},,,completed")
    table = tmp_path / "llama.csv"
    table.write_text("\n".join(rows).replace("time_s", "time"))
    assert holdfast("import", table).code == 0
    told = holdfast("finance", "--json").json
    assert told["useful_share"] == 1
    slower = "Run llama-2: this run is 2.0 times slower than your run llama-1, in GPU-time a step."
    assert [one for one in told["remarks"] if one.startswith(slower)]
    later = holdfast("finance", "--json", "--from", "2025-10-10T13:00:00Z").json
    assert [run["run"] for run in later["runs"]] == ["llama-2"]
    assert [one for one in later["remarks"] if one.startswith(slower)]
    assert not [one for one in told["remarks"] if one.startswith("Run llama-1")]
