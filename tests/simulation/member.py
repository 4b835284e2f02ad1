"""A member as the membership and the other members see it: train/seat.py, steps.py and control.py without
tensors.

It regroups (standings go through the coordinator, the highest version wins, members behind copy the state),
computes lanes and keeps them, sums with the others, commits by itself, and tells the coordinator later. The
state is a number that follows from everything ever committed. The production code deals the lanes.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.run import wire
from holdfast.run.balance import even_shares
from holdfast.run.mesh import mirror_offset
from holdfast.train import tree
from holdfast.train.histories import StateHistory, can_follow, is_astray, leading
from holdfast.train.mirror import Keeps
from holdfast.train.shortage import AgreedSkips
from tests.simulation.history import Began, Kept
from tests.simulation.setting import Point

if TYPE_CHECKING:
    from tests.simulation.world import Line, World

COMMIT_NS = 200_000
ADMISSION_NS = 200_000_000
"""As ADMISSION_S in control.py, which needs torch."""
EXCHANGING = frozenset({"group", "reduce", "confirm", "reflect", "agree"})
FORMING = frozenset({"standing", "group", "loading", "state"})
STAGES: dict[str, wire.Stage] = {
    "standing": "regroup",
    "group": "regroup",
    "loading": "regroup",
    "state": "state",
    "lanes": "forward",
    "leaving": "forward",
    "reduce": "reduce",
    "confirm": "reduce",
    "reflect": "reduce",
    "agree": "reduce",
    "commit": "optimizer",
    "waiting": "waiting",
    "ready": "waiting",
    "finished": "finished",
}


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """What a member brings into a new generation, like `Standing` of train/seat.py. content: of its version
    in that history. skipped: lanes of its last step.
    """

    version: int
    fresh: bool
    held: frozenset[int]
    through: bool
    settled: bool
    keeps: Keeps | None
    todo: tuple[int, ...]
    bound: AgreedSkips | None
    content: int
    skipped: tuple[int, ...]
    history: StateHistory


class Reflection(msgspec.Struct, kw_only=True):
    """A rank's mirror of another one, like train/mirror.py: by step, whether it was committed."""

    ward: int = -1
    version: int = -1
    needed: frozenset[int] = frozenset()
    steps: dict[int, bool] = {}

    @property
    def keeps(self) -> Keeps | None:
        if self.version < 0:
            return None
        last = self.version
        while self.steps.get(last + 1):
            last += 1
        return Keeps(rail=self.ward, version=self.version, last=last)

    def begin(self, ward: int, needed: frozenset[int]) -> None:
        if ward != self.ward:
            self.version, self.steps = -1, {}
        self.ward, self.needed = ward, needed

    def reflect(self, step: int, every: int) -> None:
        if (step - 1) % every == 0 or self.ward in self.needed:
            self.version = step - 1
            self.steps = {number: is_kept for number, is_kept in self.steps.items() if number >= step}
        self.needed = frozenset()
        self.steps[step] = False

    def note(self, step: int) -> None:
        self.steps = {
            number: is_kept or number == step for number, is_kept in self.steps.items() if number <= step
        }


