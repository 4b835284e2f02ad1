"""A run under Holdfast: the production membership decides, and the twin plays agents, workers and time.

`membership.advance` gets the messages that a coordinator gets from its agents and workers, at the simulated
moment. Its effects are applied to the simulated processes, and its events are the record. A member is one
replica of the model, with all its machines.

The simulation skips quiet time. While all members step and none is silent, the heartbeats and commits of
every quarter of a second would only renew deadlines. So the membership is told only of steps close to another
event, and a deadline that only guards against silence is checked only when a member is silent. Waits that
follow from heartbeats are therefore at their upper bound.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial

import msgspec

from holdfast.ledger.categories import Category
from holdfast.record import events as ev
from holdfast.run import happenings, membership, wire
from holdfast.run.waits import HUNG_S_MIN, ns
from holdfast.twin.agenda import Action, Agenda
from holdfast.twin.failures import Failure
from holdfast.twin.ground import Ground
from holdfast.twin.pace import ElasticPace
from holdfast.twin.stretch import Stretch
from holdfast.wording.units import SECOND_NS

PLACE = "storage"
SILENT_PARTS = frozenset({"power", "host", "fabric"})
"""When one of these fails, no connection closes: its lease must run out."""
SIGKILL = 9
WAIT_S = 7 * 86_400.0
"""How long the run waits for members it cannot go on without: a simulated operator is patient."""

FRESH_NS = ns(HUNG_S_MIN) // 2
"""If the last step it knows is older, the membership hears of a newer one first: half the least hang time."""


class ElasticRun:
    """One run under an `elastic` policy. `run` plays it to the end."""

    def __init__(self, ground: Ground, failures: Sequence[Failure]) -> None:
        self.ground, self.truth = ground, ground.truth
        self.policy, self.job = ground.policy, ground.job
        self.horizon_ns = ground.study.duration_ns
        started_ns = ns(self.policy.join_s + self.policy.regroup_s) + 2 * ground.job.step_ns
        # A failure before the run exists would only delay it, so it strikes as soon as the run exists.
        self._failures = [msgspec.structs.replace(one, at_ns=max(one.at_ns, started_ns)) for one in failures]
        self._upcoming = 0  # index of the next failure to strike
        self._agenda = Agenda()
        self._stretch = Stretch()
        self._pace = ElasticPace(ground, self._steps)
        self._is_over = False  # complete, or given up by the membership
        self._step_ns = ground.job.step_ns
        self._first_ns = 0  # how long the first step of this generation takes
        self._group: tuple[str, ...] = ()  # the members that step
        self._joining: set[str] = set()  # members that wait for a boundary
        self._arriving: set[str] = set()  # newcomers that form the next group with the survivors
        self._announced: wire.Announced | None = None
        self._is_pending = False  # whether the announced generation waits for a boundary
        self._is_pause_due = False
        self._hung: dict[str, Failure] = {}  # by member
        self._silent: set[str] = set()  # replicas that are gone, but not noticed yet
        self._tick_ns: int | None = None
        self._target = 0
        checkpointing = self.job.checkpointing
        self._interval_ns = ns(self.policy.checkpoint_s or checkpointing.interval_s)
        self._save_ns = self._interval_ns
        self._stall_ns = ns(checkpointing.stall_s)
        self._import_ns = ns(self.policy.import_s)
        self._ready_ns = ns(self.policy.join_s - self.policy.import_s)
        self._regroup_ns = ns(self.policy.regroup_s)
        self.state = membership.initial(
            membership.RunPolicy(
                run=ground.study.name,
                nodes_max=self.job.members,
                nodes_min=1,
                warm=int(self.policy.is_warm),
                wait_s=WAIT_S,
                hang_after_s=self.policy.hang_s,
            ),
            0,
        )
        self._setup = wire.Setup(
            lanes=self.job.lanes,
            seed=0,
            threads=1,
            torch="",
            device=self.job.chip,
            deterministic=True,
            model=self.job.model,
            parts={},
        )

    def run(self) -> None:
        self.ground.declare()
        self.ground.active_gpus = self.job.gpus
        self.ground.show_spares(0)
        for failure in self._failures:
            self._agenda.plan(failure.at_ns, partial(self._strike, failure))
        places = (number * self.ground.study.nodes_per_member for number in range(self.job.members))
        self._hear(
            0, happenings.Begun(), *(self._agent_joined(self.ground.replica_at(place)) for place in places)
        )
        while not self._is_over:
            next_ns = self._agenda.next_ns
            if next_ns is None or next_ns >= self.horizon_ns:
                self._charge_unfinished(self.horizon_ns, beyond=Category.UNATTRIBUTED)
                self.ground.end(self.horizon_ns)
                break
            at_ns, action = self._agenda.pop()
            action(at_ns)

    # ---- the membership ----------------------------------------------------------------------------------

    def _hear(self, now_ns: int, *told: happenings.Happening) -> None:
        """Tell the membership what happened, and apply its effects."""
        for happening in told:
            queue = deque(membership.advance(self.state, happening, now_ns))
            while queue:
                for further in self._obey(now_ns, queue.popleft()):
                    queue.extend(membership.advance(self.state, further, now_ns))
            self._heed_deadline(now_ns)

    def _obey(self, now_ns: int, effect: happenings.Effect) -> list[happenings.Happening]:
        """Apply one effect of the membership. Return what happens at once because of it."""
        match effect:
            case happenings.Record(event):
                self._record(now_ns, event)
            case happenings.ToNode(node, wire.StartWorker(member=member)):
                joined = wire.WorkerJoined(member=member, pid=1)
                self._agenda.plan(now_ns + self._import_ns, partial(self._progress, member, joined))
                return [happenings.FromNode(node, wire.WorkerStarted(member=member, pid=1))]
            case happenings.ToNode(node, wire.StopWorker(member=member)):
                if (failure := self._hung.pop(member, None)) is not None and not failure.is_transient:
                    self._agenda.plan(now_ns, partial(self._break, failure))
                return [happenings.FromNode(node, wire.WorkerExited(member=member, signal=SIGKILL))]
            case happenings.ToNode(node, wire.Locate(member=member)) if node not in self._silent:
                return [happenings.FromNode(node, wire.Located(member=member, place=""))]
            case happenings.ToMembers((member,), wire.Admitted()):
                took_s = self._ready_ns / SECOND_NS
                ready = wire.WorkerReady(member=member, setup=self._setup, took_s=took_s)
                self._agenda.plan(now_ns + self._ready_ns, partial(self._progress, member, ready))
            case happenings.ToMembers(_, wire.Announced() as generation):
                self._announce(now_ns, generation)
            case happenings.Ending():
                self._is_over = True
                self._charge_unfinished(now_ns, beyond=Category.DEAD_UNDETECTED)
                self.truth.end(now_ns)
        return []

    def _heed_deadline(self, now_ns: int) -> None:
        """Plan to ask the membership at its deadline, unless the deadline only guards against silence."""
        state, due_ns = self.state, self.state.outbox.due_ns
        is_quiet = self._stretch.doing == "stepping" and state.is_settled
        if due_ns is None or is_quiet or due_ns == self._tick_ns:
            return
        self._tick_ns = max(due_ns, now_ns)
        self._agenda.plan(self._tick_ns, partial(self._tick, self._tick_ns))

    def _tick(self, due_ns: int, now_ns: int) -> None:
        if due_ns == self._tick_ns and not self._told_first(now_ns, partial(self._tick, due_ns)):
            self._tick_ns = None
            self._ask(now_ns)

    def _ask(self, now_ns: int) -> None:
        """Let the membership check its deadlines. First renew the leases that the skipped time left stale."""
        lease_due_ns = self.state.outbox.lease_due_ns
        if lease_due_ns is not None and lease_due_ns <= now_ns:
            self._beat(now_ns)
        self._hear(now_ns, happenings.Tick())

    def _told_first(self, now_ns: int, action: Action) -> bool:
        """Whether `action` must wait for the end of a step, as the membership would believe the run hung."""
        if self._stretch.doing != "stepping" or now_ns - self._stretch.since_ns < FRESH_NS:
            return False
        boundary_ns = self._boundary_after(now_ns)
        self._plan_commit(boundary_ns)
        self._agenda.plan(boundary_ns, action)
        return True

    def _say(self, now_ns: int, member: str, message: wire.FromWorker) -> None:
        if self.state.roster.living(member) is not None:
            self._hear(now_ns, happenings.FromMember(member, message))

    # ---- processes ---------------------------------------------------------------------------------------

    def _agent_joined(self, replica: str) -> happenings.FromNode:
        return happenings.FromNode(replica, wire.AgentJoined(node=replica, slots=1, address="", port=1))

    def _progress(self, member: str, message: wire.WorkerJoined | wire.WorkerReady, now_ns: int) -> None:
        """A worker reports its progress."""
        if not self._told_first(now_ns, partial(self._progress, member, message)):
            self._say(now_ns, member, message)

    def _replica_comes(self, replica: str, now_ns: int) -> None:
        """A replica has all its machines again, and an agent on them."""
        if replica in self.state.roster.nodes or not self.ground.is_whole(replica):
            return
        if not self._told_first(now_ns, partial(self._replica_comes, replica)):
            self._hear(now_ns, self._agent_joined(replica))

    def _member_of(self, replica: str) -> str | None:
        """The member that has the replica's seat."""
        node = self.state.roster.nodes.get(replica)
        return None if node is None or node.is_spare else node.seats[0]

    def _steps(self, replica: str) -> bool:
        return self._member_of(replica) in self._group

    # ---- generations -------------------------------------------------------------------------------------

    def _announce(self, now_ns: int, generation: wire.Announced) -> None:
        self._announced, self._is_pending = generation, generation.at_boundary
        if not generation.at_boundary:
            if self._stretch.doing in ("stepping", "saving", "changing"):
                self._stretch.doing = "aborting"
            self._agenda.disturb()
            self._agenda.plan(now_ns + self._regroup_ns, partial(self._regroup, generation))
        present = frozenset(self._group)
        newcomers = [member for member in generation.members if member not in present]
        if self._stretch.doing == "recovering":
            self._arriving.update(member for member in newcomers if member not in self._joining)
        elif self._stretch.doing != "starting":
            self._joining.update(newcomers)
        self._count_gpus(now_ns)
        if generation.at_boundary and self._stretch.doing == "stepping":
            self._plan_steps(now_ns)

    def _change_over(self, now_ns: int) -> None:
        """The boundary at which the old generation ends and the next begins to form."""
        assert self._announced is not None
        self._agenda.disturb()
        self._stretch.doing, self._is_pending = "changing", False
        self._agenda.plan(now_ns + self._regroup_ns, partial(self._regroup, self._announced))

    def _regroup(self, generation: wire.Announced, now_ns: int) -> None:
        """All members joined the new group, with the state of a survivor or of a checkpoint."""
        if generation is not self._announced:
            return
        members = generation.members
        version = self.truth.step
        if not any(member in self._group and self.state.roster.living(member) for member in members):
            version = self._target
            loaded = wire.Checkpointed(member=members[0], happened="loaded", step=version, place=PLACE)
            self._say(now_ns, members[0], loaded)
        roster, mute = self.state.roster, self._silent
        awake = [one for one in map(roster.living, members) if one is not None and one.node not in mute]
        speakers = [one.name for one in awake if one.name not in self._hung]
        if speakers:
            message = wire.Regrouped(
                member=speakers[-1],
                generation=generation.number,
                version=version,
                lanes=(),
                steps_total=self.job.steps_total or 0,
                parts_s={"group": self._regroup_ns / SECOND_NS},
            )
            self._hear(now_ns, happenings.FromMembers(tuple(speakers), message))

    def _record(self, now_ns: int, event: ev.KnownEvent) -> None:
        """Record an event of the membership; some events change what the run does from now on."""
        match event:
            case ev.FaultObserved(onset_ns=onset_ns):
                self._stretch.is_hurt = True
                if self._nature != Category.RECOVERING:
                    self._stretch.sound_alarm(now_ns, onset_ns)
            case ev.ActionTaken():
                self._stretch.act(now_ns)
            case ev.MemberLost():
                self._lost(now_ns, event)
            case ev.GenerationOpened():
                self._formed(now_ns)
            case ev.CheckpointLoaded(step=step):
                self.ground.rolled_back_steps += self.truth.step - step
                self.truth.roll_back(step)
        self.ground.tape.take(event, self.job.member_gpus)

    def _formed(self, now_ns: int) -> None:
        """The generation formed. The excess of its first step is recovery if something failed since the last
        commit. But a change at a boundary began with that commit, even if something failed meanwhile."""
        assert self._announced is not None
        began_ns, excess = now_ns, Category.RECOVERING if self._stretch.is_hurt else Category.STARTING
        if self._stretch.doing == "changing":
            began_ns, excess = self._stretch.since_ns, Category.STARTING
            self.ground.reshape(now_ns)
            self.truth.join_since(began_ns, now_ns, self.ground.joining_gpus)
        else:
            self._charge_unfinished(now_ns, beyond=Category.UNATTRIBUTED)
        self._group = self._announced.members
        self._joining.clear()
        self._arriving.clear()
        self._stretch.begin("fresh", began_ns)
        self._stretch.excess = excess
        self._count_gpus(now_ns)
        self._agenda.disturb()
        self._first_ns = now_ns - began_ns + self._pace.step_ns(now_ns, len(self._group))
        self._agenda.plan_here(began_ns + self._first_ns, partial(self._commit, 1))

    def _lost(self, now_ns: int, event: ev.MemberLost) -> None:
        """A member is lost. If it took part, the others lose their current step."""
        if event.subject in self._joining:
            self._joining.remove(event.subject)
            self._count_gpus(now_ns)
        if event.subject not in self._group and event.subject not in self._arriving:
            return
        self._stretch.sound_alarm(now_ns, event.onset_ns)
        self._charge_unfinished(now_ns, beyond=Category.DEAD_UNDETECTED)
        self._stretch.begin("recovering", now_ns)
        self._agenda.disturb()
        self._arriving.discard(event.subject)
        self._group = tuple(member for member in self._group if member != event.subject)
        self._count_gpus(now_ns)

    @property
    def _nature(self) -> Category | None:
        return self._stretch.nature(has_worker=self.state.launch.is_protected)

    def _charge_unfinished(self, now_ns: int, *, beyond: Category) -> None:
        self._stretch.charge(self.truth, now_ns, nature=self._nature, beyond=beyond)

    def _count_gpus(self, now_ns: int) -> None:
        if self._stretch.doing == "starting":
            return  # all members exist, but have not formed a group yet
        self.ground.active_gpus = (len(self._group) + len(self._arriving)) * self.job.member_gpus
        self.ground.joining_gpus = len(self._joining) * self.job.member_gpus
        self.ground.reshape(now_ns)

    # ---- steps -------------------------------------------------------------------------------------------

    def _boundary_after(self, now_ns: int) -> int:
        begun_ns = self._stretch.steps_since_ns
        return begun_ns + ((now_ns - begun_ns) // self._step_ns + 1) * self._step_ns

    def _plan_steps(self, now_ns: int) -> None:
        """Plan to report the last step before the next known event; earlier steps are only counted."""
        self._agenda.disturb()
        if self._is_pending or self._is_pause_due:
            self._plan_commit(self._boundary_after(now_ns))
            return
        since_ns, step_ns = self._stretch.steps_since_ns, self._step_ns
        next_ns = since_ns + step_ns
        moments = [self.horizon_ns - 1, max(self._save_ns, next_ns)]
        upcoming = self._failures[self._upcoming] if self._upcoming < len(self._failures) else None
        if upcoming is not None:
            moments.append(upcoming.at_ns)
        if (change_ns := self._pace.change_ns(self._stretch.since_ns)) is not None:
            moments.append(max(change_ns, next_ns))
        steps = (min(moments) - since_ns) // step_ns
        if self.job.steps_total is not None:
            steps = min(steps, self.job.steps_total - self.truth.step)
        if self.truth.step < self.truth.high:
            steps = min(steps, self.truth.high - self.truth.step)
        if steps > 1 and upcoming is not None and upcoming.kind == "hang":
            steps -= 1  # then one alone: the last commit shows how long a step takes
        if steps > 0:
            self._plan_commit(since_ns + steps * step_ns)

    def _plan_commit(self, at_ns: int) -> None:
        steps = (at_ns - self._stretch.steps_since_ns) // self._step_ns
        self._agenda.plan_here(at_ns, partial(self._commit, steps))

    def _commit(self, steps: int, now_ns: int) -> None:
        """All members report the steps done since the last commit."""
        self.truth.work(Category.CHECKPOINT_STALL, self._stretch.since_ns, self._stretch.steps_since_ns)
        if self._stretch.doing == "fresh":
            self.truth.steps(1, self._first_ns, now_ns, self._stretch.excess)
        else:
            self.truth.steps(steps, self._step_ns, now_ns)
        self._stretch.commit(steps, now_ns)
        took_s, self._step_ns = self._step_ns / SECOND_NS, self._pace.step_ns(now_ns, len(self._group))
        self._agenda.disturb()
        formed = self.state.generations.formed
        assert formed is not None
        last = self._group[-1]
        message = wire.Committed(
            member=last, generation=formed.number, step=self.truth.step, loss=None, took_s=took_s
        )
        self._hear(now_ns, happenings.FromMembers(tuple(self._group), message))
        if self.truth.step == self.job.steps_total:
            self._is_over = True
            self.ground.complete(now_ns)
        elif self._is_pending:
            self._change_over(now_ns)
        elif self._is_pause_due:
            self._pause(now_ns)
        elif now_ns >= self._save_ns:
            self._begin_save(now_ns)
        else:
            self._plan_steps(now_ns)

    def _pause(self, now_ns: int) -> None:
        """A planned stop: every process is replaced on the spot, and the state stays where it is."""
        self._is_pause_due, self._stretch.doing = False, "paused"
        self.ground.tape.record(ev.PhaseEntered, now_ns, phase="stop")
        self._agenda.plan_here(now_ns + self._import_ns + self._ready_ns, self._resume)

    def _resume(self, now_ns: int) -> None:
        """End the pause. Faults noticed meanwhile do not prevent the run from going on."""
        self._stretch.alarm = None
        self.truth.stand(Category.PLANNED_STOP, self._stretch.since_ns, now_ns)
        self.ground.tape.record(ev.PhaseEntered, now_ns, phase="step")
        self._stretch.begin("stepping", now_ns)
        self._plan_steps(now_ns)

    # ---- checkpoints -------------------------------------------------------------------------------------

    def _begin_save(self, now_ns: int) -> None:
        """Training stops while the state is copied, and goes on while it is written."""
        self._agenda.disturb()
        self._stretch.doing, self._save_ns = "saving", now_ns + self._interval_ns
        begun = wire.Checkpointed(member=self._group[0], happened="begun", step=self.truth.step, place=PLACE)
        self._say(now_ns, self._group[0], begun)
        self._agenda.plan_here(now_ns + self._stall_ns, self._saved)

    def _saved(self, now_ns: int) -> None:
        step = self.truth.step
        saved = wire.Checkpointed(
            member=self._group[0], happened="saved", step=step, place=PLACE, stall_ns=self._stall_ns
        )
        self._say(now_ns, self._group[0], saved)
        self.ground.checkpoints += 1
        self._target = step
        self._stretch.doing, self._stretch.stalled_ns = "stepping", self._stall_ns
        self._plan_steps(now_ns)

    # ---- failures ----------------------------------------------------------------------------------------

    def _strike(self, failure: Failure, now_ns: int) -> None:
        self._upcoming += 1
        if failure.kind == "planned" and failure.is_transient:
            self.ground.count(failure)
            self._is_pause_due = True
        else:
            self._strike_machines(failure, now_ns)
        if self._stretch.doing == "stepping":
            self._plan_steps(now_ns)

    def _strike_machines(self, failure: Failure, now_ns: int) -> None:
        at_work = self.ground.fleet.at_work(failure)
        present = [one for one in self.ground.replicas(at_work) if self._steps(one)]
        if present:
            self.ground.count(failure)
        is_calm = self._stretch.doing in ("stepping", "saving") and bool(present)
        is_silent = failure.row.part in SILENT_PARTS and not failure.is_transient
        if failure.kind == "gray":
            self.ground.slow_down(failure, at_work)
            if at_work:
                noticed_ns = now_ns + ns(self.policy.gray_s)
                self._agenda.plan(noticed_ns, partial(self._notice_slow, failure))
        elif failure.kind == "hang" and is_calm:
            self._hang(failure, present[0], now_ns)
        elif failure.kind == "crash" and is_silent and is_calm:
            self._fall_silent(failure, now_ns)
        elif self.policy.detect_s and is_calm:
            self._begin_silence()
            self._agenda.plan(now_ns + ns(self.policy.detect_s), partial(self._break, failure))
        else:
            self._break(failure, now_ns)

    def _break(self, failure: Failure, now_ns: int) -> None:
        """Processes die and, unless the failure is transient, their machines too. All are told at once."""
        machines = self.ground.fleet.struck(failure)
        replicas = self.ground.replicas(machines)
        if not failure.is_transient:
            self._retire(machines, failure.repair_ns, now_ns)
            for replica in replicas:
                if replica in self.state.roster.nodes:
                    self._hear(now_ns, happenings.Disconnected("agent", replica))
            self._bring_in(replicas, now_ns)
            return
        for replica in replicas:
            if (member := self._member_of(replica)) is not None:
                self._hear(
                    now_ns, happenings.FromNode(replica, wire.WorkerExited(member=member, signal=SIGKILL))
                )

    def _retire(self, machines: list[int], repair_ns: int, now_ns: int) -> None:
        for machine in machines:
            if machine not in self.ground.fleet.out:
                self.ground.drain(machine, repair_ns, now_ns)
                self._stretch.act(now_ns)
                self._agenda.plan(max(now_ns, self.ground.fleet.repaired_ns or 0), self._mend)

    def _bring_in(self, replicas: list[str], now_ns: int) -> None:
        """Replace removed machines by spares, or else by machines of replicas that stand still."""
        filled = self.ground.fill_places(now_ns)
        filled += self.ground.fleet.gather_vacancies(self.ground.study.nodes_per_member)
        for replica in dict.fromkeys([*replicas, *map(self.ground.replica_at, filled)]):
            if self.ground.is_whole(replica):
                self._agenda.plan(now_ns + ns(self.policy.swap_s), partial(self._replica_comes, replica))

    def _mend(self, now_ns: int) -> None:
        is_due = self.ground.is_mended(now_ns, self._agenda, self._mend)
        if is_due and (place := self.ground.restore(now_ns)) is not None:
            self._bring_in([self.ground.replica_at(place)], now_ns)

    def _hang(self, failure: Failure, replica: str, now_ns: int) -> None:
        """One member does not enter the collective, and all others wait in it."""
        culprit = self._member_of(replica)
        assert culprit is not None
        self._hung[culprit] = failure
        self._begin_silence()
        for member in self._group:
            stage: wire.Stage = "forward" if member == culprit else "reduce"
            self._say(now_ns, member, wire.MemberBeat(member=member, step=self.truth.step + 1, stage=stage))
        self._ask(now_ns)

    def _fall_silent(self, failure: Failure, now_ns: int) -> None:
        """Machines disappear without a message: this is their last sign of life."""
        self._begin_silence()
        self._beat(now_ns)
        self._silent.update(self.ground.replicas(self.ground.fleet.struck(failure)))
        self._lease_ends(failure, now_ns)

    def _begin_silence(self) -> None:
        self._agenda.disturb()
        self._stretch.doing = "silent"

    def _beat(self, now_ns: int) -> None:
        """Report every node and member that is not silent as present."""
        nodes = [node for node in self.state.roster.nodes if node not in self._silent]
        members = [
            member.name
            for member in self.state.roster.members.values()
            if member.seen_ns is not None and not member.is_lost and member.node not in self._silent
        ]
        self._hear(now_ns, happenings.Present(nodes=tuple(nodes), members=tuple(members)))

    def _lease_ends(self, failure: Failure, now_ns: int) -> None:
        """Give up the silent replicas once their leases are over. The others renewed theirs meanwhile."""
        machines = self.ground.fleet.struck(failure)
        replicas = self.ground.replicas(machines)
        self._beat(now_ns)
        self._hear(now_ns, happenings.Tick())
        if any(replica in self.state.roster.nodes for replica in replicas):
            assert self.state.outbox.lease_due_ns is not None
            self._agenda.plan(self.state.outbox.lease_due_ns, partial(self._lease_ends, failure))
            return
        self._silent.difference_update(replicas)
        self._retire(machines, failure.repair_ns, now_ns)
        self._bring_in(replicas, now_ns)

    def _notice_slow(self, failure: Failure, now_ns: int) -> None:
        """A slow machine is noticed; a spare replaces it if there is one."""
        if self._told_first(now_ns, partial(self._notice_slow, failure)):
            return
        self.ground.observe(now_ns, failure, failure.at_ns)
        machines = len(self.ground.fleet.at_work(failure))
        if not failure.is_transient and 0 < machines <= len(self.ground.fleet.spares):
            self._break(failure, now_ns)
