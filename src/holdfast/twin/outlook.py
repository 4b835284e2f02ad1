"""Apply the formulas to a study, next to its simulation, and list changes that might help it.

The formulas are in `economics.expectation`; this module turns failure classes and the times of a policy into
their inputs. Only the simulation covers failed launches, failures of idle spares, and repairs and restarts
that delay each other.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from holdfast.economics.cadence.expectation import Interruption, Prospect, Setting, spares_for
from holdfast.run.waits import Observed
from holdfast.twin.failures import FailureClass
from holdfast.twin.policies import Policy, hot_s, policy
from holdfast.twin.study import Study, best_interval_s, interval_s
from holdfast.wording.units import DAY_NS

DETECT_S = 15.0
LOCATE_S = 20.0
"""Mycroft sees nine in ten anomalies within 15 s and usually names the faulty GPU within 20 s.
ByteRobust's inspections take 2 to 60 s."""

COMPLETE_SHARE = 0.99
"""The share of time for which spares should suffice; ByteRobust keeps its P99."""

LONG_DAYS = 365.0
"""After this long, nearly as many nodes return from repair as fail."""

FEWER_FAILURES = 0.5
"""Half the failure rate; RSC-2 even has a third of RSC-1's."""

Floats = NDArray[np.float64]

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(64)


class RunChange(msgspec.Struct, frozen=True, kw_only=True):
    """A possible change to a run, with the resulting study and policy."""

    name: str
    study: Study
    policy: Policy


def failures_per_1000_node_days(study: Study) -> float:
    """The rate of all unplanned classes, over the study's time."""
    hazards = study.hazards.unplanned()
    expected = sum(hazards.expected(row, study.layout.nodes, study.duration_ns) for row in hazards.classes)
    return 1000 * expected / (study.layout.nodes * study.duration_ns / DAY_NS)


def setting(study: Study, policy: Policy) -> Setting:
    """The study in the terms of Kokolis et al.: failures of one kind, all alike."""
    return Setting(
        nodes=study.layout.nodes,
        failures_per_1000_node_days=failures_per_1000_node_days(study),
        restart_s=policy.detect_s + policy.locate_s + _resume_s(study, policy),
        interval_s=interval_s(study, policy),
        stall_s=study.job.checkpointing.stall_s,
    )


def prospect(study: Study, policy: Policy, days: float) -> Prospect:
    """The study under a policy, with its failures by class, for a run of about this many days."""
    rows = [(row, _per_day(study, row)) for row in study.hazards.classes]
    stands = _elastic if policy.recovery != "restart" else _restarting
    stall_s = study.job.checkpointing.stall_s
    return Prospect(
        nodes=study.layout.nodes,
        interruptions=tuple(stands(study, policy, row, per_day) for row, per_day in rows if per_day),
        stall_share=stall_s / (interval_s(study, policy) - stall_s),
        nodes_out=nodes_out(study, days),
        spare_nodes=policy.spare_nodes,
        unit_nodes=0 if policy.recovery == "restart" else study.nodes_per_member,
    )


def nodes_out(study: Study, days: float) -> float:
    """The mean number of nodes in repair over a run's first days; at its start there are none.

    At time t a node is in repair if its failure was s ago and its repair takes longer than s:
    rate times the integral of P(repair > s) over s up to t.
    """
    ago_days = days * (_POINTS + 1) / 2
    weights = days * _WEIGHTS / 2 * (1 - ago_days / days)
    return sum(
        _per_day(study, row)
        * (1 - row.transient_share)
        * study.layout.size(row.reach)
        * float((weights * _still_away(row, ago_days)).sum())
        for row in study.hazards.classes
    )


def spares_needed(study: Study) -> int:
    """The fewest spare nodes that suffice for nearly all of the time, in a cluster that has run for long."""
    return spares_for(nodes_out(study, LONG_DAYS), COMPLETE_SHARE)


def _still_away(row: FailureClass, ago_days: Floats) -> Floats:
    """The share of repairs that are not done this many days after the failure."""
    if not row.repair_median_h:
        return np.zeros_like(ago_days)
    if not row.repair_sigma:
        return (ago_days * 24 < row.repair_median_h).astype(np.float64)
    away: Floats = stats.lognorm(row.repair_sigma, scale=row.repair_median_h / 24).sf(ago_days)
    return away