class Script:
    """One worker process. epoch: counts its moments, so that actions of an earlier one are dropped."""

    def __init__(self, world: "World", name: str, node: str, line: "Line") -> None:
        self.world = world
        self.name = name
        self.node = node
        self.line = line
        self.doing = "starting"
        self.epoch = 0
        self.is_dead = self.is_paused = self.hangs = False
        self.is_released = False
        self.slowness = 1
        self.held_back: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.rail = 0
        self.number = 0
        self.rank = 0
        self.members: tuple[str, ...] = ()
        self.replicas_most = 1
        self.awaits: tuple[str, ...] = ()
        self.newest: wire.Announced | None = None
        self.abandon_below = 0
        self.told: dict[tuple[int, str], dict[int, Stand]] = {}
        self.version = 0
        self.content = 0
        self.skipped: tuple[int, ...] = ()
        self.history = StateHistory()
        self.fresh = True
        self.through = self.is_apart = False
        self.warm_ns = 0
        self.settled = False
        self.changing = self.is_torn = False
        self.is_patched = False
        self.held: frozenset[int] = frozenset()
        self.todo: tuple[int, ...] = ()
        self.dealt: tuple[int, ...] = ()
        self.bound: AgreedSkips | None = None
        self.without: frozenset[int] = frozenset()
        self.mirror: Reflection | None = None
        self.begun_ns = 0
        self.beat: tuple[int, wire.Stage] = (0, "starting")

    # ---- control flow --------------------------------------------------------------------------------------

    @property
    def ranks(self) -> int:
        return self.world.ranks

    @property
    def is_lost(self) -> bool:
        """Whether it must leave its generation at once."""
        return self.abandon_below > self.number

    @property
    def replica(self) -> tuple[str, ...]:
        first = self.rank // self.ranks * self.ranks
        return self.members[first : first + self.ranks]

    @property
    def twins(self) -> tuple[str, ...]:
        """All members that have the same part of the model."""
        return self.members[self.rank % self.ranks :: self.ranks]

    def enter(self, doing: str) -> None:
        self.doing = doing
        self.epoch += 1

    def go_on(self, epoch: int, then: Callable[..., None], args: tuple[Any, ...] = ()) -> None:
        """Continue after a wait, if it still waits for this."""
        if epoch != self.epoch or self.is_dead or self.hangs:
            return
        if self.is_paused:
            self.held_back.append((self.go_on, (epoch, then, args)))
            return
        then(*args)

    def later(self, delay_ns: int, then: Callable[..., None]) -> None:
        self.world.at(delay_ns * self.slowness, self.go_on, self.epoch, then)

    def say(self, message: wire.FromWorker) -> None:
        self.world.from_worker(self, message)

    def at(self, point: Point) -> bool:
        """Let a fault strike here; whether the script continues."""
        self.world.reach(self, point)
        return not self.is_dead

    # ---- received messages ---------------------------------------------------------------------------------

    def hear(self, message: wire.ToWorker) -> None:
        if self.is_dead:
            return
        if self.is_paused:
            self.held_back.append((self.hear, (message,)))
            return
        match message:
            case wire.Admitted():
                self.rail = message.rail
                self._build()
            case wire.Announced():
                self._take(message)
            case wire.Released():
                self.is_released = True
                self.world.exit(self, code=0)
            case wire.Dismissed():
                self.world.exit(self, code=2, complaint=f"holdfast: {message.sentence}")

    def hear_told(self, generation: int, key: str, rank: int, stand: Stand) -> None:
        """Take a notice that another member published."""
        if self.is_dead:
            return
        if self.is_paused:
            self.held_back.append((self.hear_told, (generation, key, rank, stand)))
            return
        self.told.setdefault((generation, key), {})[rank] = stand
        self._look()

    def park(self) -> None:
        """Wait in `join()`. A process that is not admitted soon is a warm one, and warms up."""
        self.enter("parked")
        warm_up_ns = self.world.setting.warm_up_ns
        self.say(wire.WorkerJoined(member=self.name, pid=1, warms_up=bool(warm_up_ns)))
        if warm_up_ns:
            self.later(ADMISSION_NS, lambda: self._warm_up(warm_up_ns))

    def _warm_up(self, warm_up_ns: int) -> None:
        self.warm_ns = self.world.now_ns + warm_up_ns * self.slowness
        self.later(warm_up_ns, self._warmed_up)

    def _warmed_up(self) -> None:
        self.warm_ns = 0
        self.say(wire.WarmedUp(member=self.name))
        if self.doing == "building":
            self.later(self.world.setting.build_ns, self._get_ready)

    def _build(self) -> None:
        """Leave `join()` and build the model, but finish warming up first."""
        self.enter("building")
        if not self.at("join"):
            return
        if self.warm_ns:
            self.world.at(max(0, self.warm_ns - self.world.now_ns), self.go_on, self.epoch, self._warmed_up)
        else:
            self.later(self.world.setting.build_ns, self._get_ready)

    def _get_ready(self) -> None:
        self.enter("ready")
        self.say(
            wire.WorkerReady(
                member=self.name, setup=self.world.setup, took_s=self.world.setting.build_ns / 1e9
            )
        )
        self.at("ready")

    def _take(self, generation: wire.Announced) -> None:
        if self.newest is not None and generation.number <= self.newest.number:
            return
        self.newest = generation
        if not generation.at_boundary:
            self.abandon_below = generation.number
        if self.hangs:
            if self.is_lost:
                self.world.groups.leave(self)  # the thread that listens does that
        elif self.doing in ("waiting", "ready", "finished"):
            self.regroup()
        elif self.doing in FORMING:
            if self.name in generation.members:
                self.regroup()
            elif self.is_lost and self.doing != "standing":
                self._wait()
        elif self.is_lost:
            self._abandon()

    def _abandon(self) -> None:
        """Abort the group at once; a lane or a commit in progress is finished first."""
        self.world.groups.leave(self)
        if self.doing == "lanes":
            done = self._lanes_done() + 1
            self.enter("leaving")
            self.later(self.world.setting.lane_ns, lambda: self._leave_lanes(done))
        elif self.doing in EXCHANGING:
            self._wait()

    def lose_peer(self, number: int, name: str) -> None:
        """Handle the end of the connection to another member."""
        if self.is_dead or self.number != number or self.hangs:
            return
        if self.is_paused:
            self.held_back.append((self.lose_peer, (number, name)))
        elif self.doing in EXCHANGING or self.doing == "state":
            if name in self.awaits:
                self._break()
        elif self.doing == "lanes" and self.ranks > 1 and name in self.replica:
            self._hold(self._lanes_done())
            self._break()

    def _break(self) -> None:
        """Handle a failed collective."""
        self.is_torn = True
        self.world.groups.leave(self)
        if not self.is_lost:
            self.say(wire.Broken(member=self.name, generation=self.number, reason="reset by peer"))
        self._wait()

    # ---- regrouping ----------------------------------------------------------------------------------------

    def regroup(self) -> None:
        """Continue in the newest generation, if it admits this member."""
        generation = self._next()
        if generation is None:
            self.enter("waiting")
            return
        if not generation.at_boundary:
            self.world.groups.leave(self)
        self.number, self.members = generation.number, generation.members
        self.replicas_most, self.is_apart = generation.replicas_most, generation.is_apart
        self.rank = self.members.index(self.name)
        self.changing = self.is_torn = False
        self.enter("standing")
        self.told = {key: told for key, told in self.told.items() if key[0] >= self.number}
        if not self.at("regroup"):
            return
        self._publish("standing")
        self._look()

    def _wait(self) -> None:
        self.enter("waiting")
        if self._next() is not None:
            self.regroup()

    def _next(self) -> wire.Announced | None:
        """The generation that it may enter."""
        newest = self.newest
        if newest is None or newest.number <= self.number or self.name not in newest.members:
            return None
        return newest if newest.admits(self.number, self.members, is_torn=self.is_torn) else None

    def standing(self) -> Stand:
        return Stand(
            version=self.version,
            fresh=self.fresh,
            held=self.held,
            through=self.through,
            settled=self.settled,
            keeps=None if self.mirror is None else self.mirror.keeps,
            todo=self.dealt,
            bound=self.bound,
            content=self.content,
            skipped=self.skipped,
            history=self.history,
        )

    def parts_of(self, step: int) -> frozenset[int]:
        """The parts of the state after this step that it has, its mirror's included."""
        stand = self.standing()
        own = {self.rail} if stand.version >= step and not stand.fresh else set()
        return frozenset(own.union(rail for rail in range(self.ranks) if _covers(stand, rail, step)))

    def _publish(self, key: str) -> None:
        stand = self.standing()
        self.told.setdefault((self.number, key), {})[self.rank] = stand
        self.world.publish(self, key, stand)

    def _look(self) -> None:
        """Continue if all have published what it waits for."""
        if self.hangs or self.doing not in ("standing", "loading"):
            return
        told = self.told.get((self.number, self.doing), {})
        if len(told) < len(self.members):
            return
        stands = [told[rank] for rank in range(len(self.members))]
        if self.doing == "loading":
            self._bring_up(stands)
            return
        self.world.groups.leave(self)  # all have joined: no member is in the last exchange any more
        self.enter("group")
        if not self.at("group"):
            return
        if len(self.members) == 1:
            self._grouped(stands)
        else:
            self.world.groups.arrive(self, "group", self.members, None, lambda _: self._grouped(stands))

    def _grouped(self, stands: list[Stand]) -> None:
        if all(stand.fresh for stand in stands):
            self._load()
            return
        ahead = leading(stands)
        astray = [is_astray(stand, ahead) for stand in stands]
        if astray[self.rank]:
            self.say(wire.LeftBehind(member=self.name, generation=self.number))
        if any(astray):
            self._wait()
            return
        follows = can_follow(self.standing(), ahead)
        if self.mirror is not None and (follows or self.version == ahead.version):
            self.mirror.note(ahead.version)
        if follows:
            self._adopt(_caught_up(self.standing(), ahead))
        self.settled = False
        self._bring_up([_caught_up(stand, ahead) for stand in stands])

    def checkpoint(self) -> tuple[int, int, str]:
        return self.world.checkpoint_for(self.number)

    def _load(self) -> None:
        """Start from a durable checkpoint, if there is one, because no member has a step yet."""
        self.settled, self.held = False, frozenset()
        self.version, self.content, before = self.checkpoint()
        self.history = StateHistory(str(self.number), self.version, before, self.number)
        self.fresh = not self.version
        if self.version:
            self.say(wire.Checkpointed(member=self.name, happened="loaded", step=self.version, place="p"))
        self.enter("loading")
        self._publish("loading")
        self._look()

    def _adopt(self, stand: Stand) -> None:
        self.version, self.content, self.history = stand.version, stand.content, stand.history
        self.skipped = stand.skipped
        self.fresh, self.bound, self.held = False, None, frozenset()

    def _bring_up(self, stands: list[Stand]) -> None:
        """Let members that are behind copy the state from one that is not, or from a mirror."""
        top = max(stand.version for stand in stands)
        ahead = next(stand for stand in stands if stand.version == top)
        sources = [name for name, stand in zip(self.members, stands, strict=True) if stand.version == top]
        if self.ranks > 1 and top:
            for rail in range(self.ranks):
                if any(stand.version == top for stand in stands[rail :: self.ranks]):
                    continue
                keeper = next((rank for rank, one in enumerate(stands) if _covers(one, rail, top)), None)
                if keeper is None:
                    self.say(wire.PartLost(member=self.name, generation=self.number, rail=rail))
                    self._wait()
                    return
                if rail == self.rank % self.ranks:
                    sources = [self.members[keeper]]
        if self.version >= top:
            self._sit(stands, ahead)
            return
        self.enter("state")
        self.awaits = tuple(name for name in sources if name in self.twins) or tuple(sources)
        if not self.at("state"):
            return
        left = self.world.groups.left.get(self.number, {})
        gone = [name for name in self.awaits if name in left]
        if not gone:
            self.later(self.world.delay() * 3, lambda: self._taken(stands, ahead))
        elif any(left[name] for name in gone):
            self.world.at(
                self.world.delay(), self.lose_peer, self.number, next(name for name in gone if left[name])
            )

    def _taken(self, stands: list[Stand], ahead: Stand) -> None:
        left = self.world.groups.left.get(self.number, {})
        if any(name in left for name in self.awaits):
            return  # it was interrupted: the rest never comes
        self._adopt(ahead)
        self._sit(stands, ahead)

    def _sit(self, stands: Sequence[Stand], ahead: Stand) -> None:
        """Deal the lanes and continue, now that it has the state."""
        self.history, self.through = ahead.history, any(stand.through for stand in stands)
        if self.is_apart and ahead.history.opened != self.number:
            self.history = StateHistory(
                str(self.number), ahead.version, ahead.history.of(ahead.version), self.number
            )
        self._begin_mirror(stands, ahead.version)
        self._deal(stands)
        self.world.note(
            Began(self.world.now_ns, self.name, self.number, self.version, self.content, self.history.opened)
        )
        self.say(
            wire.Regrouped(
                member=self.name,
                generation=self.number,
                version=self.version,
                lanes=tuple(sorted(self.held.union(self.todo))),
                steps_total=self.world.setting.steps,
                parts_s={"group": 0.01},
            )
        )
        self.enter("seated")
        if self.at("seated"):
            self._step()

    def _begin_mirror(self, stands: Sequence[Stand], version: int) -> None:
        every = self.world.setting.mirror_every
        if self.ranks == 1 or len(self.members) != self.ranks or not every:
            self.mirror = None
            return
        offset = mirror_offset([name.rpartition(".")[0] for name in self.members])
        needed = frozenset(
            rail
            for rail in range(self.ranks)
            if not _covers(stands[(rail + offset) % self.ranks], rail, version)
        )
        self.mirror = self.mirror or Reflection()
        self.mirror.begin((self.rank - offset) % self.ranks, needed)

    # ---- lanes ---------------------------------------------------------------------------------------------

    def claims(self, stand: Stand) -> frozenset[int]:
        """The lanes of the next step that a member has computed."""
        return stand.held if stand.version == self.version else frozenset()

    def _deal(self, stands: Sequence[Stand]) -> None:
        """Deal the lanes, like `Seat._deal`: computed lanes stay with their member; the others are dealt."""
        ranks, lanes = self.ranks, self.world.lanes
        claims = [self.claims(stand) for stand in stands]
        held = [tree.in_common(claims[first : first + ranks]) for first in range(0, len(claims), ranks)]
        mine = self.rank // ranks
        if ranks > 1:
            self.held &= held[mine]
        if sum(map(len, held)) != len(frozenset[int]().union(*held)):
            held, self.held = [frozenset()] * len(held), frozenset()  # two claim the same lane
        self.without = self._skipped_by(stands, frozenset[int]().union(*held))
        if not self.without.isdisjoint(frozenset[int]().union(*held)):
            held, self.held = [frozenset()] * len(held), frozenset()  # some are of a dropped agreement
        dealt = tree.deal_missing(lanes, held, self.without)
        self.todo = self.dealt = dealt[mine]
        self.is_patched = any(held) or self.bound is not None

    def _skipped_by(self, stands: Sequence[Stand], held: frozenset[int]) -> frozenset[int]:
        here = [stand for stand in stands if stand.version == self.version]
        self.bound = self.skips(here)
        if self.bound is not None:
            return frozenset(self.bound.lanes)
        return self._shortage(held, frozenset(lane for stand in here for lane in stand.todo))

    def skips(self, stands: Sequence[Stand]) -> AgreedSkips | None:
        """The lanes without which a member may have committed the next step."""
        return max((stand.bound for stand in stands if stand.bound is not None), default=None)

    def _shortage(
        self, held: frozenset[int] = frozenset(), dealt: frozenset[int] = frozenset()
    ) -> frozenset[int]:
        replicas = len(self.members) // self.ranks
        return self.world.shortage.of(self.version + 1, replicas, self.replicas_most, held, dealt)

    def _deal_anew(self) -> None:
        replicas = len(self.members) // self.ranks
        self.without = self._shortage()
        shares = (
            tree.deal_missing(self.world.lanes, [frozenset()] * replicas, self.without)
            if self.without
            else tree.deal_shares(self.world.lanes, even_shares(self.world.lanes, replicas))
        )
        self.todo = self.dealt = shares[self.rank // self.ranks]
        self.is_patched = False
        self.say(wire.Dealt(member=self.name, generation=self.number, lanes=self.todo))

    # ---- steps ---------------------------------------------------------------------------------------------

    def _step(self) -> None:
        if self.through or self.version >= self.world.setting.steps:
            self._finish()
        elif self.changing or self.is_lost:
            self.regroup()
        else:
            self.enter("lanes")
            self.begun_ns = self.world.now_ns
            if not self.at("lanes"):
                return
            self.later(len(self.todo) * self.world.setting.lane_ns, self._reduce)

    def _lanes_done(self) -> int:
        took_ns = self.world.setting.lane_ns * self.slowness
        return min(len(self.todo), (self.world.now_ns - self.begun_ns) // took_ns)

    def _hold(self, count: int) -> None:
        self.held |= frozenset(self.todo[:count])
        self.todo = self.todo[count:]

    def _leave_lanes(self, done: int) -> None:
        self._hold(done)
        self.regroup()

    def _reduce(self) -> None:
        self._hold(len(self.todo))
        self.enter("reduce")
        if not self.at("reduce"):
            return
        newest = self.newest
        pending = newest.number if newest is not None and newest.number > self.number else 0
        told = (self.held, self.version, self.content, pending)
        self._exchange("reduce", self.twins, told, self._summed)

    def _exchange(
        self, what: str, peers: tuple[str, ...], told: Any, then: Callable[[list[Any]], None]
    ) -> None:
        self.enter(what)
        if len(peers) > 1:
            self.world.groups.arrive(self, what, peers, told, then)
            return
        if what == "reduce":
            self.world.summed(self, peers, [told])
        then([told])

    def _summed(self, told: list[Any]) -> None:
        """All members have the sum or will have it, and all do the same from here on."""
        if not self.at("sum"):
            return
        pendings = [one[3] for one in told]
        summed = (min(pendings), max(pendings))
        if self.world.setting.is_smaller:
            self.bound = AgreedSkips(self.number, tuple(sorted(self.without)))
        if self.ranks > 1:
            self.settled = True
            self._exchange("confirm", self.twins, None, lambda _: self._reflect(summed))
        elif self.world.setting.is_smaller:
            self._exchange("confirm", self.twins, None, lambda _: self._agreed([summed]))
        else:
            self._agreed([summed])

    def _reflect(self, summed: tuple[int, int]) -> None:
        if self.mirror is None:
            self._exchange("agree", self.replica, summed, self._agreed)
        else:
            self._exchange("reflect", self.replica, None, lambda _: self._reflected(summed))

    def _reflected(self, summed: tuple[int, int]) -> None:
        if self.mirror is not None:
            self.mirror.reflect(self.version + 1, self.world.setting.mirror_every)
        self._exchange("agree", self.replica, summed, self._agreed)

    def _agreed(self, told: list[tuple[int, int]]) -> None:
        lowest, highest = min(one[0] for one in told), max(one[1] for one in told)
        self.changing = self.number < lowest == highest
        self.enter("commit")
        self.later(COMMIT_NS, self._commit)

    def _commit(self) -> None:
        skipped = tuple(sorted(self.without))
        self.version += 1
        self.content = hash((self.content, self.version, skipped))
        self.skipped = skipped
        self.settled, self.fresh, self.bound, self.held = False, False, None, frozenset()
        if self.mirror is not None:
            self.mirror.note(self.version)
        self.world.kept(
            self,
            Kept(
                self.world.now_ns,
                self.name,
                self.number,
                self.version,
                self.content,
                self.history.opened,
                skipped,
            ),
        )
        self.enter("committed")
        if not self.at("commit"):
            return
        committed = wire.Committed(
            member=self.name,
            generation=self.number,
            step=self.version,
            loss=None,
            skipped=self.world.slices_of(skipped),
        )
        self.say(committed)
        self.todo = self.dealt
        if self.is_patched:
            self._deal_anew()
        self._step()

    def _finish(self) -> None:
        self.through = True
        self.enter("finished")
        if not self.at("finished"):
            return
        self.say(
            wire.Finished(
                member=self.name,
                step=self.version,
                digest=str(self.content),
                steps_total=self.world.setting.steps,
            )
        )
        if self._next() is not None:
            self.regroup()


def _caught_up(stand: Stand, ahead: Stand) -> Stand:
    """The stand of a rank that had its sum of this step, after doing the step."""
    if not can_follow(stand, ahead):
        return stand
    keeps = stand.keeps
    if keeps is not None and keeps.last == ahead.version - 1:
        keeps = msgspec.structs.replace(keeps, last=ahead.version)
    skipped = () if stand.bound is None else stand.bound.lanes
    return msgspec.structs.replace(
        stand,
        version=ahead.version,
        content=hash((stand.content, ahead.version, skipped)),
        held=frozenset(),
        keeps=keeps,
        bound=None,
        skipped=skipped,
        history=ahead.history,
    )


def _covers(stand: Stand, rail: int, version: int) -> bool:
    return stand.keeps is not None and stand.keeps.covers(rail, version)
