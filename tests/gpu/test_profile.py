"""What a step costs the host, and whether exchanges hide behind backward: from a profile of two members."""

import json
from pathlib import Path
from typing import Any

from forked_cluster import Cluster
from scripts import TRACED

WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
WAITS_MAX = 1
"""The host waits for the device once a step: to know the sums."""
MATRIX = ("gemm", "cutlass", "nvjet", "wgmma", "xmma")
"""In the names of kernels that multiply matrices, as forward and backward do and the reduction does not."""

Event = dict[str, Any]


def test_the_host_waits_once_a_step_and_exchanges_overlap_with_backward(
    cluster: Cluster, has_gpu: bool
) -> None:
    alone = cluster.train("wide", lanes=4)
    traced = cluster.train("wide", nodes=2, lanes=4, trace=True)
    assert traced.ending.outcome == "completed", traced.story
    assert traced.digest == alone.digest
    paths = sorted(traced.folder.glob("*.trace"))
    assert len(paths) == 2
    for path in paths:
        events = read(path)
        steps = [event for event in events if is_step(event)]
        assert len(steps) == len(TRACED)
        if has_gpu:
            look_at(path.stem, events, steps)


def read(path: Path) -> list[Event]:
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def is_step(event: Event) -> bool:
    return event.get("cat") == "user_annotation" and str(event["name"]).startswith("step ")


def look_at(member: str, events: list[Event], steps: list[Event]) -> None:
    for step in steps:
        inside = [event for event in events if overlap(event, step)]
        waits = [event["name"] for event in inside if event["name"] in WAITS]
        assert len(waits) <= WAITS_MAX, f"{member}, {step['name']}: {waits}"
        fetched = [event["name"] for event in inside if "DtoH" in event["name"]]
        assert len(fetched) <= WAITS_MAX, f"{member}, {step['name']}: {fetched}"
    kernels = [event for event in events if event.get("cat") == "kernel"]
    exchanges = [event for event in kernels if event["name"].startswith("ncclDevKernel")]
    products = [event for event in kernels if any(word in event["name"].lower() for word in MATRIX)]
    assert exchanges, f"{member} exchanged nothing by NCCL: {sorted({event['name'] for event in kernels})}"
    assert products, f"{member} multiplied nothing: {sorted({event['name'] for event in kernels})}"
    # Forward passes of this step's last lane are over when its first bucket is sent.
    both = sum(any(overlap(product, exchange) for product in products) for exchange in exchanges)
    assert both, f"{member}: none of {len(exchanges)} exchanges ran beside backward"


def overlap(one: Event, other: Event) -> bool:
    return bool(one["ts"] < other["ts"] + other["dur"] and other["ts"] < one["ts"] + one["dur"])
