"""Traces in every form they come in, real ones of PyTorch's profiler among them, and what may be wrong."""

import gzip
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.errors import InputError
from holdfast.stragglers.graph import CLOCK_ERROR_S
from holdfast.stragglers.meta import Meta, gaps, read_meta
from holdfast.stragglers.reading import read_trace
from holdfast.stragglers.trace import Trace
from holdfast.stragglers.verdict import judge
from holdfast.stragglers.whatif import analyse

PROFILED_S_MAX = 600
Rows = list[dict[str, Any]]


def write_csv(path: Path, rows: Rows) -> Path:
    names = list(rows[0])
    lines = [",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# -- tables ------------------------------------------------------------------------------------------------


def test_csv_and_parquet_are_the_same(job: Any, tmp_path: Path) -> None:
    made = job(dp=2, pp=2, slow={(1, 0): 2.0})
    table = write_csv(tmp_path / "trace.csv", made.rows())
    parquet = tmp_path / "trace.parquet"
    duckdb.read_csv(str(table)).write_parquet(str(parquet))
    expected = analyse(made.trace())
    for path in (table, parquet):
        read = analyse(read_trace(path))
        assert read.step_s == pytest.approx(expected.step_s)
        assert read.m_w == pytest.approx(expected.m_w)
        assert read.workers[0].name == "rank 1"


@pytest.mark.parametrize("gone", ["rank", "seq_id", "mc", "gmc", "mb_id"])
def test_columns_that_can_be_done_without(job: Any, tmp_path: Path, gone: str) -> None:
    made = job(dp=2, pp=2, slow={(1, 0): 2.0})
    rows = [{name: value for name, value in row.items() if name != gone} for row in made.rows()]
    read = analyse(read_trace(write_csv(tmp_path / "trace.csv", rows)))
    assert read.step_s == pytest.approx(analyse(made.trace()).step_s)
    assert (read.workers[0].dp_rank, read.workers[0].stage, read.workers[0].rank) == (1, 0, 1)


def test_times_may_begin_anywhere(job: Any, tmp_path: Path) -> None:
    rows = [{**row, "start_ts": row["start_ts"] + 1e9 + 100 * row["step"]} for row in job().rows()]
    read = analyse(read_trace(write_csv(tmp_path / "trace.csv", rows)))
    assert read.recorded_s == pytest.approx(analyse(job().trace()).recorded_s, rel=1e-5)


def test_a_name_with_letters_of_patterns(job: Any, tmp_path: Path) -> None:
    write_csv(tmp_path / "trace[1].csv", job().rows())
    write_csv(tmp_path / "trace1.csv", job(dp=5).rows())
    assert len(read_trace(tmp_path / "trace[1].csv").workers) == 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"duration": -1.0}, "Some operation has an impossible duration."),
        ({"duration": "inf"}, "Some operation has no duration."),
        ({"start_ts": "nan"}, "Some operation has no start_ts."),
        ({"duration": ""}, "Some operation has no duration."),
        ({"step": ""}, "Some operation has no step."),
        ({"dp_rank": -1}, "Some operation has a dp_rank, stage or rank below 0."),
        ({"rank": 2**60}, "Some operation has an impossible rank."),
        ({"stage": -7}, "Some operation has an impossible stage."),
        ({"optype": ""}, "Some operation has no optype."),
        ({"duration": "long"}, "cannot be read as a trace"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told(job: Any, tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    rows = job().rows()
    rows[3] = {**rows[3], **change}
    with pytest.raises(InputError) as error:
        read_trace(write_csv(tmp_path / "trace.csv", rows))
    assert sentence in error.value.sentence
    assert error.value.hint
    assert "\n" not in error.value.sentence


@pytest.mark.parametrize("name", ["step", "optype", "start_ts", "duration"])
def test_columns_that_must_be_there(job: Any, tmp_path: Path, name: str) -> None:
    rows = [{key: value for key, value in row.items() if key != name} for row in job().rows()]
    with pytest.raises(InputError, match=f"has no column {name}"):
        read_trace(write_csv(tmp_path / "trace.csv", rows))


@pytest.mark.parametrize(
    "name", ["trace.parquet", "trace.csv", "trace.json", "trace.jsonl", "trace.json.gz", "t"]
)
@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\x00", b"{}", b"[1]", b"a,b\n1,2\n", b"PAR1", b'{"traceEvents": 3}']
)
def test_files_that_are_no_traces(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_trace(path)
    assert error.value.hint
    assert "\n" not in error.value.sentence


@pytest.mark.parametrize("name", ["gone.parquet", "gone.csv", "gone.json", "gone.jsonl", "gone"])
def test_files_that_are_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="There is no trace"):
        read_trace(tmp_path / name)


def test_a_trace_without_rows(job: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(",".join(job().rows()[0]) + "\n", encoding="utf-8")
    with pytest.raises(InputError):
        read_trace(path)


# -- members of a run --------------------------------------------------------------------------------------


def members(slow: str, part: str) -> Rows:
    """Four members over six steps, one of which takes three times as long for a part; all wait for it."""
    rows = []
    for step in range(6):
        parts = {f"m{n}": {"compute_s": 1.0, "data_s": 0.1} for n in range(4)}
        parts[slow][part] += 2.0
        last = max(one["compute_s"] + one["data_s"] for one in parts.values())
        for name, one in parts.items():
            exchange = last - one["compute_s"] - one["data_s"] + 0.2
            rows.append({"member": name, "step": step, **one, "exchange_s": exchange})
    return rows


@pytest.mark.parametrize("part", ["compute_s", "data_s"])
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_members(tmp_path: Path, part: str, form: str) -> None:
    path = tmp_path / f"steps.{form}"
    rows = members("m2", part)
    if form == "csv":
        write_csv(path, rows)
    else:
        path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    analysis = analyse(read_trace(path))
    verdict = judge(analysis)
    assert analysis.step_s == analysis.recorded_s == pytest.approx(3.3)
    # Ideal: a mean of 1.5 s and 0.1 s, or of 1.0 s and 0.6 s; the exchange is 0.2 s once all are there.
    assert analysis.ideal_s == pytest.approx(1.8)
    assert (verdict.kind, verdict.workers) == ("worker", ("m2",))
    assert ("what feeds it" in verdict.advice) is (part == "data_s")


def test_members_without_a_value(tmp_path: Path) -> None:
    rows = members("m1", "compute_s")
    rows[2]["data_s"] = ""
    with pytest.raises(InputError, match="without one of its values"):
        read_trace(write_csv(tmp_path / "steps.csv", rows))


# -- PyTorch's profiler ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of three ranks, rank 1 being slow, in a folder for each phase it can be slow in."""
    folder = tmp_path_factory.mktemp("profiled")
    for where in ("forward", "data"):
        (folder / where).mkdir()
    script = Path(__file__).with_name("profiled.py")
    done = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, timeout=PROFILED_S_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "data"])
