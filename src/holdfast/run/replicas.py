"""Members that hold a sharded model: which of them form whole replicas, and which wait until one is whole.

Rank r of every replica has the same part of the model: these ranks are a **rail**, copies of each other. A
seat belongs to one rail as long as its node keeps its place, so a process that takes a lost member's seat
copies its part from a twin. A replica that lacks a rank is shelved: its other ranks live and wait, and the
other replicas have its lanes. Ranks of two broken replicas form a whole one if they complete each other. If
no node has a seat for some rail any more, one of the remaining nodes takes a lost node's place.
"""

from collections.abc import Mapping, Sequence

from holdfast.run import losses, processes, replacing
from holdfast.run.mesh import mirror_offset
from holdfast.run.state import Generation, Member, RunState
from holdfast.run.wire import PartLost

LEFT_BEHIND = "left behind by the others"


def arrange(state: RunState, holders: Sequence[str], newcomers: Sequence[str], main: str) -> tuple[str, ...]:
    """Whole replicas of these members, one after the other, each in the order of its rails.

    Replicas of members that have the state come first, so that every part of it is present. Members of one
    seating stay together if possible. The member that was rank 0 keeps that rank if its rail allows it.
    """
    ranks = state.policy.mesh.ranks
    if ranks == 1:
        return (*holders, *newcomers)
    chosen: list[tuple[str, ...]] = []
    left: list[str] = []
    for names in (list(holders), list(newcomers)):
        together, left = _whole(state, [*left, *names])
        chosen += together
    room = room_for(state)
    ordered = [name for replica in chosen[:room] for name in replica]
    if main in left and state.roster.members[main].rail == 0 and ordered and _may_mix(state):
        ordered[0] = main
    elif main in ordered and ordered.index(main) % ranks == 0:
        first = ordered.index(main)
        ordered = ordered[first : first + ranks] + ordered[:first] + ordered[first + ranks :]
    everyone, having = [*holders, *newcomers], _having(state)
    if _may_mix(state):
        _take_in(state, ordered, everyone, having)
    lacking = _held(state, having, list(state.roster.members)) - _held(state, having, ordered)
    if having.intersection(everyone) and lacking:
        return ()  # members left out have the other parts: wait until they are in whole replicas
    return tuple(ordered)


def _held(state: RunState, having: set[str], among: Sequence[str]) -> set[int]:
    """The rails whose state, or its mirror, one of these members has."""
    return {state.roster.members[name].rail for name in among if name in having} | _mirrored(state, among)


def _take_in(state: RunState, ordered: list[str], names: Sequence[str], having: set[str]) -> None:
    """Put members that are needed in the place of others: the only one of its rail with the state, the only
    one with the mirror of a lost part, and one that has a step which the others lack. The others have that
    step's sum and repeat the step as it did; without it they would drop the step. Members that were not in
    the formed generation may lack that sum.
    """
    versions = {name: state.roster.members[name].version for name in names}
    top = max((versions[name] for name in ordered), default=0)
    formed = _formed(state)
    others = [name for name in names if name in having and name not in ordered]
    for name in sorted(others, key=lambda one: -versions[one]):
        rail = state.roster.members[name].rail
        places = range(rail, len(ordered), state.policy.mesh.ranks)
        have = [
            max(versions[one], top if one in formed else 0)
            for place in places
            if (one := ordered[place]) in having
        ]
        brings = _held(state, having, [name]) - _held(state, having, ordered)
        if places and (not have or brings or versions[name] > max(have)):
            ordered[min(places, key=lambda place: (versions[ordered[place]], -place))] = name


def room_for(state: RunState) -> int:
    """How many replicas the lanes allow: each replica must have a lane."""
    if state.launch.setup is None:
        return 0
    return state.launch.setup[1].lanes // state.policy.mesh.slices


def would_grow(state: RunState, generation: Generation) -> bool:
    """Whether waiting members can join: with a sharded model, only if they form another whole replica. A
    stand-in joins only when the member that it replaces leaves.
    """
    newcomers = [name for name in state.roster.waiting if replacing.is_newcomer(state, name)]
    if not newcomers or state.policy.mesh.ranks == 1:
        return bool(newcomers)
    return len(arrange(state, generation.living, newcomers, "")) > len(generation.living)


def leaving(state: RunState, present: Sequence[str]) -> dict[str, str]:
    """The members that can leave at the operator's request: whole replicas, with every part, must remain."""
    going = replacing.ready(state, present)
    if not going or state.policy.mesh.ranks == 1:
        return going
    staying = [name for name in present if name not in going]
    stand_ins = [name for name in going.values() if name]
    return going if arrange(state, staying, stand_ins, "") else {}


def lost_part(state: RunState) -> int | None:
    """The first rail whose state no living member has. None if every part is present, or if no member has any
    state and all start from a checkpoint anyway.
    """
    generation = state.generations.announced
    ranks = state.policy.mesh.ranks
    if ranks == 1 or generation is None or not generation.lost:
        return None
    if not any(one.version and not one.is_lost for one in state.roster.members.values()):
        return None
    held = _held(state, _having(state), list(state.roster.members))
    return next((rail for rail in range(ranks) if rail not in held), None)