def changes(study: Study, now: Policy) -> tuple[RunChange, ...]:
    """Possible changes, each by itself; without those that would change nothing."""

    def under(name: str, **times: float | None) -> RunChange:
        return RunChange(name=name, study=study, policy=msgspec.structs.replace(now, **times))

    found: list[RunChange] = []
    if now.recovery == "restart":
        seen = {"detect_s": DETECT_S, "hang_s": DETECT_S, "locate_s": LOCATE_S}
        sooner = {field: min(getattr(now, field), value) for field, value in seen.items()}
        found += [
            under(f"failures seen in {DETECT_S:.0f} s, located in {LOCATE_S:.0f} s", **sooner),
            under(
                "processes restarted in place",
                requeue_s=0.0,
                restart_s=min(now.requeue_s + now.restart_s, hot_s(study.job.gpus)),
            ),
            under("a snapshot in memory every step", snapshot_steps=1),
        ]
        if (best_s := best_interval_s(study)) is not None:
            every = f"{best_s / 60:.0f} min" if best_s >= 600 else f"{best_s:.0f} s"
            found.append(under(f"a checkpoint every {every}", checkpoint_s=best_s))
    needed = spares_needed(study)
    if needed > now.spare_nodes:
        found.append(under(f"{needed} spare nodes in place of {now.spare_nodes}", spare_nodes=needed))
    fewer = msgspec.structs.replace(study, hazards=study.hazards.scaled(FEWER_FAILURES))
    found.append(RunChange(name="half as many failures", study=fewer, policy=now))
    if now.name != "holdfast":
        holdfast = policy("holdfast", study.job.gpus, now.spare_nodes)
        found.append(RunChange(name="Holdfast", study=study, policy=holdfast))
    return tuple(change for change in found if (change.study, change.policy) != (study, now))


def _per_day(study: Study, row: FailureClass) -> float:
    days = study.duration_ns / DAY_NS
    return study.hazards.expected(row, study.layout.nodes, study.duration_ns) / days


def _resume_s(study: Study, policy: Policy) -> float:
    """From the decision to restart until the run steps again."""
    restore_s = study.job.checkpointing.restore_s if policy.snapshot_steps is None else 0.0
    return policy.requeue_s + policy.restart_s + restore_s


def _restarting(study: Study, policy: Policy, row: FailureClass, per_day: float) -> Interruption:
    """All members stop and go back to the last saved state."""
    resume_s = _resume_s(study, policy)
    if row.kind == "planned":
        return Interruption(name=row.name, per_day=per_day, stop_s=resume_s)
    if row.kind == "gray":
        slowed_s = (1 - 1 / row.slowdown) * policy.gray_s
        return Interruption(
            name=row.name, per_day=per_day, stop_s=slowed_s + (1 - row.transient_share) * resume_s
        )
    noticed_s = _hang_s(study, policy) if row.kind == "hang" else policy.detect_s
    step_s = study.job.step_ns / 1e9
    if policy.snapshot_steps is not None:
        undone_s, unwritten_s = policy.snapshot_steps * step_s, 0.0
    else:
        checkpointing = study.job.checkpointing
        # A checkpoint that is being written cannot be loaded yet.
        unwritten_s = checkpointing.stall_s + checkpointing.write_s
        undone_s = unwritten_s + interval_s(study, policy)
    return Interruption(
        name=row.name,
        per_day=per_day,
        stop_s=noticed_s + policy.locate_s + resume_s,
        undone_s_min=unwritten_s,
        undone_s_max=undone_s,
    )


def _elastic(study: Study, policy: Policy, row: FailureClass, per_day: float) -> Interruption:
    """The other replicas go on without one until it has its machines and its state again.

    They regroup twice: without it, and with it.
    """
    members = study.job.members
    struck = min(members, -(-study.layout.size(row.reach) // study.nodes_per_member))
    ready_s = policy.import_s * row.transient_share if policy.is_warm else 0.0
    away_s = policy.join_s - ready_s + (1 - row.transient_share) * policy.swap_s
    missing_s = away_s * struck / members
    if row.kind == "gray":
        share = 1.0 if not policy.rebalances else struck / members
        return Interruption(
            name=row.name, per_day=per_day, stop_s=(1 - 1 / row.slowdown) * policy.gray_s * share + missing_s
        )
    noticed_s = {"hang": _hang_s(study, policy), "planned": 0.0}.get(row.kind, policy.detect_s)
    return Interruption(
        name=row.name,
        per_day=per_day,
        stop_s=noticed_s + 2 * policy.regroup_s + missing_s,
        undone_s_max=0.0 if row.kind == "planned" else study.job.step_ns / 1e9,
    )


def _hang_s(study: Study, policy: Policy) -> float:
    """Time until a hang is noticed; derived from the run's own steps if the policy does not set it."""
    if policy.hang_s is not None:
        return policy.hang_s
    return Observed(step_ns_max=study.job.step_ns).hung_ns / 1e9
