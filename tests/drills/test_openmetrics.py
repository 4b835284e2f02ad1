"""The exposition, as a real promtool takes it in and a real Prometheus gives it back."""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from holdfast.drills import openmetrics
from holdfast.drills.scenarios import Played, play
from holdfast.signals.frame import Frame

MINUTE_NS = 60 * 10**9


@pytest.fixture(scope="module")
def played() -> Played:
    return play("pool-link", 4)


def small(**fields: object) -> Frame:
    return Frame(
        **{  # type: ignore[arg-type]
            "metric": "node_infiniband_symbol_error_total",
            "kind": "counter",
            "meaning": "Symbols with errors.",
            "subjects": ("n00000.0",),
            "labels": ({"device": "mlx5_0", "port": "1"},),
            "times_ns": np.array([10**9, 11 * 10**9]),
            "values": np.array([[3.0], [12_345_678_901.0]]),
            **fields,
        }
    )


def test_a_counter_is_a_family_without_its_suffix() -> None:
    assert b"".join(openmetrics.write([small()])).decode() == (
        "# HELP node_infiniband_symbol_error Symbols with errors.\n"
        "# TYPE node_infiniband_symbol_error counter\n"
        'node_infiniband_symbol_error_total{device="mlx5_0",port="1"} 3 1.000\n'
        'node_infiniband_symbol_error_total{device="mlx5_0",port="1"} 12345678901 11.000\n'
        "# EOF\n"
    )


def test_a_counter_of_another_name_does_not_say_what_it_is() -> None:
    text = b"".join(openmetrics.write([small(metric="DCGM_FI_DEV_THERMAL_VIOLATION")])).decode()
    assert "# TYPE DCGM_FI_DEV_THERMAL_VIOLATION unknown\n" in text


def test_what_was_not_read_is_not_written_and_labels_are_escaped() -> None:
    text = b"".join(
        openmetrics.write([small(values=np.array([[np.nan], [1.0]]), labels=({"device": 'a"b\\c\nd'},))])
    ).decode()
    assert text.splitlines()[2:] == [
        r'node_infiniband_symbol_error_total{device="a\"b\\c\nd"} 1 11.000',
        "# EOF",
    ]


def test_redfish_is_left_out(played: Played) -> None:
    assert list(openmetrics.write([played.telemetry.sample("FlowLitersPerMinute")])) == [b"# EOF\n"]


def test_promtool_takes_every_metric_and_prometheus_gives_it_back(
    played: Played,
    promtool: str,
    prometheus: Callable[[Path], AbstractContextManager[str]],
    tmp_path: Path,
) -> None:
    last_ns = int(played.telemetry.sample("holdfast_run_step_seconds").times_ns[-1])
    window_ns = (last_ns - MINUTE_NS, last_ns + 1)
    text, blocks = tmp_path / "signals.om", tmp_path / "blocks"
    samples = (played.telemetry.sample(name, window_ns) for name in played.telemetry.metrics)
    with text.open("wb") as file:
        file.writelines(openmetrics.write(samples))
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(blocks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    temperature = played.telemetry.sample("DCGM_FI_DEV_GPU_TEMP", window_ns)
    time, index = np.argwhere(np.isfinite(temperature.values))[-1].tolist()
    labels = temperature.labels[index]
    with prometheus(blocks) as url:
        at_s = int(temperature.times_ns[time]) // 10**9
        query = f'DCGM_FI_DEV_GPU_TEMP{{UUID="{labels["UUID"]}"}}'
        assert list(ask(url, query, at_s)) == [
            ({"__name__": "DCGM_FI_DEV_GPU_TEMP", **labels}, float(temperature.values[time, index]))
        ]
        names = {found["__name__"] for found, _ in ask(url, "count by (__name__) ({__name__=~'.+'})", at_s)}
    there = {name for name in played.telemetry.metrics if name[0].islower() or name.startswith("DCGM")}
    assert names == there


def ask(url: str, query: str, at_s: int) -> Iterator[tuple[dict[str, str], float]]:
    parameters = urllib.parse.urlencode({"query": query, "time": at_s})
    with urllib.request.urlopen(f"{url}/api/v1/query?{parameters}", timeout=30) as answer:
        for found in json.load(answer)["data"]["result"]:
            yield found["metric"], float(found["value"][1])
