"""A metric that the user names as the step, and files that a run writes itself."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from holdfast.record.errors import InputError
from holdfast.signals.catalogue import describe
from holdfast.signals.frame import Frame, Labels
from holdfast.signals.step_files import StepFiles, StepLogSource
from holdfast.signals.stepped import STEP, SteppedSource, taken_for
from holdfast.topology.names import job_of

S = 10**9
WINDOW = (0, 100 * S)
Series = tuple[Labels, list[float]]


class Source:
    """Series at every tenth second, ending with the window."""

    def __init__(self, **metrics: list[Series]) -> None:
        self._metrics = metrics

    def metrics(self) -> tuple[str, ...]:
        return tuple(self._metrics)

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        if metric not in self._metrics:
            return None
        series = self._metrics[metric]
        rows = len(series[0][1])
        return Frame(
            metric=metric,
            kind=describe(metric).kind,
            subjects=tuple("n1" for _ in series),
            labels=tuple(labels for labels, _ in series),
            times_ns=(np.arange(rows, dtype=np.int64) + 10 - rows) * 10 * S,
            values=np.array([values for _, values in series]).T,
        )


def steps(name: str, **metrics: list[Series]) -> dict[str, list[float]]:
    source = SteppedSource(Source(**metrics), name)
    assert STEP in source.metrics()
    frame = source.frame(STEP, WINDOW)
    assert frame is not None
    assert tuple(labels["run"] for labels in frame.labels) == frame.subjects
    return dict(zip(frame.subjects, frame.values.T.tolist(), strict=True))


def test_a_count_becomes_the_time_between_steps_and_a_hang_shows_its_last() -> None:
    found = steps("train_steps_total", train_steps_total=[({"hpc_job": "77"}, [0, 5, 10, 12, 12, 12])])
    assert np.isnan(found["77"][0])
    assert found["77"][1:] == pytest.approx([2.0, 2.0, 4.0, 4.0, 4.0], rel=1e-4)
    # Two steps that took equally long are two, and a step that is shown again is one.
    assert found["77"][1] != found["77"][2]
    assert found["77"][3] == found["77"][4] == found["77"][5]


def test_steps_as_long_as_readings_are_apart_are_counted_over_several() -> None:
    found = steps("step", step=[({"run": "a"}, [7, 7, 8, 9, 10, 11, 12, 13, 13, 14])])["a"]
    # When step 7 was made is not known. Means begin and end where a multiple of three is first seen.
    assert np.isnan(found[:6]).all()
    assert found[6:9] == pytest.approx([10.0] * 3, rel=1e-4)
    assert found[9] == found[8]


@pytest.mark.parametrize("step_s", [3, 7, 10, 13, 20, 29, 31, 100, 300])
def test_at_most_a_third_of_a_counted_step_is_too_much(step_s: int) -> None:
    counts = [float((7 + 10 * row) // step_s) for row in range(400)]
    found = np.array(steps("step", step=[({"run": "a"}, counts)])["a"])
    known = found[np.isfinite(found)]
    assert len(np.unique(known)) > 1
    assert (1 - step_s / known).max() <= 1 / 3 + 1e-5
    assert known.min() > step_s / 2
    assert known.mean() == pytest.approx(step_s, rel=0.05)


def test_a_run_that_begins_again_has_no_step_until_it_made_one() -> None:
    found = steps("step", step=[({"run": "llama"}, [50, 60, 0, 5])])
    assert found["llama"][1:] == pytest.approx([1.0, 1.0, 2.0], rel=1e-4)


@pytest.mark.parametrize(
    ("name", "value"), [("step_time", 2.5), ("step_time_ms", 2500.0), ("step_seconds", 2.5)]
)
def test_a_duration_is_in_the_unit_that_its_name_tells(name: str, value: float) -> None:
    assert steps(name, **{name: [({"run": "a"}, [value, value * 1.1])]})["a"] == pytest.approx([2.5, 2.75])


def test_of_ranks_the_slowest_counts_and_runs_are_told_apart() -> None:
    series: list[Series] = [({"run": "a", "rank": "0"}, [1.0, 1.5]), ({"run": "a", "rank": "1"}, [2.0, 1.2])]
    found = steps("step_time", step_time=[*series, ({"job": "trainer"}, [3.0, 3.5])])
    assert found == {"a": [2.0, 1.5], "trainer": [3.0, 3.5]}


def test_a_histogram_tells_the_mean() -> None:
    labels = {"run": "a"}
    found = steps(
        "step_time_seconds",
        step_time_seconds_sum=[(labels, [0.0, 10.0, 25.0])],
        step_time_seconds_count=[(labels, [0.0, 5.0, 10.0])],
    )
    assert found["a"][1:] == pytest.approx([2.0, 3.0], rel=1e-4)


@pytest.mark.parametrize(
    ("metric", "values", "meant"),
    [
        ("progress", [1.0, 3.0, 7.0], "count"),
        ("progress", [1.0, 3.5, 7.0], "duration"),
        ("progress", [3.0, 3.0, 3.0], "duration"),
        ("progress", [7.0, 3.0, 9.0], "duration"),
        ("train_steps_total", [1.0, 3.5, 7.0], "count"),
        ("step_seconds", [1.0, 2.0, 3.0], "duration"),
    ],
)
def test_what_a_metric_is_follows_from_name_and_values(metric: str, values: list[float], meant: str) -> None:
    nameless: Labels = {}
    frame = Source(**{metric: [(nameless, values)]}).frame(metric, WINDOW)
    assert frame is not None
    assert taken_for(frame).meant == meant


@pytest.mark.parametrize(
    ("labels", "run"),
    [
        ({"hpc_job": "77", "pod": "x"}, "77"),
        ({"pod": "llama-worker-3", "namespace": "ml"}, "ml/llama"),
        (
            {"exported_pod": "llama-0-17-x7k2p", "exported_namespace": "ml", "pod": "dcgm-exporter-xk2p7"},
            "ml/llama",
        ),
        ({"pod": "serve-6c9d8f7b5d-x7k2p"}, "serve"),
        ({"pod": "nvidia-dcgm-exporter-x7k2p", "namespace": "gpu-operator"}, ""),
        ({"instance": "n1:9400"}, ""),
    ],
)
def test_a_run_is_told_by_the_labels_of_schedulers(labels: dict[str, str], run: str) -> None:
    assert job_of(labels) == run


def event(at_s: float, step: int) -> bytes:
    """As TensorBoard frames a record; it is read without a look at the checksums."""
    number = bytes((step >> shift) & 0x7F | (0x80 if step >> shift + 7 else 0) for shift in range(0, 21, 7))
    number = number[: max(1, -(-step.bit_length() // 7))]
    record = b"\x09" + struct.pack("<d", at_s) + b"\x10" + number + b"\x2a\x00"
    return struct.pack("<QI", len(record), 0) + record + b"\0\0\0\0"


LOGS: dict[str, str | bytes] = {
    "log.jsonl": "".join(
        json.dumps({"_timestamp": 10.0 + 4 * n, "_step": n, "loss": 1}) + "\n" for n in range(20)
    ),
    "log.csv": "time,step,loss\n" + "".join(f"{10 + 4 * n},{n},1.5\n" for n in range(20)),
    "log.txt": "starting\n"
    + "".join(f" [1970-01-01 00:01:{10 + 2 * n:02}] iteration {n:8}/ 500 | loss: 1\n" for n in range(20)),
    "events.out.tfevents.1.host": b"".join(event(10.0 + 4 * (n // 2), n // 2 + 1) for n in range(40)),
}


@pytest.mark.parametrize("name", sorted(LOGS))
def test_files_are_read_as_they_grow(tmp_path: Path, name: str) -> None:
    text = LOGS[name]
    data = text if isinstance(text, bytes) else text.encode()
    path = tmp_path / name
    path.write_bytes(data[:200])
    files = StepFiles(tmp_path if name.startswith("events") else path)
    assert 0 < len(files.steps()) < 20
    path.write_bytes(data)
    shown = files.steps()
    assert [step for _, step in shown] == [*range(shown[0][1], shown[0][1] + 20)]
    frame = StepLogSource(Source(), files.steps, "llama", step_s=10).frame(STEP, (0, 120 * S))
    assert frame is not None
    assert frame.subjects == ("llama",)
    expected = 2.0 if name == "log.txt" else 4.0
    assert np.nanmedian(frame.values) == pytest.approx(expected, rel=1e-3)


def test_a_log_that_is_not_there_or_a_pipe_is_a_mistake(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path, pipe):
        with pytest.raises(InputError, match="There is no"):
            StepFiles(path).steps()


def shown_of(path: Path, *numbers: int, at_s: float = 100.0) -> list[tuple[int, int]]:
    path.write_text(
        "time,step\n" + "".join(f"{at_s + 3 * row},{number}\n" for row, number in enumerate(numbers))
    )
    return [(at_ns // S, step) for at_ns, step in StepFiles(path).steps()]


def test_steps_that_are_made_again_after_a_return_to_a_checkpoint_are_steps(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    assert shown_of(log, 7, 8, 9, 4, 5, 6) == [(100, 7), (103, 8), (106, 9), (109, 4), (112, 5), (115, 6)]
    again = shown_of(log, 7, 8, 9, 4, 5, 9, 10, 2, 3)
    assert [step for _, step in again] == [7, 8, 9, 4, 5, 9, 10, 2, 3]
    # It goes on to be known as the log grows, and the second value of a step is no step.
    files = StepFiles(log)
    shown_of(log, 6, 7, 8, 9, 6)
    assert [step for _, step in files.steps()] == [6, 7, 8, 9]  # it may be a value that came late
    with log.open("a") as more:
        more.write("115,7\n118,7\n121,8\n")
    assert files.steps()[4:] == [(112 * S, 6), (115 * S, 7), (121 * S, 8)]


def test_values_of_a_step_that_come_late_are_no_return(tmp_path: Path) -> None:
    shown = shown_of(tmp_path / "log.csv", 7, 8, 7, 9, 8, 10, 9, 10)
    assert shown == [(100, 7), (103, 8), (109, 9), (115, 10)]


def test_a_writer_that_lags_behind_another_is_no_return(tmp_path: Path) -> None:
    first, second = (tmp_path / f"events.out.tfevents.{n}" for n in (1, 2))
    first.write_bytes(b"".join(event(100.0 + 3 * n, n) for n in range(1, 21)))
    second.write_bytes(b"".join(event(100.5 + 3 * n, n) for n in range(1, 11)))
    files = StepFiles(tmp_path)
    expected = [((100 + 3 * n) * S, n) for n in range(1, 21)]
    assert files.steps() == expected
    second.write_bytes(b"".join(event(100.5 + 3 * n, n) for n in range(1, 20)))
    assert files.steps() == expected


def test_a_loss_that_is_no_number_costs_no_step(tmp_path: Path) -> None:
    losses = [2.5, float("nan"), float("inf"), float("-inf")]
    lines = [json.dumps({"step": n, "time": 100 + n, "loss": loss}) for n, loss in enumerate(losses)]
    broken = [
        '{"step": 8, "time": NaN}',
        '{"step": NaN, "time": 109}',
        '{"step": 9, "time": 109, "loss": NaNs}',
    ]
    (tmp_path / "log.jsonl").write_text("\n".join([*lines, *broken]) + "\n")
    assert StepFiles(tmp_path / "log.jsonl").steps() == [((100 + n) * S, n) for n in range(4)]
