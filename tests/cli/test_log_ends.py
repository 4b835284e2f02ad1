"""Where an imported log ends, nothing more is known: no run of it still holds GPUs, runs or stands still."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ENDED_S_AGO = 900
BEGAN_S_AGO = 8 * 3_600
GPUS = 16
STEP_S = 60


def stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def step_table(path: Path, now_s: int) -> Path:
    moments = range(now_s - BEGAN_S_AGO, now_s - ENDED_S_AGO + 1, STEP_S)
    rows = (f"{step},{stamp(at_s)}Z" for step, at_s in enumerate(moments, 1))
    path.write_text("\n".join(["step,time", *rows]) + "\n", encoding="utf-8")
    return path


def megatron(path: Path, now_s: int) -> Path:
    moments = range(now_s - BEGAN_S_AGO, now_s - ENDED_S_AGO + 1, STEP_S)
    lines = (
        f"[{stamp(at).replace('T', ' ')}] iteration {step}/ 900 | loss" for step, at in enumerate(moments, 1)
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def sacct(path: Path, now_s: int) -> Path:
    """One job ended when the log does; when it was written, the other one ran."""
    began, ended = stamp(now_s - BEGAN_S_AGO), stamp(now_s - ENDED_S_AGO)
    path.write_text(
        "JobID|JobName|State|Submit|Start|End|NNodes|NodeList|AllocTRES\n"
        f"76|done|COMPLETED|{began}|{began}|{ended}|2|n[1-2]|gres/gpu={GPUS}\n"
        f"77|cut|RUNNING|{began}|{began}|Unknown|2|n[3-4]|gres/gpu={GPUS}\n",
        encoding="utf-8",
    )
    return path


def google(path: Path, now_s: int) -> Path:
    def line(kind: str, at_s: int, **number: int) -> str:
        return json.dumps({"event_type": kind, "job_name": "log", "timestamp": stamp(at_s), **number})

    began, ended = now_s - BEGAN_S_AGO, now_s - ENDED_S_AGO
    lines = [line("job_started", began, node_rank=node) for node in (0, 1)]
    path.write_text("\n".join([*lines, line("checkpoint_saved", ended, step=100)]) + "\n", encoding="utf-8")
    return path


LOGS: dict[str, tuple[Callable[[Path, int], Path], tuple[str, ...], str]] = {
    "table": (step_table, ("--run", "log", "--gpus", str(GPUS)), "log"),
    "step log": (megatron, ("--run", "log", "--gpus", str(GPUS)), "log"),
    "sacct": (sacct, (), "77"),
    "google": (google, (), "log"),
}


@pytest.mark.parametrize("form", LOGS)
def test_nothing_is_said_to_go_on_after_a_log(holdfast: Any, tmp_path: Path, form: str) -> None:
    write, words, run = LOGS[form]
    done = holdfast("import", write(tmp_path / "some.log", int(time.time())), *words)
    assert done.code == 0, done.err
    told = holdfast("report", run, "--json").json
    assert (told["accrued"], told["held_gpus"], told["is_cut_off"], told["ended"]) == (None, 0, True, None)
    spent = holdfast("finance", "--json").json
    assert spent["accrued"]["gpu_ns"] == 0
    assert [one for one in spent["remarks"] if one.startswith("1 run did not end before the log")]
    (listed,) = (one for one in holdfast("runs", "--json").json if one["run"] == run)
    assert (listed["is_cut_off"], listed["ended"]) == (True, None)
    assert listed["gpu_hours"] == pytest.approx(told["paid_gpu_ns"] / 3.6e12)
    assert told["paid_gpu_ns"] > 0
    assert [one for one in spent["remarks"] if f"nothing is counted after it: {run}" in one]
    remarks = holdfast("cost", run, "--json").json["remarks"]
    assert [one for one in remarks if one.startswith("The log ends before the run does")]
    pages = tmp_path / "report.html", tmp_path / "finance.html"
    holdfast("report", run, "--html", pages[0])
    holdfast("finance", "--html", pages[1])
    verbs = [("report", run), ("cost", run), ("finance",), ("incidents",), ("runs",), ("diagnose", run)]
    texts = {verb[0]: " ".join(holdfast(*verb).out.split()) for verb in verbs}
    for name, text in [*texts.items(), *((page.name, page.read_text("utf-8")) for page in pages)]:
        for wrong in ("till running", "standstill", "a day of its GPUs", "accrued in the", "goes on: what"):
            assert wrong not in text, (name, wrong)
    assert "The log ends before the run does" in texts["report"]
    assert "log ends" in texts["runs"]


def test_a_run_whose_log_ended_a_month_ago_is_not_said_to_cost_anything_a_day(
    holdfast: Any, tmp_path: Path
) -> None:
    log = sacct(tmp_path / "sacct.txt", int(time.time()) - 30 * 86_400)
    assert holdfast("import", log).code == 0
    remarks = holdfast("finance", "--json").json["remarks"]
    assert not [one for one in remarks if "a day." in one or "last heard of" in one]


def test_an_incident_that_is_open_where_the_log_ends_is_not_said_to_go_on(
    holdfast: Any, tmp_path: Path
) -> None:
    began = int(time.time()) - BEGAN_S_AGO
    rows = [f"{began},run.started,log,{GPUS},,"]
    rows += [f"{began + 60 * step},step.committed,log,,{step}," for step in range(1, 200)]
    rows.append(f"{began + 60 * 200},fault.observed,log,,,hang")
    rows.append(f"{began + 60 * 230},checkpoint.failed,log,,199,")
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["time,kind,run,gpus,step,fault", *rows]) + "\n", encoding="utf-8")
    assert holdfast("import", path).code == 0
    told = holdfast("report", "log", "--json").json
    (incident,) = told["incidents"]
    assert incident["recovered_ns"] is None
    cost = holdfast("cost", f"log/{incident['name']}")
    text = " ".join(cost.out.split())
    assert "was not over where the log ends" in text
    assert "so far" not in text
    diagnosed = holdfast("diagnose", "log", "--json").json
    assert diagnosed["at_ns"] == (began + 60 * 230) * 10**9  # and not now


def test_looking_from_within_a_log_its_runs_go_on(holdfast: Any, tmp_path: Path) -> None:
    now_s = int(time.time())
    done = holdfast("import", step_table(tmp_path / "steps.csv", now_s), *LOGS["table"][1])
    assert done.code == 0, done.err
    within_s = now_s - BEGAN_S_AGO + 3_600 + 30  # half a minute after its last step then
    spent = holdfast("finance", "--json", "--as-of", f"{stamp(within_s)}Z").json
    assert spent["accrued"]["gpu_ns"] == 30 * GPUS * 10**9


def test_what_holdfast_records_itself_still_runs(holdfast: Any, tmp_path: Path) -> None:
    from holdfast.record.events import RunStarted, StepCommitted, encode
    from holdfast.record.journal import line_of

    began_ns = time.time_ns() - BEGAN_S_AGO * 10**9
    steps = [
        StepCommitted(
            id=f"a-{n:03}", occurred_ns=began_ns + n * 60 * 10**9, source="n1/77", run="own", step=n
        )
        for n in range(1, 400)
    ]
    began = RunStarted(id="a-000", occurred_ns=began_ns, source="n1/77", run="own", gpus=GPUS)
    path = tmp_path / "own.journal"
    path.write_bytes(line_of(encode(began)) + b"".join(line_of(encode(step)) for step in steps))
    assert holdfast("import", path).code == 0
    told = holdfast("report", "own", "--json").json
    assert (told["is_cut_off"], told["held_gpus"]) == (False, GPUS)
    assert told["accrued"] is not None
    # A price that is imported later says nothing of whether the run goes on.
    rate = f"time,kind,run,usd_per_gpu_hour\n{stamp(time.time() - 60)}Z,cost.rate,own,2.5\n"
    (tmp_path / "rate.csv").write_text(rate, encoding="utf-8")
    assert holdfast("import", tmp_path / "rate.csv").code == 0
    priced = holdfast("report", "own", "--json").json
    assert (priced["is_cut_off"], priced["held_gpus"]) == (False, GPUS)
    assert priced["accrued"] is not None
    assert holdfast("diagnose", "own", "--json").json["at_ns"] > time.time_ns() - 60 * 10**9
