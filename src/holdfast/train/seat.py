"""A member's seat in the present generation: its rank, its group, its lanes, and how it moves to the next.

To regroup is: leave the old group, tell the others where one stands, form the new group, bring everybody to
the highest version, and deal the lanes that nobody holds. Any of it may be cut short by another generation.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import torch

from holdfast.record.errors import InputError
from holdfast.run import wire
from holdfast.train import transfer, tree
from holdfast.train.checkpoint import Checkpoints
from holdfast.train.control import Control
from holdfast.train.gradients import Gradients
from holdfast.train.group import Group, GroupBroken, Rendezvous, Sending, Superseded, Work, form
from holdfast.train.minutes import Handed, Known, Met, Minutes, ScriptPlace, ScriptStretch, parcels
from holdfast.train.protected import Protected
from holdfast.train.reduction import Reduction
from holdfast.train.transfer import Numbers

MakeGroup = Callable[[Rendezvous, int, int, Callable[[], bool]], Group]
"""A group from its rendezvous, rank and size, and whether it is no longer wanted."""

Number = torch.Tensor | float | None
"""One that may still be on a device: it is read only if somebody wants it, because the host then waits."""


class RunOver(Exception):
    """The run ended without this member's taking part any further."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a member brings into a new generation.

    fresh: nothing but what it was built with. held: the lanes of step version + 1 that it has computed.
    through: its script has left the steps behind. chip: the GPU that it computes on; empty: none.
    place: where its script is. known: how many results of the script's collectives it has.
    """

    version: int
    fresh: bool
    held: tuple[int, ...]
    through: bool
    chip: str = ""
    place: ScriptPlace = ScriptPlace()
    known: Known = Known()


class Seat:
    """This process among the members."""

    def __init__(
        self,
        control: Control,
        state: Protected,
        gradients: Gradients,
        identity: dict[str, int],
        make_group: MakeGroup,
        checkpoints: Checkpoints | None,
    ) -> None:
        """identity: `lanes`, and whatever else the bits depend on."""
        self.version = 0
        self._loss: float | None = None
        self._lr: Number = None
        self._grad_norm: Number = None
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
        self._patched = False
        self._control = control
        self._state = state
        self._gradients = gradients
        self._identity = identity
        self._lanes = identity["lanes"]
        self._make_group = make_group
        self._checkpoints = checkpoints
        self._group: Group | None = None
        self._serving: list[Work] = []
        self._receivers: tuple[int, ...] = ()

    @property
    def lost(self) -> bool:
        """Whether the present generation is to be left at once."""
        return self._control.superseded(self.number)

    @property
    def name(self) -> str:
        """This member's."""
        return self._control.member

    @property
    def numbers(self) -> Numbers:
        """Of the last step."""
        lr, norm = (None if one is None else float(one) for one in (self._lr, self._grad_norm))
        return Numbers(loss=self._loss, lr=lr, grad_norm=norm)

    def plan(self, steps_total: int) -> None:
        """The script wants so many steps."""
        self.steps_total = steps_total
        if self.number:  # else the others hear of it as soon as it is in a generation
            self._control.say(wire.Planned(member=self._control.member, steps_total=steps_total))

    def writes(self, step: int) -> bool:
        """Whether this member writes what all of them log of a step: rank 0, unless that has joined since.

        Then it is the first of those who have seen the step.
        """
        return self.rank == (0 if step > self.version_met else self._elder)

    def regroup(self) -> None:
        """Go on in the newest generation. Raises `RunOver` where there is none."""
        while True:
            self._control.at(self.version + 1, "waiting")
            generation = self._control.newest(self.number)
            if generation is None:
                raise RunOver
            self.number = generation.number
            try:
                self._form(generation)
                return
            except Superseded:
                continue
            except GroupBroken as broken:
                self.say_broken(str(broken), "regroup with the others")

    def say_broken(self, reason: str, operation: str) -> None:
        """operation: what this member could not do."""
        if self._group is not None:
            self._group.abort()  # takes time, in which the others get ready
        if not self.lost:
            self._control.say(
                wire.Broken(
                    member=self._control.member, generation=self.number, reason=reason, operation=operation
                )
            )

    def committed(self, version: int, loss: float, lr: Number, grad_norm: Number) -> None:
        self.version = version
        self._loss, self._lr, self._grad_norm = loss, lr, grad_norm
        self._fresh = False
        self.minutes.committed(version)
        self._serving.clear()
        self._gradients.forget()
        if self._patched:
            self._deal_evenly()

    def await_receivers(self) -> None:
        """Wait until all members have the state: without them no exchange of gradients can end, and one that
        waits on a GPU takes time from the transfer where members share it.
        """
        receivers, self._receivers = self._receivers, ()
        # If it is superseded the exchange breaks, or all have it: a newer one waits for a boundary.
        with suppress(Superseded):
            for rank in receivers:
                self._control.lookup(self.number, f"taken/{rank}")

    def sending(self) -> tuple[Sending, ...]:
        """How the connections to the other members fare."""
        return () if self._group is None else self._group.sending()

    def leave(self) -> None:
        """Give the group back; nothing of it writes into our memory any more."""
        self._control.on_superseded(None)
        if self._group is not None:
            self._group.abort()
            if self.reduction is not None:
                self.reduction.drop()
            self._group.close()
        self._serving.clear()
        self._group = self.reduction = None

    def _form(self, generation: wire.Announced) -> None:
        begun = time.monotonic()
        self._control.at(self.version + 1, "regroup")
        if not generation.at_boundary:
            self.leave()
        self.members = generation.members
        self.rank, self.size = generation.members.index(self._control.member), len(generation.members)
        self.nodes = len({name.rpartition(".")[0] for name in generation.members})
        if generation.number > 1 and not generation.at_boundary:
            self.failures += 1  # a newcomer counts the one that brought it here
        if not self.through:
            self._control.strike(self.version + 1, "regroup", self.rank, self.size)
        left = time.monotonic()
        self._publish_standing("standing")
        # All are there: nobody is in the last exchange any more, which the end of its group might break, and
        # the making of the next is not begun with one that never comes.
        standings = self._standings("standing")
        self.leave()
        if self.size > 1:
            self._group = self._make(generation.number)
        formed = time.monotonic()
        if all(standing.fresh for standing in standings):
            self._load_checkpoint()
            self._publish_standing("loaded")
            standings = self._standings("loaded")
        self.through = any(standing.through for standing in standings)
        self._share_state(standings)
        self._share_minutes(standings)
        self._deal(standings)
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

    def _make(self, number: int) -> Group:
        control, rank, size = self._control, self.rank, self.size
        store = Rendezvous(
            lambda key, value: control.publish(number, key, value),
            lambda key: control.lookup(number, key),
            generation=str(number),
        )

        def superseded() -> bool:
            return control.superseded(number, forming=True)

        group = form(lambda: self._make_group(store, rank, size, superseded), superseded)
        control.on_superseded(group.abort)
        if superseded():  # before the line above
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
        )
        self._control.publish(self.number, f"{key}/{self.rank}", msgspec.msgpack.encode(standing))

    def _standings(self, key: str) -> list[Standing]:
        found = [self._control.lookup(self.number, f"{key}/{rank}") for rank in range(self.size)]
        return [msgspec.msgpack.decode(standing, type=Standing) for standing in found]

    def _load_checkpoint(self) -> None:
        """Nobody alive has the state: go on from what is durable, if anything is."""
        found = self._checkpoints.newest() if self._checkpoints is not None else None
        if found is None:
            return
        kept: dict[str, Any] = dict(found.state)
        numbers = (*self._identity, "version")
        missing = [name for name in (*numbers, "loss", "state") if name not in kept]
        missing += [name for name in numbers if name in kept and type(kept[name]) is not int]
        if missing:
            raise InputError(
                f"The checkpoint {found.place} has no {missing[0]} that can be used: this Holdfast did not "
                "write it.",
                hint="Put one back that the run wrote, or begin a run of another name.",
            )
        for name, value in self._identity.items():
            if kept[name] != value:
                raise InputError(
                    f"The checkpoint {found.place} was made with {name}={kept[name]}, this run has {value}.",
                    hint="Go on with the same, or begin a run of another name.",
                )
        try:
            self._state.put_back(kept["state"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"The checkpoint {found.place} does not fit what is protected: {_first_lines(error)}.",
                hint="Go on with the same model and optimizer, or begin a run of another name.",
            ) from None
        self._adopt(kept["version"], Numbers(loss=kept["loss"]))
        self._control.say(
            wire.Checkpointed(
                member=self._control.member, happened="loaded", step=self.version, place=found.place
            )
        )

    def durable(self) -> dict[str, object]:
        """What a checkpoint holds: the state, and what must not change for it to be gone on from."""
        return {
            **self._identity,
            "version": self.version,
            "loss": self._loss,
            "names": self._state.names(),
            "state": self._state.tree(),
        }

    def _share_state(self, standings: Sequence[Standing]) -> None:
        """Who is behind takes the state of all members that are not, a share from each."""
        route = _route(standings)
        self._receivers = route.receivers
        if not route.receivers or self.rank not in route.sources + route.receivers:
            return
        assert self._group is not None
        step = max(standing.version for standing in standings) + 1
        self._control.at(step, "state")
        if not self.through:
            self._control.strike(step, "state", self.rank, self.size)
        if self.rank in route.sources:
            tell = partial(self._control.publish, self.number, f"state/{self.rank}")
            self._serving = transfer.send(self._group, route, self._state, self.version, self.numbers, tell)
        else:
            headers = [self._control.lookup(self.number, f"state/{source}") for source in route.sources]
            header = transfer.receive(self._group, route, self._state, headers)
            self._control.publish(self.number, f"taken/{self.rank}", b"")
            self._adopt(header.version, header.numbers)

    def _adopt(self, version: int, numbers: Numbers) -> None:
        self.version = version
        self._loss, self._lr, self._grad_norm = numbers.loss, numbers.lr, numbers.grad_norm
        self._fresh = False
        self.minutes.adopted(version)
        self._gradients.forget()
        torch.clear_autocast_cache()  # a script may be inside autocast, which remembers weights

    def _share_minutes(self, standings: Sequence[Standing]) -> None:
        """Where everybody's script is from here on; who lacks results of its collectives gets them."""
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
                count = 0  # it took the version over, and goes on behind its commit
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
        """From the first that knows most results to those who know fewer. None: needs none."""
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

    def _deal(self, standings: Sequence[Standing]) -> None:
        """Lanes that somebody has computed stay his; the others are dealt."""
        held = [frozenset(each.held if each.version == self.version else ()) for each in standings]
        if sum(map(len, held)) != len(frozenset[int]().union(*held)):
            held = [frozenset()] * len(held)  # two claim the same lane: nobody's claim counts
            self._gradients.forget()
        dealt = tree.deal_missing(self._lanes, held)
        self._take_lanes(dealt[self.rank], [own.union(new) for own, new in zip(held, dealt, strict=True)])
        self._patched = any(held)

    def _deal_evenly(self) -> None:
        """A step that was finished by others than began it is over: even shares again."""
        shares = tree.deal(self._lanes, self.size)
        self._take_lanes(tuple(shares[self.rank]), [frozenset(share) for share in shares])
        self._patched = False
        self._control.say(wire.Dealt(member=self._control.member, generation=self.number, lanes=self.todo))

    def _take_lanes(self, todo: tuple[int, ...], shares: Sequence[frozenset[int]]) -> None:
        self.todo = todo
        nodes = [tree.cover(share) for share in shares]
        layout = self._gradients.layout
        self.reduction = Reduction(self._group, layout, nodes) if self._group is not None else None


def _route(standings: Sequence[Standing]) -> transfer.Route:
    """From all that have the highest version to all that do not; of those that share a GPU the first one
    sends, because it would only take turns with the others.
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


def _chip(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def _first_lines(error: Exception) -> str:
    """torch says which kind of trouble in its first line, and the first instance of it in the second."""
    return " ".join(line.strip() for line in str(error).splitlines()[:2]).rstrip(".") or type(error).__name__