def test_a_slow_rank_in_real_traces(profiled: Path, where: str) -> None:
    trace = read_trace(profiled / where)
    analysis = analyse(trace)
    verdict = judge(analysis)
    assert trace.steps == (1, 2, 3, 4)
    assert [worker.rank for worker in trace.workers] == [0, 1, 2]
    assert (verdict.kind, verdict.workers) == ("worker", ("rank 1",)), verdict.sentence
    assert analysis.operations[0].type == where
    assert analysis.step_s >= float((profiled / "extra_s").read_text())
    assert analysis.step_s == pytest.approx(analysis.recorded_s, rel=0.25)
    assert {"forward", "backward", "optimizer-step", "data", "all-reduce"} <= {
        o.type for o in analysis.operations
    }
    reduction = next(one for one in analysis.operations if one.type == "all-reduce")
    assert reduction.is_communication
    assert reduction.ideal_s < analysis.step_s / 2, (
        "waiting for the slow rank is not the all-reduce's own time"
    )


@pytest.mark.slow
def test_one_rank_alone_and_packed(profiled: Path, tmp_path: Path) -> None:
    source = profiled / "forward" / "trace-1.json"
    packed = tmp_path / "anything.json.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    analysis = analyse(read_trace(packed))
    assert analysis.worker_count == 1
    assert analysis.workers[0].name == "rank 1"