def _having(state: RunState) -> set[str]:
    """Living members that have the state, on the shelf or not. A member that has all but the last step, and
    was present when that step was made, may have its sum, which shows when they meet. Members of the formed
    generation step together from a common state: if one seems further behind, its report has not arrived yet.
    """
    formed = _formed(state)
    living = [
        one
        for one in state.roster.members.values()
        if (one.version or one.name in formed) and not one.is_lost
    ]
    last = max([state.progress.step, *(one.version for one in living)])
    makers = _makers(state, living, last)
    return {
        one.name
        for one in living
        if one.version >= last
        or (one.version == last - 1 and (makers is None or one.name in makers))
        or (one.name in formed and one.version >= state.progress.step)
    }


def _formed(state: RunState) -> frozenset[str]:
    """The members of the generation that was formed last."""
    generation = state.generations.formed
    return frozenset() if generation is None else generation.names


def _makers(state: RunState, living: Sequence[Member], step: int) -> frozenset[str] | None:
    """The members of the generations that are known to have made this step; None if that is unknown."""
    numbers = {generation for generation, last in (one.reported for one in living) if last == step}
    known = [state.generations.formed, state.generations.announced]
    makers = [one.names for one in known if one is not None and one.number in numbers]
    return frozenset[str]().union(*makers) if makers else None


def _mirrored(state: RunState, among: Sequence[str]) -> set[int]:
    """The rails whose mirror a living rank among these keeps. Only a single replica with several ranks has
    mirrors.
    """
    formed = state.generations.formed
    ranks = state.policy.mesh.ranks
    if formed is None or ranks == 1 or len(formed.members) != ranks:
        return set()
    offset = mirror_offset([name.rpartition(".")[0] for name in formed.members])
    return {
        (rail - offset) % ranks
        for rail, name in enumerate(formed.members)
        if name in among and state.roster.living(name) is not None
    }


def is_fresh(state: RunState, name: str) -> bool:
    """Whether a waiting member has its script's work still ahead; False for one on the shelf."""
    return state.policy.mesh.ranks == 1 or not state.roster.members[name].version


def may_stand_in(state: RunState, name: str) -> bool:
    """Whether a waiting member can be rank 0 and repeat the lost rank 0's work after the last step."""
    return state.roster.members[name].rail == 0 and is_fresh(state, name)


def fence_ahead(state: RunState) -> None:
    """End waiting members that have a later step than the formed generation, because their report came too
    late or the run went back. The others make that step again, so no member may continue from the old one.
    """
    generation = state.generations.announced
    if state.policy.mesh.ranks == 1 or generation is None or generation.formed_ns is None:
        return
    waiting = [state.roster.members[name] for name in state.roster.waiting]
    if any(member.version > state.progress.step for member in waiting):
        top = max(state.roster.members[name].version for name in generation.members)
        _end(state, [member for member in waiting if member.version > top], "ahead of the run")


def part_lost(state: RunState, message: PartLost) -> None:
    """Begin again, because no member of the generation has a part of the state, unless another living member
    may have it. Every member sends this message; only the first one counts.

    Members that were about to leave with this generation stay, because they may have the part: a single
    replica may lack mirrors. A shelved member may have it, too, if it was not heard for a while and made
    steps meanwhile. It then joins instead of the members with an older copy, which are replaced.
    """
    generation = state.generations.announced
    if generation is None or generation.number != message.generation or generation.formed_ns is not None:
        return
    if generation.is_void:
        return
    if generation.leaving:
        replacing.revert(state, generation, f"no other member has part {message.rail + 1} of the state")
        return
    state.progress.setbacks += 1
    outside = [name for name in state.roster.members if name not in generation.names]
    if message.rail in _held(state, _having(state), outside):
        members = [state.roster.members[name] for name in generation.living]
        _end(state, [one for one in members if one.rail == message.rail], LEFT_BEHIND)
    else:
        begin_again(state, message.rail)


def left_behind(state: RunState, member: Member) -> None:
    """End a member that was away and cannot continue from its state."""
    _end(state, [member], LEFT_BEHIND)


def can_spare(state: RunState, names: Sequence[str]) -> bool:
    """Whether the other members have every part of the state that still exists."""
    having, living = _having(state), [one for one in state.roster.members if state.roster.living(one)]
    others = [name for name in living if name not in names]
    return _held(state, having, living) == _held(state, having, others)


def is_stuck(state: RunState) -> bool:
    """Whether not even one replica is whole, so that the run waits for a member in the empty place."""
    generation = state.generations.announced
    if state.policy.mesh.ranks == 1 or generation is None or not generation.lost:
        return False
    return not arrange(state, generation.living, list(state.roster.waiting), "")


