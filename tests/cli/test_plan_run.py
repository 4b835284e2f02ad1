"""`holdfast plan run` as its user runs it: published clusters, one's own, and a run in the record."""

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from quantity import sampled

from holdfast.cli import import_
from holdfast.cli.plan.cadence import command as cadence
from holdfast.cli.plan.run import command
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.twin.presets import preset

pytestmark = pytest.mark.slow

GOOGLE = "google-70b-112-nodes-events.jsonl"
GOOGLE_RUN = "test-040104-goodput-n112-70b-a3m"
OWN = ("--gpus", "1024", "--days", "10", "--mtbf", "20h")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The verb in this process: what it prints as JSON."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))

    def run(*arguments: str | Path) -> Any:
        command.main(["--json", *map(str, arguments)], standalone_mode=False)
        return msgspec.json.decode(capsys.readouterr().out)

    return run


@pytest.mark.parametrize(("runs", "is_few"), [("0", False), ("2", True)])
def test_a_few_runs_of_the_twin_are_said_to_be_few(holdfast: Any, runs: str, is_few: bool) -> None:
    shown = holdfast("plan", "run", "--gpus", "64", "--days", "1", "--mtbf", "12h", "--runs", runs)
    assert shown.code == 0, shown.err
    assert ("So few runs of the twin may all be lucky or unlucky" in " ".join(shown.out.split())) == is_few


def test_formula_and_twin_agree_on_ones_own_cluster(plan: Any) -> None:
    told = plan(*OWN, "--runs", "8")
    assert told["work_days"] == 10
    assert told["mtbf_h"] == pytest.approx(20)
    assert told["twin_runs"] == 8
    assert told["formula"]["mean_days"] == pytest.approx(told["twin"]["mean_days"], rel=0.02)
    for side in (told["formula"], told["twin"]):
        assert 10 < side["p10_days"] <= side["p50_days"] <= side["p90_days"] < 12
        assert side["goodput"] == pytest.approx(10 / side["mean_days"])
    assert told["unsure"] is None


def test_llama3_takes_more_than_its_54_days(plan: Any) -> None:
    told = plan("--preset", "llama3-405b", "--runs", "1")
    assert told["gpus"] == 16_384
    assert told["mtbf_h"] == pytest.approx(3.09, abs=0.01)
    assert told["interruptions"] == pytest.approx(466 * told["formula"]["mean_days"] / 54, rel=0.05)
    assert told["formula"]["goodput"] > 0.90
    assert told["ettr"] == pytest.approx(told["formula"]["goodput"], abs=0.02)


def test_the_worth_of_changes_is_ranked_and_priced(plan: Any) -> None:
    told = plan(*OWN, "--spares", "4", "--runs", "0")
    worth = [one for one in told["worth"] if "spare" not in one["name"]]
    assert [one["name"] for one in worth][:2] == ["Holdfast", "a snapshot in memory every step"]
    assert worth == sorted(worth, key=lambda one: -one["days_sooner"])
    for one in worth:
        assert one["gained"] == pytest.approx(one["goodput"] - told["formula"]["goodput"])
        assert one["gpu_hours"] == pytest.approx(24 * (1_024 + 4 * 8) * one["days_sooner"])
        assert one["usd"] == pytest.approx(one["gpu_hours"] * told["usd_per_gpu_hour"])


