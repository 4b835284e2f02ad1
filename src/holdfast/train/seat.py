"""A member's seat in the current generation: its rank, its group, its lanes, and how it moves to the next.

To regroup, a member leaves the old group, tells the others where it stands, and forms the new group; then all
are brought to the highest version, and the lanes that no member holds are dealt. Another generation may
interrupt any of these steps.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import torch

from holdfast.record.errors import HoldfastError, InputError, StoreError
from holdfast.run import wire
from holdfast.run.balance import BalanceFinding, Everyone, LaneBalance, Lap, even_shares
from holdfast.run.mesh import mirror_offset
from holdfast.train import mirror, transfer, tree
from holdfast.train.checkpoint import Loaded, Mark
from holdfast.train.control import Control
from holdfast.train.gradients import Gradients
from holdfast.train.group import Group, GroupBroken, Rendezvous, Sending, Superseded, Work, form
from holdfast.train.histories import StateHistory, can_follow, is_astray, leading
from holdfast.train.manifest_file import Share
from holdfast.train.minutes import Handed, Known, Met, Minutes, ScriptPlace, ScriptStretch, parcels
from holdfast.train.mirror import Keeps, Mirror
from holdfast.train.parts import described
from holdfast.train.protected import Protected
from holdfast.train.reduction import Reduction
from holdfast.train.sharding import Sharding
from holdfast.train.shortage import AgreedSkips, Shortage
from holdfast.train.snapshots import SNAPSHOT, Restorable
from holdfast.train.subgroup import Subgroup
from holdfast.train.transfer import Numbers

MakeGroup = Callable[[Rendezvous, int, int, Callable[[], bool]], Group]
"""Makes a group from its rendezvous, rank, size, and a function that says whether it is no longer wanted."""

Number = torch.Tensor | float | None
"""A number that may still be on a device. It is read only if it is needed, because the host then waits."""

NOTHING: Mark = (0, 0)
"""The mark of a member that has found no checkpoint."""
HISTORY_BYTES = 8
SHARE_BYTES_MIN = 16 << 20
"""If members share the writing of a state, each writes at least this much."""
LOOKS_MAX = 16
"""How often members look for an older checkpoint because some lack a part of the last: more than are kept."""


class RunOver(Exception):
    """The run ended without further work for this member."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a member brings into a new generation.

    fresh: it has only what it was built with. held: the lanes of step version + 1 that it has computed.
    through: its script has finished all steps. chip: the GPU that it computes on; empty if none. place: where
    its script is. known: how many results of the script's collectives it has. settled: it has its part of the
    sum of step version + 1. numbers: of step `version`. keeps: what it has of another rank. todo: the lanes
    of step version + 1 that it was dealt. bound: the lanes that are skipped in that step, if a member may
    have committed it like that. history: the history of the version. skipped: the lanes skipped in step
    `version`.
    """

    version: int
    fresh: bool
    held: tuple[int, ...]
    through: bool
    chip: str = ""
    place: ScriptPlace = ScriptPlace()
    known: Known = Known()
    settled: bool = False
    numbers: Numbers = Numbers()
    keeps: Keeps | None = None
    todo: tuple[int, ...] = ()
    bound: AgreedSkips | None = None
    history: StateHistory = StateHistory()
    skipped: tuple[int, ...] = ()


class Found(msgspec.Struct, frozen=True, array_like=True):
    """The newest checkpoint that a member can resume from. history, whole: as the checkpoint says."""

    mark: Mark
    history: str
    whole: int


class Seat:
    """This process's seat among the members."""

    def __init__(
        self,
        control: Control,
        state: Protected,
        gradients: Gradients,
        identity: dict[str, int],
        make_group: MakeGroup,
        checkpoints: Restorable | None,
        sharding: Sharding | None = None,
        mirror_every: int = mirror.EVERY,
        shortage: Shortage | None = None,
        make_line: MakeGroup | None = None,
    ) -> None:
        """identity: `lanes`, and everything else that the bits depend on. mirror_every: see `protect`.
        make_line: makes groups for tensors in main memory, if `make_group` does not.
        """
        self.sharding = sharding
        self.settled = False
        self.whole = 0
        self._restore_ns = 0
        self._history = StateHistory()
        self.on_apply: Callable[[Numbers], None] | None = None
        self.replica: Group | None = None
        self._mirror: Mirror | None = None
        self._mirror_every = mirror_every
        self._ranks = 1 if sharding is None else sharding.shape.ranks
        self._rail: Group | None = None
        self.version = 0
        self._loss: float | None = None
        self._lr: Number = None
        self._grad_norm: Number = None
        self._skipped: tuple[int, ...] = ()
        self._shortage = shortage or Shortage("same bits", lanes=gradients.layout.lanes)
        self._without: frozenset[int] = frozenset()
        self._bound: AgreedSkips | None = None
        self._replicas_most = 1
        self.rank = 0
        self.size = 1
        self.nodes = 1
        self.failures = 0
        self.todo: tuple[int, ...] = ()
        self.reduction: Reduction | None = None
        self.number = 0
        self.steps_total = 0
        self._elder = 0
        self.through = False
        self.minutes = Minutes()
        self.members: tuple[str, ...] = (control.member,)
        self.places: list[tuple[ScriptPlace, int | None]] = [(ScriptPlace(), None)]
        self.version_met = 0
        self._fresh = True
        self._is_torn = False  # a collective of the current generation has failed
        self._patched = False
        self._balance: LaneBalance | None = None
        self._everyone = Everyone()
        self._found: tuple[BalanceFinding, ...] = ()
        self._shares: tuple[int, ...] = ()
        self.tellers: tuple[int, ...] = ()
        self.shares: tuple[frozenset[int], ...] = ()
        self.audit_rate: float | None = None
        self.shares_due: tuple[int, ...] = ()
        self._control = control
        self._state = state
        self._gradients = gradients
        self._identity = identity
        self._lanes = gradients.layout.lanes
        self._make_group = make_group
        self._make_line = make_line
        self._line: Group | None = None
        self._checkpoints = checkpoints
        self._group: Group | None = None
        self._serving: list[Work] = []
        self._receivers: tuple[int, ...] = ()

    @property
    def lost(self) -> bool:
        """Whether the current generation must be left at once."""
        return self._control.superseded(self.number)

    @property
    def name(self) -> str:
        """The name of this member."""
        return self._control.member

    @property
    def loss(self) -> float | None:
        """The loss of the last step."""
        return self._loss

    @property
    def is_patched(self) -> bool:
        """Whether lanes of the step were computed before the current deal, or in another generation."""
        return self._patched

    @property
    def numbers(self) -> Numbers:
        """The numbers of the last step."""
        lr, norm = (None if one is None else float(one) for one in (self._lr, self._grad_norm))
        return Numbers(loss=self._loss, lr=lr, grad_norm=norm, skipped=self._skipped)

    def plan(self, steps_total: int) -> None:
        """The script wants this many steps."""
        self.steps_total = steps_total
        if self.number:  # else the others learn it once this member is in a generation
            self._control.say(wire.Planned(member=self._control.member, steps_total=steps_total))

    @property
    def is_writer(self) -> bool:
        """Whether this member writes checkpoints: rank 0, or the first replica."""
        return self.rank < self._ranks

    def share_of(self, size_bytes: int) -> Share | None:
        """This member's share in writing a state of this size that all members have; None if it writes
        nothing.
        """
        count = min(self.size, max(1, size_bytes // SHARE_BYTES_MIN))
        return Share(self.rank, count, self._history.of(self.version)) if self.rank < count else None

    def snapshot_share(self, size_bytes: int) -> Share | None:
        """This member's share of a snapshot: members of one node keep it together; of a sharded state, each
        keeps its own part. None if it keeps nothing.
        """
        history = self._history.of(self.version)
        if self._ranks > 1:
            return Share(0, 1, history)
        node = _node_of(self.name)
        mates = [name for name in self.members if _node_of(name) == node]
        count = min(len(mates), max(1, size_bytes // SHARE_BYTES_MIN))
        number = mates.index(self.name)
        return Share(number, count, history) if number < count else None

    def writes(self, step: int) -> bool:
        """Whether this member writes what all of them log of a step: rank 0, unless it joined after that
        step.

        In that case, the first member that has seen the step writes.
        """
        return self.rank == (0 if step > self.version_met else self._elder)

    def regroup(self) -> None:
        """Continue in the newest generation that admits this member. Raises `RunOver` if the run is over."""
        number = self.number
        while True:
            self._control.at(self.version + 1, "waiting")
            generation = self._control.newest(number)
            if generation is None:
                raise RunOver
            number = generation.number
            if not generation.admits(self.number, self.members, is_torn=self._is_torn):
                continue
            self.number, self._is_torn = number, False
            try:
                self._form(generation)
                return
            except Superseded:
                continue
            except GroupBroken as broken:
                self.say_broken(str(broken), "regroup with the others")

    def say_broken(self, reason: str, operation: str) -> None:
        """Report that the group is broken. operation: what this member could not do."""
        self._is_torn = True
        _abort(self._group, self._line)  # takes a while, in which the others get ready
        if not self.lost:
            self._control.say(
                wire.Broken(
                    member=self._control.member, generation=self.number, reason=reason, operation=operation
                )
            )

    def bind(self) -> None:
        """This member has the whole sum, and so may others, which may then commit. From here on the step
        skips exactly these lanes, whichever member finishes it.
        """
        if self._shortage.is_smaller:
            self._bound = AgreedSkips(self.number, tuple(sorted(self._without)))

    def committed(
        self, version: int, loss: float, lr: Number, grad_norm: Number, skipped: tuple[int, ...] = ()
    ) -> None:
        self.version = version
        self.settled = False
        self._bound = None
        self._loss, self._lr, self._grad_norm, self._skipped = loss, lr, grad_norm, skipped
        self._fresh = False
        self.minutes.committed(version)
        if self._mirror is not None:
            self._mirror.note(version, self.numbers)
        self._serving.clear()
        self._gradients.forget()
        for finding in self._found if self.rank == 0 else ():
            told = wire.Balanced(member=self._control.member, generation=self.number, finding=finding)
            self._control.say(told)
        self._found = ()
        changes = self._shortage.recorded(version) != self._shortage.recorded(version + 1)
        if self._patched or changes or self.shares_due != self._shares:
            self._deal_anew()

    def await_receivers(self) -> None:
        """Wait until all members have the state. Without them no exchange of gradients can end, and one that
        waits on a GPU slows the transfer if members share that GPU.
        """
        receivers, self._receivers = self._receivers, ()
        # If it is superseded, the exchange breaks, or all have the state: a newer generation waits for a
        # boundary.
        with suppress(Superseded):
            for rank in receivers:
                self._control.lookup(self.number, f"taken/{rank}")

    def sending(self) -> tuple[Sending, ...]:
        """The state of the connections to the other members."""
        return () if self._group is None else self._group.sending()

    def leave(self) -> None:
        """Close the group; nothing of it writes into our memory any more."""
        self._control.on_superseded(None)
        if self.sharding is not None:
            self.sharding.line.carry(None)
        if self._group is not None:
            self._group.abort()
            if self.reduction is not None:
                self.reduction.drop()
            self._group.close()
        if self._line is not None:
            self._line.close()
        self._serving.clear()
        self._group = self._line = self._rail = self.replica = self.reduction = None

    def _form(self, generation: wire.Announced) -> None:
        begun = time.monotonic()
        self._control.at(self.version + 1, "regroup")
        if not generation.at_boundary:
            self.leave()
        self.members = generation.members
        self.rank, self.size = generation.members.index(self._control.member), len(generation.members)
        self.nodes = len({name.rpartition(".")[0] for name in generation.members})
        self._replicas_most = generation.replicas_most
        if generation.number > 1 and not generation.at_boundary:
            self.failures += 1  # a newcomer counts the failure that brought it here
        if not self.through:
            self._control.strike(self.version + 1, "regroup", self.rank, self.size)
        left = time.monotonic()
        self._publish_standing("standing")
        # All members are here: none is still in the last exchange, which the end of its group might break,
        # and the next group is not begun with a member that never comes.
        standings = self._standings("standing")
        self.leave()
        if self.size > 1:
            self._group = self._make(generation.number, self._make_group)
            if self._make_line is not None and self._needs_line(standings):
                self._line = self._make(generation.number, self._make_line, "line/")
            self._take_parts(self._group)
        formed = time.monotonic()
        if all(standing.fresh for standing in standings):
            if self.settled:  # of the first step, which no member has committed
                self._gradients.unsettle()
                self.settled = False
            standings = self._begin_from_checkpoint()
            history = followed = self._history
        else:
            leader = leading(standings)
            self._check_not_left_behind(standings, leader)
            standings = self._catch_up(standings, leader)
            followed = leader.history
            history = self._another(leader) if generation.is_apart else followed
        self._restore_parts(standings, followed)
        self._share_state(standings, followed)
        # Set only now that this member has the others' state: until here the regroup may be interrupted.
        self._history, self.through = history, any(standing.through for standing in standings)
        self._begin_mirrors(standings)
        self._share_minutes(standings)
        self._deal(standings, rebalances=generation.rebalances)
        self.audit_rate = generation.audit_rate if self.sharding is None else None
        self._control.say(
            wire.Regrouped(
                member=self._control.member,
                generation=self.number,
                version=self.version,
                lanes=tuple(sorted(self._gradients.held.union(self.todo))),
                steps_total=self.steps_total,
                parts_s={"abort": left - begun, "group": formed - left, "state": time.monotonic() - formed},
            )
        )

    def _take_parts(self, group: Group) -> None:
        """Take the subgroups: the rail, which sums the gradients, and the replica, which shares the model."""
        if self.sharding is None:
            # Over TCP a member may have a sum that others lack, and commit a step that they then make
            # differently.
            self._rail = Subgroup(group, range(self.size)) if self._shortage.is_smaller else group
            return
        number, rail = divmod(self.rank, self._ranks)
        assert rail == self.sharding.rail
        rails = range(rail, self.size, self._ranks)
        if len(rails) > 1:
            self._rail = Subgroup(group, rails)
        first = number * self._ranks
        self.replica = Subgroup(group, range(first, first + self._ranks))
        self.sharding.line.carry(self.replica)

    def _catch_up(self, standings: list[Standing], leader: Standing) -> list[Standing]:
        """If a rank has committed a step, each of the others either has its part of that step's sum, or
        nothing. Those that have it do the same step. Returns all standings after that.
        """
        top = leader.version
        numbers = _numbers_of(standings, top)
        mine = standings[self.rank]
        follows = can_follow(mine, leader)
        if self._mirror is not None and (mine.version == top or follows):
            self._mirror.note(top, numbers)
        if follows:
            assert self.on_apply is not None
            self.on_apply(numbers)
            self._adopt(top, numbers, leader.history)
        elif mine.settled:
            self._gradients.unsettle()
        self.settled = False
        return [_caught_up(one, top) if can_follow(one, leader) else one for one in standings]

    def _check_not_left_behind(self, standings: Sequence[Standing], leader: Standing) -> None:
        """Leave if this member cannot continue. A shelved member may have been in a collective of its script
        between two steps, whose result the others have forgotten. Or it has steps of an attempt that the run
        gave up.
        """
        behind = [
            is_astray(one, leader)
            or (one.place.at == "between" and one.version < leader.version and not can_follow(one, leader))
            for one in standings
        ]
        if behind[self.rank]:
            self._control.say(wire.LeftBehind(member=self._control.member, generation=self.number))
        if any(behind):
            raise Superseded  # by the generation without that member

    def _begin_from_checkpoint(self) -> list[Standing]:
        """No member has committed anything yet: begin from the newest durable checkpoint, if there is one."""
        token = self._new_token()
        found, begun, before = self._find_checkpoint()
        self._history, self.whole = StateHistory(token, begun, before, self.number), begun
        if found is not None:
            self._put_back(found)
        self._publish_standing("loaded")
        return self._standings("loaded")

    def _another(self, leader: Standing) -> StateHistory:
        """A new history. Earlier members may have made steps that no member here knows of; the steps that
        follow have the same numbers, but are not the same.
        """
        begun, before = leader.version, leader.history.of(leader.version)
        return StateHistory(self._new_token(), begun, before, self.number)

    def _new_token(self) -> str:
        """A new token, the same for all members."""
        if self.rank == 0:
            self._control.publish(self.number, "history", secrets.token_bytes(HISTORY_BYTES))
        return self._control.lookup(self.number, "history").hex()

    def _find_checkpoint(self) -> tuple[Loaded | None, int, str]:
        """The newest checkpoint of which every rail has its part, all of one history, with its step and its
        history. The checkpoint is None if this member lacks its part, and gets it from another on its rail.
        """
        store = self._checkpoints
        until: Mark | None = None
        whole, common = 0, set[str]()
        self._restore_ns = 0
        for number in range(LOOKS_MAX):
            begun_ns = time.monotonic_ns()
            loaded = store.newest(until) if store is not None else None
            self._restore_ns += time.monotonic_ns() - begun_ns
            found = (
                Found(NOTHING, "", 0) if loaded is None else Found(loaded.mark, loaded.history, loaded.whole)
            )
            told = self._told_all(f"found {number}", found)
            whole = max(whole, *(each.whole for each in told))
            rails = [told[rail :: self._ranks] for rail in range(self._ranks)]
            newest = [max(each.mark for each in rail) for rail in rails]
            step, preference = until = min(newest)
            if max(newest) == until:
                common = set.intersection(
                    *({each.history for each in rail if each.mark == until} for rail in rails)
                )
                if common:
                    break
                until = step, preference - 1
        # A checkpoint that was never complete, because its writers died, counts as none.
        if not common or (until == NOTHING and whole):
            raise StoreError(
                "No checkpoint has a sound part of every rank: `holdfast checkpoint verify` says which parts "
                "are missing or damaged.",
                hint="Nothing was changed there. Put those parts back; to begin anew, name another "
                "directory with --checkpoints.",
            )
        history = max(common)
        is_mine = (found.mark, found.history) == (until, history)
        return loaded if is_mine else None, step, history

    def _told_all(self, key: str, mine: "Found") -> list["Found"]:
        self._control.publish(self.number, f"{key}/{self.rank}", msgspec.msgpack.encode(mine))
        told = [self._control.lookup(self.number, f"{key}/{rank}") for rank in range(self.size)]
        return [msgspec.msgpack.decode(each, type=Found) for each in told]

    def _make(self, number: int, make: MakeGroup, prefix: str = "") -> Group:
        """prefix: of its keys, if the generation has more than one group."""
        control, rank, size = self._control, self.rank, self.size
        store = Rendezvous(
            lambda key, value: control.publish(number, prefix + key, value),
            lambda key: control.lookup(number, prefix + key),
            generation=prefix + str(number),
        )

        def superseded() -> bool:
            return control.superseded(number, forming=True)

        group = form(lambda: make(store, rank, size, superseded), superseded)
        control.on_superseded(partial(_abort, self._group, group))
        if superseded():  # possibly before the line above
            group.close()
            raise Superseded
        return group

    def _publish_standing(self, key: str) -> None:
        held = tuple(sorted(self._gradients.held))
        standing = Standing(
            version=self.version,
            fresh=self._fresh,
            held=held,
            through=self.through,
            chip=_chip(self._state.device),
            place=self.minutes.place,
            known=self.minutes.known,
            settled=self.settled,
            numbers=Numbers() if self.sharding is None else self.numbers,
            keeps=None if self._mirror is None else self._mirror.keeps,
            todo=self.todo,
            bound=self._bound,
            history=self._history,
            skipped=self._lanes_of(self._skipped),
        )
        self._control.publish(self.number, f"{key}/{self.rank}", msgspec.msgpack.encode(standing))

    def _standings(self, key: str) -> list[Standing]:
        found = [self._control.lookup(self.number, f"{key}/{rank}") for rank in range(self.size)]
        return [msgspec.msgpack.decode(standing, type=Standing) for standing in found]

    def _put_back(self, found: Loaded) -> None:
        """Resume from this checkpoint."""
        begun_ns = time.monotonic_ns()
        kept: dict[str, Any] = dict(found.state)
        numbers = (*self._identity, "version")
        missing = [name for name in (*numbers, "loss", "state") if name not in kept]
        missing += [name for name in numbers if name in kept and type(kept[name]) is not int]
        if missing:
            raise InputError(
                f"The checkpoint {found.place} has no usable {missing[0]}: this version of Holdfast "
                "did not write it.",
                hint="Restore one that the run wrote, or begin anew in another directory (--checkpoints).",
            )
        for name, value in self._identity.items():
            if kept[name] != value:
                raise InputError(
                    f"The checkpoint {found.place} was made with {name}={kept[name]}, this run has {value}.",
                    hint="Go on with the same, or begin anew in another directory (--checkpoints).",
                )
        try:
            self._state.put_back(kept["state"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"The checkpoint {found.place} does not fit what is protected: {_first_lines(error)}.",
                hint="Continue with the same model and optimizer, or begin anew in another directory "
                "(--checkpoints).",
            ) from None
        self._adopt(kept["version"], Numbers(loss=kept["loss"]), self._history)
        self._control.say(
            wire.Checkpointed(
                member=self._control.member,
                happened="loaded",
                step=self.version,
                place=found.place,
                restore_ns=self._restore_ns + time.monotonic_ns() - begun_ns,
                is_snapshot=found.preference == SNAPSHOT,
            )
        )

    def durable(self) -> dict[str, object]:
        """The contents of a checkpoint: the state, and all settings that must stay the same to resume from
        it.
        """
        kept: dict[str, object] = {
            **self._identity,
            "version": self.version,
            "loss": self._loss,
            "names": self._state.names(),
            "state": self._state.tree(),
        }
        if self.sharding is None or self._ranks == 1:
            return kept
        shape, rail, history = self.sharding.shape, self.sharding.rail, self._history.of(self.version)
        return {**kept, "shards": described(shape, rail, self._state.states(), history, self.whole)}

    def _share_state(self, standings: Sequence[Standing], history: StateHistory) -> None:
        """Members that are behind receive the state from all members that are not, a share from each."""
        rail = self.rank % self._ranks
        route = _route(standings[rail :: self._ranks])
        self._receivers = tuple(rail + self._ranks * number for number in route.receivers)
        place = self.rank // self._ranks
        if not route.receivers or place not in route.sources + route.receivers:
            return
        group = self._rail
        assert group is not None
        step = max(standing.version for standing in standings) + 1
        self._control.at(step, "state")
        if not self.through:
            self._control.strike(step, "state", self.rank, self.size)
        if place in route.sources:
            tell = partial(self._control.publish, self.number, f"state/{self.rank}")
            self._serving = transfer.send(group, route, self._state, self.version, self.numbers, tell)
        else:
            sources = [rail + self._ranks * source for source in route.sources]
            headers = [self._control.lookup(self.number, f"state/{source}") for source in sources]
            header = transfer.receive(group, route, self._state, headers)
            self._control.publish(self.number, f"taken/{self.rank}", b"")
            self._adopt(header.version, header.numbers, history)

    # ---- mirrors: for a replica without a second one -------------------------------------------------------

    def confirm_sum(self) -> None:
        """Wait until all ranks with the same part confirm that they have its sum. Raises `GroupBroken`; this
        rank must then keep its sum, because another may have heard from all, and committed.
        """
        if self._rail is not None:
            self._rail.confirm()

    def reflect(self, step: int) -> None:
        """Have another rank keep this rank's part of the step. Raises `GroupBroken`."""
        if self._mirror is not None:
            self._mirror.reflect(self._in_main_memory, self._state.tree(), step, self._gradients.total)

    @property
    def _in_main_memory(self) -> Group:
        """The group that exchanges tensors in main memory."""
        group = self._line or self._group
        assert group is not None
        return group

    def _needs_line(self, standings: Sequence[Standing]) -> bool:
        """Whether mirrors are kept in this generation, or given back."""
        is_lone = self.size == self._ranks > 1 and self._mirror_every > 0
        return is_lone or any(standing.keeps is not None for standing in standings)

    def _begin_mirrors(self, standings: Sequence[Standing]) -> None:
        if self.sharding is None or self.size != self._ranks or self._ranks == 1 or not self._mirror_every:
            self._mirror = None
            return
        offset = mirror_offset([name.rpartition(".")[0] for name in self.members])
        needed = [
            rail
            for rail in range(self._ranks)
            if not _covers(standings[(rail + offset) % self._ranks], rail, self.version)
        ]
        self._mirror = self._mirror or Mirror(self._mirror_every)
        self._mirror.begin(self.rank, offset, self._ranks, frozenset(needed))

    def _restore_parts(self, standings: list[Standing], history: StateHistory) -> None:
        """A member that takes the place of a rank whose part has no other copy gets it from the mirror."""
        top = max(standing.version for standing in standings)
        if self.sharding is None or top == 0:
            return
        for rail in range(self._ranks):
            rails = range(rail, self.size, self._ranks)
            if any(standings[rank].version == top for rank in rails):
                continue
            keeper = next((rank for rank, one in enumerate(standings) if _covers(one, rail, top)), None)
            if keeper is None:
                self._control.say(
                    wire.PartLost(member=self._control.member, generation=self.number, rail=rail)
                )
                raise Superseded
            if self.rank == keeper:
                assert self._mirror is not None
                self._mirror.give(self._in_main_memory, rail)
            elif self.rank == rail:
                self._take_part(keeper, history)
                self._note(_numbers_of(standings, top))
            standings[rail] = msgspec.structs.replace(
                standings[rail], version=top, held=(), todo=(), bound=None
            )

    def _take_part(self, keeper: int, history: StateHistory) -> None:
        """Take the state of some steps ago, and repeat those steps."""
        assert self.on_apply is not None
        found = mirror.take(self._in_main_memory, keeper, self._gradients.layout.dtypes)
        self._state.put_back(found.tree)
        self._adopt(found.version, Numbers(), history)
        for flats, numbers in found.steps:
            self._gradients.adopt(flats)
            self.on_apply(numbers)
            self._adopt(self.version + 1, numbers, history)

    def _adopt(self, version: int, numbers: Numbers, history: StateHistory) -> None:
        self.version, self._history = version, history
        self._bound = None
        self._note(numbers)
        self._fresh = False
        self.minutes.adopted(version)
        self._gradients.forget()
        torch.clear_autocast_cache()  # the script may be inside autocast, which caches weights

    def _note(self, numbers: Numbers) -> None:
        self._loss, self._lr, self._grad_norm = numbers.loss, numbers.lr, numbers.grad_norm
        self._skipped = numbers.skipped

    def _share_minutes(self, standings: Sequence[Standing]) -> None:
        """Learn where all scripts are from here on; members that lack results of collectives get them."""
        self.version_met = self.version
        self._elder = next((rank for rank, one in enumerate(standings) if not one.fresh), 0)
        behind = [standing.version < self.version for standing in standings]
        adopters = [
            is_behind and one.place.at == "lanes" for is_behind, one in zip(behind, standings, strict=True)
        ]
        between = ScriptStretch("between", self.version)
        counts: dict[ScriptStretch, list[int | None]] = {between: []}
        self.places = []
        for rank, one in enumerate(standings):
            count = None if behind[rank] else one.known.between
            if adopters[rank]:
                count = 0  # it adopted the version, and continues after its commit
            place = msgspec.structs.replace(one.place, at="between") if adopters[rank] else one.place
            self.places.append((place, count))
            counts[between].append(count)
        for total in sorted({total for one in standings for total in one.known.outside}):
            counts[ScriptStretch("outside", total)] = [one.known.outside.get(total, 0) for one in standings]
        for stretch, known in counts.items():
            self._hand_over(stretch, known)
        self.minutes.place = msgspec.structs.replace(
            self.minutes.place, left=max(one.place.left for one in standings)
        )

    def _hand_over(self, stretch: ScriptStretch, known: Sequence[int | None]) -> None:
        """From the first member that knows most results to those that know fewer. None: the member needs
        none.
        """
        counts = [count for count in known if count is not None]
        if not counts or min(counts) == max(counts):
            return
        giver, own = known.index(max(counts)), known[self.rank]
        key = f"minutes/{stretch.kind}/{stretch.number}"
        if self.rank == giver:
            for number, parcel in enumerate(parcels(self.minutes.of(stretch)[min(counts) :])):
                self._control.publish(self.number, f"{key}/{number}", msgspec.msgpack.encode(parcel))
        elif own is not None and own < max(counts):
            taken: list[Met] = []
            for number in range(max(counts)):  # a parcel has one result at least
                found = self._control.lookup(self.number, f"{key}/{number}")
                parcel = msgspec.msgpack.decode(found, type=Handed)
                taken += parcel.met
                if not parcel.more:
                    break
            self.minutes.add(stretch, taken[own - min(counts) :])

    # ---- lanes -------------------------------------------------------------------------------------------

    def check_skipped(self, skipped: Sequence[int]) -> None:
        """Raise unless these leaves, which no member computed, are exactly those that all agreed to skip."""
        lanes = self._lanes_of(skipped)
        if frozenset(lanes) != self._without or len(skipped) != self._slices * len(lanes):
            raise HoldfastError(
                f"In step {self.version + 1} no member computed the lanes {sorted(skipped)}, though "
                f"{sorted(self._without) or 'none'} were to be skipped. The step is not committed.",
                hint="This is a defect of Holdfast: please report it with the run's record.",
            )

    @property
    def _slices(self) -> int:
        """How many leaves a lane of a replica has."""
        return 1 if self.sharding is None else self.sharding.shape.slices

    def _lanes_of(self, leaves: Sequence[int]) -> tuple[int, ...]:
        """The lanes that have these leaves, in order."""
        return tuple(sorted({leaf // self._slices for leaf in leaves}))

    def weigh(self, told: Sequence[Sequence[float]]) -> tuple[int, ...]:
        """How many lanes each member, or replica, is to have after this step, according to the figures of
        their lanes: the same on all members with the same part of the model. The first part's result counts.
        """
        if self._balance is None or self._patched or self._without or self.rank % self._ranks:
            return self.shares_due
        laps = []
        for lane in self.tellers:
            leaves = range(lane * self._slices, (lane + 1) * self._slices)
            figures = (max(map(one.__getitem__, leaves)) for one in told)
            _, _, lanes_s, cost, data_s, rest_s, quickest_s, _ = figures
            laps.append(Lap(lanes_s=lanes_s, cost=cost, rest_s=rest_s, data_s=data_s, quickest_s=quickest_s))
        self._found = self._balance.note(laps)
        return self._balance.shares

    def _deal(self, standings: Sequence[Standing], *, rebalances: bool) -> None:
        """Members keep the lanes that they have computed; the others are dealt."""
        replicas = self.size // self._ranks
        self._shares = self.shares_due = even_shares(self._lanes, replicas)
        self._balance = LaneBalance(self._lanes, replicas, self._everyone) if rebalances else None
        self._found = ()
        each_held = [frozenset(each.held if each.version == self.version else ()) for each in standings]
        held = [
            tree.in_common(each_held[first : first + self._ranks])
            for first in range(0, self.size, self._ranks)
        ]
        if self.sharding is not None:
            self._gradients.keep_only(held[self.rank // self._ranks])
        if sum(map(len, held)) != len(frozenset[int]().union(*held)):
            held = [frozenset()] * len(held)  # two members claim the same lane: drop all claims
            self._gradients.forget()
        self._without = self._skipped_by(standings, frozenset[int]().union(*held))
        if not self._without.isdisjoint(frozenset[int]().union(*held)):
            held = [frozenset()] * len(held)  # some belong to an agreement that was dropped
            self._gradients.forget()
        dealt = tree.deal_missing(self._lanes, held, self._without)
        self._take_lanes(
            dealt[self.rank // self._ranks], [own.union(new) for own, new in zip(held, dealt, strict=True)]
        )
        self._patched = any(held) or self._bound is not None

    def _skipped_by(self, standings: Sequence[Standing], held: frozenset[int]) -> frozenset[int]:
        """The lanes of the next step that no member computes: those that a member may already have skipped
        in its commit, or those that the present members have no room for.
        """
        here = [one for one in standings if one.version == self.version]
        self._bound = max((one.bound for one in here if one.bound is not None), default=None)
        if self._bound is not None:
            return frozenset(self._bound.lanes)
        dealt = frozenset(lane for one in here for lane in one.todo)
        replicas = self.size // self._ranks
        return self._shortage.of(self.version + 1, replicas, self._replicas_most, held, dealt)

    def _deal_anew(self) -> None:
        """Deal all lanes again, after a step that members other than its first ones finished, or to move
        lanes. If some are skipped, the others are dealt evenly.
        """
        replicas = self.size // self._ranks
        self._without = self._shortage.of(self.version + 1, replicas, self._replicas_most)
        self._shares = self.shares_due
        shares = (
            tree.deal_missing(self._lanes, [frozenset()] * replicas, self._without)
            if self._without
            else tree.deal_shares(self._lanes, self._shares)
        )
        self._gradients.shed()
        self._take_lanes(shares[self.rank // self._ranks], [frozenset(share) for share in shares])
        self._patched = False
        self._control.say(wire.Dealt(member=self._control.member, generation=self.number, lanes=self.todo))

    def _take_lanes(self, todo: tuple[int, ...], shares: Sequence[frozenset[int]]) -> None:
        self.todo = todo
        self.shares = tuple(shares)
        self.tellers = tuple(max(share, default=0) for share in shares)
        nodes = [tree.cover(share) for share in shares]
        layout = self._gradients.layout
        self.reduction = Reduction(self._rail, layout, nodes) if self._rail is not None else None


def _node_of(member: str) -> str:
    return member.rpartition(".")[0]


def _route(standings: Sequence[Standing]) -> transfer.Route:
    """From all that have the highest version to all that do not. Of members that share a GPU only the first
    one sends, because they would only take turns.
    """
    top = max(standing.version for standing in standings)
    ahead = {
        standing.chip or rank: rank
        for rank, standing in reversed(list(enumerate(standings)))
        if standing.version == top
    }
    return transfer.Route(
        sources=tuple(sorted(ahead.values())),
        receivers=tuple(rank for rank, standing in enumerate(standings) if standing.version < top),
    )


def _abort(*groups: Group | None) -> None:
    for group in groups:
        if group is not None:
            group.abort()


def _chip(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def _first_lines(error: Exception) -> str:
    """torch names the kind of problem in its first line, and the first instance of it in the second."""
    return " ".join(line.strip() for line in str(error).splitlines()[:2]).rstrip(".") or type(error).__name__


def _covers(standing: Standing, rail: int, version: int) -> bool:
    """Whether it keeps what is needed to make that rank's part again."""
    return standing.keeps is not None and standing.keeps.covers(rail, version)


def _caught_up(standing: Standing, version: int) -> Standing:
    """A rank that had its sum of this step has made the step. Before that, it kept what another rank had of
    it.
    """
    keeps = standing.keeps
    if keeps is not None and keeps.last == version - 1:
        keeps = msgspec.structs.replace(keeps, last=version)
    return msgspec.structs.replace(standing, version=version, held=(), keeps=keeps, bound=None)


def _numbers_of(standings: Sequence[Standing], version: int) -> Numbers:
    """The numbers of that step. A member that got its state from a checkpoint or a mirror does not know them
    all.
    """
    told = [one.numbers for one in standings if one.version == version]
    return max(told, key=lambda numbers: (numbers.loss is not None, numbers.grad_norm is not None))
