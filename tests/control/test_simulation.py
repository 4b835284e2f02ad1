"""Thousands of random sequences: budgets hold, nothing that is not ours is undone, nothing flaps.

To see one again: `pytest tests/control/test_simulation.py -k 'sequences and 17'` has the seeds 1700 to 1799.
"""

from collections import Counter
from typing import Any

import msgspec
import pytest
from quantity import sampled

from holdfast.control.policy import Bound, BreakerBound, Budget, Waits
from holdfast.diagnose.incident import Incident

from .conftest import SAMPLE
from .simulation import POLICY, Blind, Broken, Simulation

pytestmark = pytest.mark.slow

BATCH = 100
STEPS = 60
BROKEN_SEEDS = 60
INCIDENT = msgspec.json.decode(SAMPLE.read_bytes(), type=Incident)


@pytest.mark.parametrize("batch", sampled(range(100), [0, 50]))
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


NO_BUDGET = msgspec.structs.replace(
    POLICY,
    out=Bound(nodes=1000, percent=100),
    breaker=BreakerBound(nodes=1000, percent=100),
    budgets={"drain-when-done": Budget(nodes=1000, percent=100, per_day=1000)},
)
NO_COOL_DOWN = msgspec.structs.replace(
    POLICY, waits=Waits(cool_down_min=0, hold_min=0, hands_off_h=0, person_h=0)
)


@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        ({"policy": NO_BUDGET}, "nodes out"),
        ({"policy": NO_COOL_DOWN}, "flapping"),
        ({"policy": msgspec.structs.replace(POLICY, rules={})}, "shadow"),
        ({"machines": Blind}, "it is out already"),
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
