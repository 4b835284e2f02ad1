"""The common ground of simulated runs: machines, record, truth, and slow machines.

A runner (restarting, replicas, elastic) decides what happens next; the ground keeps machines, events and
truth consistent, so that no runner can update one and forget the others.
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import assert_never

import msgspec

from holdfast.ledger.categories import Category
from holdfast.record import events as ev
from holdfast.twin.agenda import Action, Agenda
from holdfast.twin.cluster import name
from holdfast.twin.failures import Failure
from holdfast.twin.fleet import Fleet
from holdfast.twin.policies import Policy
from holdfast.twin.study import Study
from holdfast.twin.tape import Tape
from holdfast.twin.truth import RunTruth
from holdfast.wording.units import SECOND_NS

SPARES = "spares"


class Slow(msgspec.Struct, kw_only=True):
    """A machine that is slower than the others, until it is taken out or recovers."""

    machine: int
    factor: Fraction
    began_ns: int
    ends_ns: int


class Ground:
    """A run's machines, record and truth, and the counts for its summary."""

    def __init__(self, study: Study, policy: Policy) -> None:
        self.study, self.policy = study, policy
        self.job = study.job
        self.gpus_per_node = study.layout.gpus_per_node
        self.paid_gpus = study.job.gpus + policy.spare_nodes * self.gpus_per_node
        self.fleet = Fleet(places=study.layout.nodes, spares=policy.spare_nodes, crews=study.crews)
        self.tape = Tape(study.name, study.start_ns)
        self.truth = RunTruth(
            paid_gpus=self.paid_gpus, job_gpus=study.job.gpus, reference_gpu_ns=study.reference_gpu_ns
        )
        self.interruptions = 0
        self.planned = 0
        self.restarts = 0
        self.checkpoints = 0
        self.rolled_back_steps = 0
        self.active_gpus = 0
        self.joining_gpus = 0
        self._slow: list[Slow] = []

    # ---- the record ------------------------------------------------------------------------------------

    def declare(self) -> None:
        """Record the run's reference, and the GPUs paid for from its first moment on."""
        job = self.job
        self.tape.record(ev.CostRate, 0, gpus=self.paid_gpus, usd_per_gpu_hour=self.study.usd_per_gpu_hour)
        self.tape.record(
            ev.ReferenceDeclared,
            0,
            step_ns=job.step_ns,
            gpus=job.gpus,
            tokens_per_step=job.tokens_per_step,
            model_flops_per_step=job.flops_per_step,
            chip=job.chip,
        )

    def show_spares(self, now_ns: int) -> None:
        """Record how many GPUs are spare from now on. All spares are one member in the record."""
        if self.policy.spare_nodes:
            gpus = len(self.fleet.spares) * self.gpus_per_node
            self.tape.record(ev.MemberJoined, now_ns, subject=SPARES, gpus=gpus, role="spare")
        self.reshape(now_ns)

    def commit(self, now_ns: int, count: int, step_ns: int, excess: Category = Category.SLOWDOWN) -> None:
        """Commit `count` steps of `step_ns` each, the last one now."""
        self.truth.steps(count, step_ns, now_ns, excess)
        self.tape.record(ev.StepCommitted, now_ns, step=self.truth.step)

    def observe(self, now_ns: int, failure: Failure, onset_ns: int) -> str:
        severity = "degraded" if failure.kind == "gray" else "fatal"
        return self.tape.record(
            ev.FaultObserved,
            now_ns,
            subject=name("node", failure.node),
            fault=failure.row.name,
            severity=severity,
            onset_ns=onset_ns,
        )

    def count(self, failure: Failure) -> None:
        match failure.kind:
            case "planned":
                self.planned += 1
            case "crash" | "hang":
                self.interruptions += 1
            case "gray":
                pass  # the run goes on, slower
            case _:
                assert_never(failure.kind)

    def complete(self, now_ns: int) -> None:
        self.tape.record(ev.RunEnded, now_ns, outcome="completed")
        self.truth.end(now_ns)

    def end(self, now_ns: int) -> None:
        """Stop at the horizon, whatever the run is doing."""
        self.tape.record(ev.RunEnded, now_ns, outcome="stopped", reason="the simulation ends here")
        self.truth.end(now_ns)

    # ---- machines --------------------------------------------------------------------------------------

    def reshape(self, now_ns: int) -> None:
        self.truth.reshape(
            now_ns,
            active=self.active_gpus,
            joining=self.joining_gpus,
            spare=len(self.fleet.spares) * self.gpus_per_node,
            out=len(self.fleet.out) * self.gpus_per_node,
        )

    def drain(self, machine: int, repair_ns: int, now_ns: int) -> None:
        """Take the machine out for repair."""
        was_spare = self.fleet.place_of(machine) is None
        self.fleet.take_out(machine, repair_ns, now_ns)
        self._slow = [slow for slow in self._slow if slow.machine != machine]
        self.tape.record(
            ev.ActionTaken, now_ns, subject=name("node", machine), action="drain", gpus=self.gpus_per_node
        )
        if was_spare:
            self.show_spares(now_ns)
        else:
            self.reshape(now_ns)

    def restore(self, now_ns: int) -> int | None:
        """Finish the next repair. Return the place that has a machine again, if any."""
        move = self.fleet.mend()
        self.tape.record(ev.ActionTaken, now_ns, subject=name("node", move.machine), action="restore")
        if move.place is None:
            self.show_spares(now_ns)
        else:
            self.reshape(now_ns)
        return move.place

    def is_mended(self, now_ns: int, agenda: Agenda, again: Action) -> bool:
        """Whether a repair is done by now; if the next one takes longer, plan `again` for its end."""
        due_ns = self.fleet.repaired_ns
        if due_ns is not None and due_ns > now_ns:
            agenda.plan(due_ns, again)
        return due_ns is not None and due_ns <= now_ns

    def fill_places(self, now_ns: int) -> list[int]:
        """Fill vacant places with spares. Return these places."""
        filled = self.fleet.fill()
        if filled:
            self.show_spares(now_ns)
        return filled

    def replica_at(self, place: int) -> str:
        return f"r{place // self.study.nodes_per_member:04}"

    def replicas(self, machines: Iterable[int]) -> list[str]:
        """The replicas in which one of these machines works."""
        places = (self.fleet.place_of(machine) for machine in machines)
        return sorted({self.replica_at(place) for place in places if place is not None})

    def is_whole(self, replica: str) -> bool:
        return all(self.replica_at(place) != replica for place in self.fleet.vacant)

    # ---- slow machines -----------------------------------------------------------------------------------

    def slow_down(self, failure: Failure, machines: list[int]) -> None:
        ends_ns = failure.at_ns + round(self.policy.gray_s * SECOND_NS) if failure.is_transient else 1 << 62
        factor = Fraction(failure.slowdown).limit_denominator(1000)
        self._slow += [
            Slow(machine=machine, factor=factor, began_ns=failure.at_ns, ends_ns=ends_ns)
            for machine in machines
        ]

    def slow_at(self, now_ns: int) -> list[Slow]:
        """The machines that are slow now. Drops those that recovered."""
        self._slow = [slow for slow in self._slow if slow.ends_ns > now_ns]
        return [slow for slow in self._slow if slow.began_ns <= now_ns]

    def slow_change_ns(self, now_ns: int) -> int | None:
        """When the set of slow machines next changes by itself."""
        moments = [slow.ends_ns for slow in self._slow if slow.ends_ns < 1 << 62]
        moments += [slow.began_ns for slow in self._slow if slow.began_ns > now_ns]
        return min(moments, default=None)
