"""One simulated run, from its seed to its ledger."""

import msgspec
import numpy as np

from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.record.events import KnownEvent
from holdfast.twin.elastic import ElasticRun
from holdfast.twin.failures import draw
from holdfast.twin.ground import Ground
from holdfast.twin.policies import Policy
from holdfast.twin.restarting import RestartingRun
from holdfast.twin.study import Study


class SimulationOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. truth: GPU-ns by category, as the simulation itself counted them."""

    policy: str
    seed: int
    events: list[KnownEvent]
    truth: dict[str, int]
    report: Report
    interruptions: int
    planned: int
    restarts: int
    rolled_back_steps: int

    @property
    def is_exact(self) -> bool:
        """Whether the ledger, which reads only the events, comes to the same sums."""
        return self.truth == self.report.partition and sum(self.truth.values()) == self.report.paid_gpu_ns


def simulate(study: Study, policy: Policy, seed: int) -> SimulationOutcome:
    """Simulate a run. Its failures depend on the study, the spares and the seed, not on the recovery."""
    rng = np.random.default_rng(seed)
    spares_gpus = policy.spare_nodes * study.layout.gpus_per_node
    layout = msgspec.structs.replace(study.layout, gpus=study.layout.gpus + spares_gpus)
    failures = draw(study.hazards, layout, study.duration_ns, rng)
    ground = Ground(study, policy)
    run = RestartingRun(ground, failures) if policy.recovery == "restart" else ElasticRun(ground, failures)
    run.run()
    ledger = Ledger()
    ledger.add(ground.tape.events)
    return SimulationOutcome(
        policy=policy.name,
        seed=seed,
        events=ground.tape.events,
        truth={category.key: gpu_ns for category, gpu_ns in ground.truth.gpu_ns.items()},
        report=report(study.name, ledger.fold),
        interruptions=ground.interruptions,
        planned=ground.planned,
        restarts=ground.restarts,
        rolled_back_steps=ground.rolled_back_steps,
    )
