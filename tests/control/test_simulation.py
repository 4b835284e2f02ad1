"""Thousands of random sequences: budgets hold, nothing that is not ours is undone, nothing flaps.

To see one again: `pytest tests/control/test_simulation.py -k 'sequences and 17'` has the seeds 1700 to 1799.
"""

from collections import Counter
from typing import Any

import msgspec
import pytest
from quantity import sampled

from holdfast.control.actions import ACTIONS
from holdfast.control.policy import Bound, Budget, ControlPolicy, Waits
from holdfast.diagnose.incident import Incident

from .conftest import SAMPLE
from .simulation import POLICY, Blind, Broken, Forgiving, Simulation

pytestmark = pytest.mark.slow

BATCH = 100
STEPS = 60
BROKEN_SEEDS = 60
INCIDENT = msgspec.json.decode(SAMPLE.read_bytes(), type=Incident)


@pytest.mark.parametrize("batch", sampled(range(100), [0]))
def test_no_rule_is_broken_in_random_sequences(batch: int) -> None:
    done: Counter[str] = Counter()
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        simulation = Simulation(seed, INCIDENT)
        try:
            simulation.run(STEPS)
        except Broken as broken:
            raise AssertionError(f"seed {seed}: {broken}") from None
        done.update(action for _, action, _ in simulation.machines.done)
    # It is a test only if things were done.
    assert done["drain-when-done"] > BATCH / 4
    assert done["restore"] > BATCH / 4
    assert done["reboot"]
    assert done["call-a-person"]
    assert done["rebalance"] > BATCH / 4
    assert done["migrate"] > BATCH / 20
    assert done["shrink"] + done["drain-now"] > BATCH / 20


def bounded(out: int = 1_000, at_once: int = 1_000, per_day: int = 1_000) -> ControlPolicy:
    budget = Budget(nodes=at_once, percent=100, per_day=per_day)
    return msgspec.structs.replace(
        POLICY, out=Bound(nodes=out, percent=100), budgets=dict.fromkeys(ACTIONS, budget)
    )


def off_by_one(name: str, most: int) -> dict[str, Any]:
    """Control believes that there is room for one more."""
    return {"rules": bounded(**{name: most}), "policy": bounded(**{name: most + 1})}


NO_COOL_DOWN = msgspec.structs.replace(POLICY, waits=Waits(cool_down_min=0))


@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (off_by_one("out", 2), "nodes out"),
        (off_by_one("at_once", 1), "the action's budget"),
        (off_by_one("per_day", 2), "the day's budget"),
        ({"policy": NO_COOL_DOWN}, "flapping"),
        ({"policy": msgspec.structs.replace(POLICY, rules={})}, "shadow"),
        ({"machines": Blind}, "it is out already"),
        ({"machines": Forgiving}, "it is not out by us"),
        ({"forgets": True}, "nodes out"),
    ],
)
def test_a_rule_that_is_broken_on_purpose_is_caught(broken: dict[str, Any], caught: str) -> None:
    found: Counter[str] = Counter()
    for seed in range(BROKEN_SEEDS):
        try:
            Simulation(seed, INCIDENT, **broken).run(STEPS)
        except Broken as rule:
            found[str(rule)] += 1
        if any(caught in rule for rule in found):
            return
    raise AssertionError(f"only these were caught: {found}")
