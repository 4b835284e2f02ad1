"""The ledger of every simulated run comes to the twin's own sums, to the nanosecond, for any failures."""

import msgspec
import pytest
from quantity import sampled

from holdfast.ledger.ledger import Ledger
from holdfast.ledger.reporting import report
from holdfast.record.events import FaultObserved, GenerationOpened, MemberLost, decode, encode
from holdfast.twin.cluster import Layout
from holdfast.twin.failures import FailureClass, Hazards
from holdfast.twin.policies import policies, policy
from holdfast.twin.simulation import simulate
from holdfast.twin.study import Checkpointing, Job, Study

pytestmark = pytest.mark.slow

GPUS = 64
RATE = 3_000.0  # per 1000 node-days: a thousand times what real clusters have
HOUR_NS = 3_600 * 10**9
POLICIES = [one.name for one in policies(GPUS, 0)]


def failure_class(name: str, part: str, **more: object) -> FailureClass:
    rate = RATE / 4 if more.get("reach") else RATE
    usual: dict[str, object] = {"transient_share": 0.5, "repair_median_h": 0.5, "repair_sigma": 1.0}
    given = {"name": name, "part": part, "source": "a test", "rate_per_1000_node_days": rate}
    return msgspec.convert({**given, **usual, **more}, FailureClass)


CLASSES = (
    failure_class("crash", "gpu"),
    failure_class("silent", "power", transient_share=0.3),
    failure_class("hang", "unknown", kind="hang"),
    failure_class("gray", "cooling", kind="gray", slowdown=1.3, transient_share=0.3),
    failure_class("leaf", "gpu", reach="leaf"),
    failure_class("planned", "planned", kind="planned", reach="cluster", transient_share=1.0),
)


def study(*, hours: float = 6, steps_total: int | None = None) -> Study:
    job = Job(
        model="small",
        chip="h100",
        gpus=GPUS,
        member_gpus=16,
        lanes=16,
        step_ns=6_700_000_001,
        tokens_per_step=1_000,
        flops_per_step=1e15,
        steps_total=steps_total,
        checkpointing=Checkpointing(interval_s=600, stall_s=0.59, write_s=51, restore_s=100),
    )
    return Study(
        name="small",
        job=job,
        layout=Layout(gpus=GPUS, nodes_per_leaf=2),
        hazards=Hazards(classes=CLASSES),
        duration_ns=round(hours * HOUR_NS),
        usd_per_gpu_hour=4.0,
    )


@pytest.mark.parametrize("seeds", sampled([5, 25], [5]))
@pytest.mark.parametrize("name", POLICIES)
def test_the_ledger_agrees_to_the_nanosecond(name: str, seeds: int) -> None:
    for seed in range(seeds):
        outcome = simulate(study(), policy(name, GPUS, seed % 3), seed)
        assert outcome.truth == outcome.report.partition, f"seed {seed}"
        assert sum(outcome.truth.values()) == outcome.report.paid_gpu_ns
        assert outcome.is_exact


@pytest.mark.parametrize("name", ["restart", "snapshots", "holdfast"])
def test_a_run_with_an_end_is_exact_too(name: str) -> None:
    done = 0
    for seed in range(8):
        outcome = simulate(study(hours=24, steps_total=300), policy(name, GPUS, 2), seed)
        assert outcome.is_exact
        done += outcome.report.counts.steps == 300
    assert done, "no run came to its end"


@pytest.mark.parametrize("name", ["restart", "holdfast"])
def test_the_same_seed_is_the_same_run(name: str) -> None:
    def played(seed: int) -> bytes:
        outcome = simulate(study(hours=3), policy(name, GPUS, 1), seed)
        return b"\n".join(encode(event) for event in outcome.events)

    assert played(5) == played(5)
    assert played(5) != played(6)


def test_the_record_is_the_memberships_own() -> None:
    outcome = simulate(study(hours=3), policy("holdfast", GPUS, 1), 2)
    lost = [event for event in outcome.events if isinstance(event, MemberLost)]
    faults = {event.id for event in outcome.events if isinstance(event, FaultObserved)}
    opened = [event for event in outcome.events if isinstance(event, GenerationOpened)]
    assert lost
    assert any(set(event.causes) & faults for event in lost)
    assert [event.generation for event in opened] == sorted(event.generation for event in opened)
    assert {len(event.members) for event in opened} >= {3, 4}  # it shrank, and grew again
    assert all(decode(encode(event)) == event for event in outcome.events)


def test_events_may_come_in_any_order() -> None:
    outcome = simulate(study(hours=2), policy("holdfast", GPUS, 1), 3)
    ledger = Ledger()
    ledger.add(reversed(outcome.events))
    assert report("small", ledger.fold).partition == outcome.report.partition
