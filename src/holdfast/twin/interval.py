"""How often a simulated run saves: as its policy says, as its job does, or as is best for its failures."""

from math import inf, isinf

from holdfast.economics.cadence.cadence import Costs
from holdfast.economics.cadence.renewal import optimum_s
from holdfast.twin.policies import Policy
from holdfast.twin.study import Study


def interval_s(study: Study, policy: Policy) -> float:
    """Between the beginnings of two checkpoints."""
    best_s = best_interval_s(study) if policy.finds_interval else None
    return best_s or policy.checkpoint_s or study.job.checkpointing.interval_s


def best_interval_s(study: Study) -> float | None:
    """As `holdfast plan cadence` has it, to whole seconds; None where none stalls."""
    checkpointing = study.job.checkpointing
    if not checkpointing.stall_s or isinf(mtbf_s(study)):
        return None
    costs = Costs(stall_s=checkpointing.stall_s, write_s=checkpointing.write_s)
    return float(round(optimum_s(costs, mtbf_s(study))))


def mtbf_s(study: Study) -> float:
    """Mean time between unplanned failures, of all the job's nodes together."""
    hazards = study.hazards.unplanned()
    failures = sum(hazards.expected(row, study.layout.nodes, study.duration_ns) for row in hazards.classes)
    return study.duration_ns / 1e9 / failures if failures else inf