def move_nodes(state: RunState) -> bool:
    """If no seat is left for a part of the model, give nodes the places of lost ones, so that every part has
    a seat and a process can take it. Their members start again there, unless some part of the state would be
    lost with them. Return whether any node was moved.
    """
    moves = _moves(state, {node.name: node.order for node in state.roster.active_nodes()})
    for name, place in moves.items():
        state.outbox.say(f"no seat is left for a part of the model: {name} takes the place of a lost node")
        _end(state, _unfit(state, name, place), "needed for another part of the model")
        state.roster.nodes[name].order = place
    return bool(moves)


def _moves(state: RunState, orders: dict[str, int]) -> dict[str, int]:
    """Nodes and their new places that give one replica all its seats; empty if it has them, or if a move
    would cost the last copy of a part. Nodes with the least of the state move first.
    """
    ranks, having, everyone = state.policy.mesh.ranks, _having(state), list(state.roster.members)
    held = _held(state, having, everyone)
    moves: dict[str, int] = {}
    ended: set[str] = set()
    while (seated := _seated(state, orders | moves)) < ranks:
        best: tuple[tuple[int, int, int, int], str, int, set[str]] | None = None
        for place in _free(state, orders | moves):
            for name in orders.keys() - moves.keys():
                gain = _seated(state, orders | moves | {name: place}) - seated
                unfit = {one.name for one in _unfit(state, name, place)}
                left = [other for other in everyone if other not in ended | unfit]
                worth = (gain, -len(unfit & having), -len(unfit), orders[name])
                if gain > 0 and (best is None or worth > best[0]) and _held(state, having, left) == held:
                    best = (worth, name, place, unfit)
        if best is None:
            return {}
        moves[best[1]] = best[2]
        ended |= best[3]
    return moves


def _free(state: RunState, orders: Mapping[str, int]) -> list[int]:
    """Places that a node might take. If members may mix, the places of the first replica cover every part."""
    first = -(-state.policy.mesh.ranks // state.policy.slots)
    end = first if _may_mix(state) else max(orders.values(), default=0) + first
    return [order for order in range(end) if order not in orders.values()]


def _seated(state: RunState, orders: Mapping[str, int]) -> int:
    """How many ranks of one replica the nodes' seats cover at best, with nodes in these places."""
    ranks = state.policy.mesh.ranks
    seatings: dict[int, set[int]] = {}
    for name, order in orders.items():
        node = state.roster.nodes[name]
        for slot, seated in enumerate(node.seats):
            if not node.is_drained or (seated is not None and state.roster.living(seated) is not None):
                number = order * state.policy.slots + slot
                seatings.setdefault(number // ranks, set()).add(number % ranks)
    if _may_mix(state):
        return len(set[int]().union(*seatings.values()))
    return max(map(len, seatings.values()), default=0)


def _unfit(state: RunState, node: str, order: int) -> list[Member]:
    """Members of the node that were admitted for a different part than this place would give them."""
    first, ranks = order * state.policy.slots, state.policy.mesh.ranks
    return [
        one
        for one in state.roster.members.values()
        if one.node == node
        and not one.is_lost
        and one.reached in ("admitted", "ready")
        and one.rail != (first + one.slot) % ranks
    ]


def begin_again(state: RunState, rail: int) -> None:
    """End the members to continue from a checkpoint, because all copies of a part of the state are gone."""
    ranks = state.policy.mesh.ranks
    state.outbox.say(
        f"no member has part {rail + 1} of {ranks} of the state any more: all of them begin again", "trouble"
    )
    active = [one for one in state.roster.members.values() if one.role == "active" and not one.is_lost]
    _end(state, [member for member in active if member.since_generation], "part of the state lost")


def _end(state: RunState, members: Sequence[Member], why: str) -> None:
    """End members without counting setbacks: only the cause counts as one."""
    setbacks = state.progress.setbacks
    for member in members:
        losses.fence(state, member, why, onset_ns=None)
    state.progress.setbacks = setbacks


def _may_mix(state: RunState) -> bool:
    """Whether members of different seatings may be in one replica. Not with tensor parallel ranks, which must
    stay together on one node.
    """
    return state.policy.mesh.size("tp") == 1


def _whole(state: RunState, names: Sequence[str]) -> tuple[list[tuple[str, ...]], list[str]]:
    """As many whole replicas as these members form, and the members left over."""
    ranks = state.policy.mesh.ranks
    seatings: dict[int, dict[int, str]] = {}
    for name in sorted(names, key=lambda one: processes.seat_number(state, state.roster.members[one])):
        member = state.roster.members[name]
        seatings.setdefault(processes.seat_number(state, member) // ranks, {}).setdefault(member.rail, name)
    whole = [
        tuple(rails[rail] for rail in range(ranks)) for rails in seatings.values() if len(rails) == ranks
    ]
    taken = {name for replica in whole for name in replica}
    rows: list[list[str]] = [[] for _ in range(ranks)]
    for name in names:
        if name not in taken:
            rows[state.roster.members[name].rail].append(name)
    mixed = list(zip(*rows, strict=False)) if _may_mix(state) else []
    taken.update(name for replica in mixed for name in replica)
    return [*whole, *mixed], [name for name in names if name not in taken]
