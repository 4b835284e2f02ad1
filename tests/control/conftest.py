"""Clusters, incidents and policies as the tests of control want them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.control.actions import ACTIONS
from holdfast.control.cluster import ClusterView, NodeView, RunView
from holdfast.control.history import ControlHistory
from holdfast.diagnose.incident import Incident
from holdfast.wording.units import HOUR_NS, MINUTE_NS

NOW_NS = 1_800_000_000 * 10**9
SAMPLE = Path(__file__).parents[1] / "data" / "incident.json"


@pytest.fixture(scope="session")
def incident() -> Callable[..., Incident]:
    """One of n17's, ten minutes old; other fields may be given, those of its cause too."""
    sample = msgspec.json.decode(SAMPLE.read_bytes(), type=Incident)

    def make(node: str = "n17", **fields: Any) -> Incident:
        own = {"subject": f"{node}.3", "kind": "gpu", "mechanism": "gpu-throttle"}
        own |= {name: fields.pop(name) for name in own if name in fields}
        usual: dict[str, Any] = {
            "name": f"pretrain/{node}",
            "run": "pretrain",
            "verdict": "cause",
            "path": (own["subject"], node, "pretrain"),
            "confidence": 0.95,
            "quality": 1.0,
            "began_ns": NOW_NS - 11 * MINUTE_NS,
            "noticed_ns": NOW_NS - 10 * MINUTE_NS,
            "ended_ns": None,
            "slowdown": 1 / 0.88,
            "cost": None,
        }
        cause = msgspec.structs.replace(sample.cause, title="one GPU throttles alone", **own)
        return msgspec.structs.replace(sample, cause=cause, **(usual | fields))

    return make


@pytest.fixture(scope="session")
def cluster() -> Callable[..., ClusterView]:
    """Of 64 nodes with 8 GPUs each, of which 16 have the run pretrain; it can do everything."""

    def make(*incidents: Incident, **fields: Any) -> ClusterView:
        nodes = {f"n{number}": NodeView(name=f"n{number}") for number in range(1, 65)}
        nodes |= {node.name: node for node in fields.pop("changed", ())}
        run = RunView(
            name="pretrain",
            gpus=128,
            nodes=frozenset(f"n{number}" for number in range(10, 26)),
            saved_ns=NOW_NS - HOUR_NS,
            began_ns=NOW_NS - 10 * HOUR_NS,
        )
        run = msgspec.structs.replace(run, **fields.pop("run", {}))
        usual: dict[str, Any] = {
            "nodes": nodes,
            "runs": {"pretrain": run},
            "incidents": incidents,
            "history": ControlHistory(),
            "can": frozenset(ACTIONS),
            "usd_per_gpu_hour": 4.0,
            "person_usd": 700.0,
        }
        return ClusterView(**(usual | fields))

    return make