def test_the_price_is_the_users(plan: Any, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("usd_per_gpu_hour = 2.5\n", encoding="utf-8")
    assert plan(*OWN, "--runs", "0", "--prices", prices)["usd_per_gpu_hour"] == 2.5


def test_one_per_cent(plan: Any) -> None:
    bad = plan(*OWN, "--runs", "0", "--member-gpus", "16")["bad_gpus"]
    assert bad["effect"]["nodes_hit"] == pytest.approx(1 - 0.99**8)
    assert bad["effect"]["without_members"] == pytest.approx(0.99**16)
    assert bad["tenth_unit_gpus"] == 11
    assert bad["tenth_slowdown"] == pytest.approx(10 / 9)


def test_what_replicas_of_several_members_survive(plan: Any, holdfast: Any) -> None:
    flags = (*OWN, "--runs", "0", "--spares", "0", "--shard", "shard=8,tp=2")
    told = plan(*flags)
    assert (told["member_gpus"], told["policy"]) == (16, "Holdfast")
    assert [(one["lost"], one["outcome"], one["replicas"]) for one in told["losses"]] == [
        ("rank", "refilled", 64),
        ("node", "shelved", 63),
        ("rack", "shelved", 63),  # two nodes, of one replica
    ]
    assert told["losses"][1]["slowdown"] == 9 / 8  # 512 lanes: 9 on the busiest of 63, where 8 were
    assert any("2.9 s and 2.0 s: holdfast bench sharded" in one["source"] for one in told["assumed"])
    shown = " ".join(holdfast("plan", "run", *flags).out.split())
    assert "node lost shelved: 63 of 64 replicas go on, 3 s beyond a step" in shown
    assert plan(*flags, "--policy", "restart")["losses"] == []


def test_a_start_makes_dates(plan: Any) -> None:
    told = plan(*OWN, "--runs", "0", "--start", "2026-09-01")
    start_ns = 1_788_220_800 * 10**9
    days = [(at_ns - start_ns) / 86_400e9 for at_ns in told["done_ns"]]
    formula = told["formula"]
    assert days == pytest.approx([formula["p10_days"], formula["p50_days"], formula["p90_days"]])


def test_an_assumed_rate_is_an_uncertain_one(plan: Any) -> None:
    told = plan("--gpus", "16384", "--days", "30", "--runs", "0")
    sure, unsure = (told[side]["p90_days"] - told[side]["p10_days"] for side in ("formula", "unsure"))
    assert unsure > 3 * sure
    assert "failure rate" in {one["what"] for one in told["assumed"]}


def test_everything_assumed_has_a_source(plan: Any) -> None:
    for arguments in (OWN, ("--preset", "rsc-2-1024")):
        assumed = plan(*arguments, "--runs", "0")["assumed"]
        assert assumed
        assert all(one["source"] for one in assumed)


def test_what_is_said_is_not_assumed(plan: Any, tmp_path: Path) -> None:
    def assumed(*arguments: str | Path) -> set[str]:
        told = plan(*OWN, "--runs", "0", *arguments)
        return {one["what"] for one in told["assumed"]}

    nothing_said = assumed()
    of_flags = {"--interval": "checkpoints", "--stall": "checkpoint stall", "--step-s": "a step"}
    for flag, what in of_flags.items():
        assert assumed(flag, "30") == nothing_said - {what} != nothing_said
    assert assumed("--chip", "h100") == nothing_said - {"chip"} != nothing_said
    prices = tmp_path / "prices.toml"
    prices.write_text("usd_per_gpu_hour = 2.5\n", encoding="utf-8")
    assert assumed("--prices", prices) == nothing_said - {"a GPU-hour"} != nothing_said


def test_times_are_those_of_plan_cadence(plan: Any) -> None:
    told = plan(*OWN, "--runs", "0", "--interval", "30m", "--stall", "30s")
    assert told == plan(*OWN, "--runs", "0", "--interval", "1800", "--stall", "30")
    assert told != plan(*OWN, "--runs", "0")
    with pytest.raises(click.BadParameter, match=r"'20' has no unit: 20h or 20s\?"):
        plan("--gpus", "1024", "--days", "10", "--mtbf", "20")


@pytest.mark.parametrize("flag", ["--mtbf", "--interval", "--stall"])
def test_what_is_no_time_is_refused(plan: Any, flag: str) -> None:
    with pytest.raises(click.BadParameter, match="'nan' is not a duration"):
        plan("--gpus", "64", "--days", "1", flag, "nan")


@pytest.mark.parametrize("flag", ["--days", "--step-s", "--bad-percent", "--slowdown"])
def test_what_is_no_number_is_refused(plan: Any, flag: str) -> None:
    with pytest.raises(click.BadParameter, match="nan is not a finite number"):
        plan("--gpus", "64", "--days", "1", flag, "nan")


def test_rates_of_ones_own(plan: Any, tmp_path: Path) -> None:
    rates = tmp_path / "rates.json"
    rates.write_bytes(msgspec.json.encode({"preset": preset("infinitehbd").hazards}))
    told = plan("--gpus", "3200", "--days", "30", "--rates", rates, "--runs", "0")
    assert told["mtbf_h"] == pytest.approx(24 / (4.195 * 0.4), rel=0.001)


@pytest.mark.parametrize(("mtbf", "days_most"), sampled([("30m", 15), ("10m", 25), ("3m", 60)], [("3m", 60)]))
def test_failures_may_come_as_often_as_plan_cadence_takes_them(
    plan: Any, mtbf: str, days_most: float
) -> None:
    told = plan("--gpus", "16384", "--days", "10", "--mtbf", mtbf, "--runs", "0")
    assert 10 < told["formula"]["p50_days"] < days_most
    (saved,) = (one for one in told["assumed"] if one["what"] == "checkpoints")
    assert saved["source"] == "the best for such failures"
    asked = plan("--gpus", "16384", "--days", "10", "--mtbf", mtbf, "--runs", "0", "--interval", "5m")
    assert all(one["what"] != "checkpoints" for one in asked["assumed"])


@pytest.mark.parametrize(
    ("given", "best_s", "named"),
    [
        # sqrt(2 * 10 * 72,000) = 1,200 s of work; Daly's terms add 3.3 s.
        (("--mtbf", "20h", "--stall", "10s"), 1_203, "a checkpoint every 20 min"),
        # As both assume: 128 nodes fail every 178,180 s, and sqrt(2 * 0.59 * 178,180) = 458.5.
        ((), 459, "a checkpoint every 459 s"),
        # No sooner than the last one is written: 0.59 s + 50.47 s, where sqrt(2 * 0.59 * 1,800) = 46.1.
        (("--mtbf", "30m"), 51, ""),
    ],
)
def test_the_best_interval_is_that_of_plan_cadence(
    plan: Any, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], best_s: int, named: str
) -> None:
    cadence.main(["--json", "--gpus", "1024", *given], standalone_mode=False)
    assert round(msgspec.json.decode(capsys.readouterr().out)["optimum_s"]) == best_s
    told = plan("--gpus", "1024", "--days", "10", "--runs", "0", *given)
    if named:
        assert named in [one["name"] for one in told["worth"]]
    else:
        assert {one["what"]: one["value"] for one in told["assumed"]}["checkpoints"] == f"every {best_s} s"