@pytest.mark.slow
def test_two_files_of_one_rank(profiled: Path, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        shutil.copy(profiled / "forward" / "trace-0.json", tmp_path / name)
    with pytest.raises(InputError, match="a second trace of rank 0"):
        read_trace(tmp_path)


@pytest.mark.slow
def test_clocks_that_differ(profiled: Path, tmp_path: Path) -> None:
    """A collective ends everywhere at once, so a clock that is ahead is seen and set right."""
    expected = analyse(read_trace(profiled / "forward"))
    for rank in range(3):
        told = msgspec.json.decode((profiled / "forward" / f"trace-{rank}.json").read_bytes())
        for event in told["traceEvents"]:
            if "ts" in event:
                event["ts"] += 7_000_000.0 * rank
        (tmp_path / f"trace-{rank}.json").write_bytes(msgspec.json.encode(told))
    read = analyse(read_trace(tmp_path))
    assert read.step_s == pytest.approx(expected.step_s, rel=0.05)
    assert read.workers[0].rank == expected.workers[0].rank == 1


def kernel(name: str, begin: float, end: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": end - begin, **more}


def test_kernels_of_a_gpu(tmp_path: Path) -> None:
    """NCCL's kernels communicate, the others compute; while one waits for data there is no kernel."""
    for rank, busy in ((0, 1_000.0), (1, 3_000.0)):
        events = [
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "ts": 0, "dur": 5_000},
            {"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#next", "ts": 0, "dur": 500},
            kernel("ampere_sgemm_128x64_tn", 500, 500 + busy),
            kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", 500 + busy, 4_000),
            kernel("multi_tensor_apply_kernel", 4_000, 4_200),
        ]
        file = {"traceEvents": events, "distributedInfo": {"rank": rank}}
        (tmp_path / f"r{rank}.json").write_bytes(msgspec.json.encode(file))
    trace = read_trace(tmp_path)
    assert set(trace.kinds) == {"all-reduce/0", "compute/0", "compute/1", "data/0"}
    analysis = analyse(trace)
    assert analysis.step_s == pytest.approx(4.2e-3)
    assert analysis.ideal_s == pytest.approx(3.2e-3)  # 0.5 + 2 + 0.5 + 0.2 ms
    assert judge(analysis).workers == ("rank 1",)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float", "reduce-scatter"),
        ("ncclDevKernel_AllGather_RING_LL", "all-gather"),
        ("ncclDevKernel_SendRecv", "send-recv"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Generic", "exchange"),
    ],
)
def test_names_of_collectives(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(msgspec.json.encode([kernel("gemm", 0, 10), kernel(name, 10, 20)]))
    assert f"{kind}/0" in read_trace(path).kinds


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "ph": st.sampled_from(["X", "X", "X", "i", "M"]),
            "cat": st.sampled_from(["kernel", "cpu_op", "user_annotation", "gpu_user_annotation"]),
            "name": st.sampled_from(
                [
                    "ProfilerStep#1",
                    "ProfilerStep#2",
                    "forward",
                    "backward",
                    "aten::mm",
                    "gloo:all_reduce",
                    "ncclX",
                ]
            ),
            "ts": st.floats(0, 1e4),
            "dur": st.floats(-1, 5e3),
        }
    ),
    max_size=25,
)


@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ranks=st.lists(EVENTS, min_size=1, max_size=3))
def test_any_events_are_read_or_refused(tmp_path: Path, ranks: list[list[dict[str, Any]]]) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").unlink(missing_ok=True)
    for rank, events in enumerate(ranks):
        (tmp_path / f"rank{rank}.json").write_bytes(msgspec.json.encode({"traceEvents": events}))
    refused = ""
    try:
        analysis = analyse(read_trace(tmp_path))
    except InputError as error:
        refused = error.sentence
    if refused:
        assert "no operation within a step" in refused or "in a circle" in refused
        return
    # What overlaps by no more than clocks err is taken for one after the other; and a phase that another one
    # interrupts is one operation, which ends before its last part did.
    overlap_s = analysis.operation_count * CLOCK_ERROR_S
    spans = [event for events in ranks for event in events if event["dur"] >= 0]
    whole_us = max(span["ts"] + span["dur"] for span in spans) - min(span["ts"] for span in spans)
    assert analysis.step_s <= max(analysis.recorded_s, whole_us / 1e6) * (1 + 1e-6) + overlap_s
    assert judge(analysis).sentence


# -- meta --------------------------------------------------------------------------------------------------


def test_meta(published: Path) -> None:
    meta = read_meta(published / "meta-AR.yaml")
    assert (meta.trial_name, meta.dp_size, meta.pp_size) == ("AR", 4, 4)


def test_what_the_trace_lacks_of_its_job(job: Any) -> None:
    trace: Trace = job(dp=2, pp=2).trace()
    assert gaps(Meta(dp_size=2, pp_size=2), trace) == []
    assert gaps(Meta(dp_size=8, pp_size=2), trace) == ["The job has 8 data-parallel ranks and the trace 2."]
    assert gaps(Meta(), trace) == []


@pytest.mark.parametrize("text", ["dp_size: many", "- 1", "a: [", "", "\x00"])
def test_meta_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "meta.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="does not describe a job"):
        read_meta(path)


def test_meta_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_meta(tmp_path / "meta.yaml")