@pytest.mark.parametrize("interval", ["1h", "2h"])
def test_a_stall_that_leaves_no_time_to_train_is_refused(plan: Any, interval: str) -> None:
    with pytest.raises(InputError, match="leaves no time to train") as caught:
        plan(*OWN, "--runs", "0", "--interval", interval, "--stall", "2h")
    assert "--interval is from one checkpoint to the next" in caught.value.hint


def test_a_step_that_is_estimated_from_few_is_said_to_be(
    plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four lines are three steps of 10 s, whose spread is taken to be 20 %: 2 * 1.2 * 0.2 / sqrt(3)."""
    rows = ["step,time", *(f"{step},{1_790_000_000 + 10 * step}" for step in range(1, 5))]
    (tmp_path / "few.csv").write_text("\n".join(rows) + "\n")
    import_.command.main([str(tmp_path / "few.csv"), "--run", "few", "--gpus", "8"], standalone_mode=False)
    capsys.readouterr()
    told = plan("--run", "few", "--steps", "100", "--runs", "0")
    (step,) = [one for one in told["assumed"] if one["what"] == "a step"]
    assert (step["value"], step["source"]) == (
        "10 s",
        "estimated ± 27.7 % from 4 steps; set it with --step-s",
    )


def test_an_ettr_of_nothing_is_zero_in_the_json_and_explained(plan: Any, capsys: Any) -> None:
    words = ("--gpus", "1024", "--days", "1", "--mtbf", "25m", "--policy", "restart", "--runs", "0")
    told = plan(*words, "--interval", "1h")
    assert told["ettr"] == 0
    assert told["ettr_remark"].startswith("By ETTR the run makes no progress: a failure costs 33 min")
    assert told["formula"]["goodput"] > 0.1
    command.main([*words, "--interval", "1h"], standalone_mode=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "ETTR, Kokolis et al. 0.0 % never" in said
    assert told["ettr_remark"] in said
    assert plan(*OWN, "--runs", "0")["ettr_remark"] == ""


def test_holdfast_has_no_ettr_of_kokolis(plan: Any) -> None:
    told = plan(*OWN, "--policy", "holdfast", "--runs", "0")
    assert told["ettr"] is None
    assert told["formula"]["goodput"] > 0.98


@pytest.fixture
def imported(plan: Any, data: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The verb beside a record of the published run of 112 nodes."""
    import_.command.main([str(data / GOOGLE), "--reference-step-s", "8"], standalone_mode=False)
    capsys.readouterr()
    return plan


def test_a_run_in_the_record_goes_on_as_it_did(imported: Any) -> None:
    """It was up for 3.4 h of 9.8 h and failed 22 times: what is left takes more than twice its time."""
    told = imported("--run", GOOGLE_RUN, "--steps", "20000", "--runs", "2")
    assert told["work_days"] == pytest.approx((20_000 - 1_960) * 8 / 86_400)
    assert told["mtbf_h"] == pytest.approx(3.4 / 22, rel=0.05)
    assert 0.3 < told["formula"]["goodput"] < 0.5
    assert told["twin"]["mean_days"] == pytest.approx(told["formula"]["mean_days"], rel=0.1)
    assert told["unsure"] is not None
    # The record ends on 2 April 2025: what is left begins now at the earliest.
    now_ns = SystemClock().now_ns()
    assert all(at_ns > now_ns + told["work_days"] * 86_000e9 for at_ns in told["done_ns"])
    assert any((one["what"], one["value"]) == ("it goes on", "now") for one in told["assumed"])


def test_what_only_slows_a_run_is_no_recovery(
    plan: Any, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The coolant was too warm for eleven days. Two failures took half an hour to notice, then six hours."""
    import_.command.main([str(data / "three-teams.csv")], standalone_mode=False)
    capsys.readouterr()
    told = plan("--run", "pretrain-70b", "--steps", "300000", "--runs", "0")
    assumed = {one["what"]: one for one in told["assumed"]}
    assert assumed["recovery"]["value"] == "23,580 s"
    assert assumed["recovery"]["source"] == "mean of its 2 recoveries"


def test_a_run_without_gpus_is_told(plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = "".join(f"2026-01-01T00:0{n}:00Z,odd,step.committed,{n}\n" for n in range(1, 6))
    (tmp_path / "odd.csv").write_text(f"time,run,kind,step\n{steps}", encoding="utf-8")
    import_.command.main([str(tmp_path / "odd.csv")], standalone_mode=False)
    capsys.readouterr()
    with pytest.raises(InputError, match="No GPUs are recorded for odd"):
        plan("--run", "odd", "--steps", "100")


@pytest.mark.parametrize("columns", sampled(["80", "120"], ["80"]))
def test_it_fits_the_terminal(holdfast: Any, columns: str) -> None:
    shown = holdfast("plan", "run", *OWN, "--runs", "2", "--start", "2026-09-01", COLUMNS=columns).out
    assert max(map(len, shown.splitlines())) <= int(columns)
    for expected in (
        "10 days of training take",
        "Done on 11 Sep 2026",
        "twin, 2 runs",
        "what would help",
        "If 1 % of the GPUs",
        "Assumed",
    ):
        assert expected in shown


def test_a_mistake_is_told_in_a_sentence(holdfast: Any) -> None:
    done = holdfast("plan", "run", "--gpus", "64")
    assert (done.code, done.out) == (2, "")
    assert "The amount of work is missing.\n  hint: Give --days" in done.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "Give exactly one thing to forecast"),
        (("--gpus", "64", "--run", "x"), "Give exactly one thing to forecast"),
        (("--gpus", "64"), "The amount of work is missing."),
        (("--gpus", "10", "--days", "1", "--member-gpus", "4"), "not a whole number of replicas of 4"),
        ((*OWN, "--shard", "2", "--member-gpus", "2"), "--member-gpus cannot be given beside --shard"),
        ((*OWN, "--shard", "shard=2,tp=16"), "tensor parallel ranks must be on one node"),
        (("--preset", "llama"), "There is no preset 'llama'."),
        (("--preset", "llama3-405b", "--gpus", "100"), "not a multiple of that"),
        (("--preset", "rsc-1", "--chip", "h100"), "--chip cannot be given beside --preset."),
        (("--run", "x", "--mtbf", "1h"), "--mtbf cannot be given beside --run."),
        ((*OWN, "--policy", "hopefast"), "There is no policy 'hopefast'."),
        ((*OWN, "--rates", "nowhere.json"), "--rates and --mtbf both set"),
        (("--gpus", "64", "--days", "1", "--rates", "nowhere.json"), "cannot be read"),
        ((*OWN, "--start", "tomorrow"), "--start"),
        (("--gpus", "16384", "--days", "30", "--spares", "0"), "not finish in a sensible time"),
        (("--gpus", "1e12", "--days", "1"), "1,000,000,000,000 were given."),
    ],
)
def test_mistakes_are_refused(plan: Any, arguments: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(*arguments)
    assert complaint in caught.value.sentence
    assert caught.value.hint


def test_a_run_needs_its_last_step(imported: Any) -> None:
    with pytest.raises(InputError, match="its last step is not known"):
        imported("--run", GOOGLE_RUN)
    with pytest.raises(InputError, match="--steps 100 is not ahead of it"):
        imported("--run", GOOGLE_RUN, "--steps", "100")


def test_runs_that_are_not_done_are_told(plan: Any) -> None:
    """Few spares and long repairs: what the formula has as a mean, single runs may wait for much longer."""
    told = plan("--preset", "rsc-1-1024", "--days", "2", "--spares", "0", "--runs", "20")
    assert 0 < told["twin_unfinished"] < told["twin_runs"] == 20
