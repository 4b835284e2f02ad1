"""The processes of a run: their names, their environment, and which of them has which seat.

A process is named after the node and the slot in which it is started, `n0.1`; the next one there is `n0.1+1`.
No name is used twice. Warm processes are started in slots beyond the node's seats.
"""

from holdfast.record.events import MemberJoined, Role
from holdfast.run.happenings import ToMembers, ToNode
from holdfast.run.state import Member, Node, RunState
from holdfast.run.waits import backoff_ns
from holdfast.run.wire import Admitted, ShowWorker, StartWorker, StopWorker


def start(state: RunState, node: Node, slot: int, role: Role) -> None:
    """Start the script. An active member has the seat from now on; a spare one joins the node's pool."""
    place = f"{node.name}.{slot}"
    count = state.roster.counts.get(place, 0)
    state.roster.counts[place] = count + 1
    member = Member(
        name=f"{place}+{count}" if count else place,
        node=node.name,
        slot=slot,
        role=role,
        started_ns=state.now_ns,
        is_muted=role == "spare",
    )
    state.roster.members[member.name] = member
    state.roster.running += 1
    if role == "active":
        _sit(state, node, member, slot)
    else:
        node.pool[slot] = member.name
    order = StartWorker(
        member=member.name,
        slot=slot,
        environment=_environment(state, node, member),
        is_warm=member.is_muted,
    )
    state.outbox.effects.append(ToNode(node.name, order))


def seat_from_pool(state: RunState, node: Node, slot: int) -> bool:
    """Give an empty seat to the process of the node's pool that is most ready. False if the pool is empty."""
    member = from_pool(state, node, slot)
    if member is None:
        return False
    member.replaces = state.generations.vacated.get((node.order, slot), "")
    _sit(state, node, member, slot)
    admit_parked(state, member)
    return True


def from_pool(state: RunState, node: Node, slot: int) -> Member | None:
    """Take the process that is most ready out of the pool, for this slot."""
    pool = [state.roster.members[name] for name in node.pool.values()]
    member = min(
        pool,
        key=lambda one: (
            -one.readiness,
            one.slot != slot,
            one.started_ns,
            one.name,
        ),
        default=None,
    )
    if member is not None:
        del node.pool[member.slot]
        state.roster.short[node.name] = None
        member.role, member.slot = "active", slot
    return member


def admit_parked(state: RunState, member: Member) -> None:
    """Let the process out of `join()`, if it is there by now.

    Its output is shown in any case. If that waited until it joins, it might print before its agent is told.
    """
    show(state, member)
    if member.reached == "parked":
        admit(state, member)


def show(state: RunState, member: Member) -> None:
    """Show the process's output from now on. Inside `join()` it prints nothing."""
    member.is_muted = False
    state.outbox.effects.append(ToNode(member.node, ShowWorker(member=member.name, slot=member.slot)))


def admit(state: RunState, member: Member) -> None:
    member.reached, member.admitted_ns = "admitted", state.now_ns
    member.rail = _rail(state, member)
    slots = state.roster.nodes[member.node].slots
    # A fault planned for a join strikes only one newcomer: the first after its step is reached.
    due = [
        fault for fault in state.faults if fault.moment == "join" and fault.step <= state.progress.step + 1
    ][:1]
    state.faults = tuple(fault for fault in state.faults if fault not in due)
    admitted = Admitted(
        slot=member.slot,
        slots=slots,
        faults=tuple(due),
        mesh=state.policy.mesh,
        rail=member.rail,
        skipped=state.policy.skipped,
    )
    state.outbox.effects.append(ToMembers((member.name,), admitted))


def _rail(state: RunState, member: Member) -> int:
    """The part of a sharded model that permanently belongs to the member's seat."""
    return seat_number(state, member) % state.policy.mesh.ranks


def seat_number(state: RunState, member: Member) -> int:
    """The number of its seat among all seats that the run may have."""
    return state.roster.nodes[member.node].order * state.policy.slots + member.slot


def record_started(state: RunState, member: Member) -> None:
    """Record a started process. At the start of the run, members count as soon as their processes exist.

    Later the others step while a newcomer starts, so it counts as missing until it is ready. A warm process
    brings no GPU: it shares those of its node until it takes a member's place.
    """
    if member.role == "spare":
        _record_joined(state, member, gpus=int(state.roster.nodes[member.node].is_spare))
    elif state.generations.announced is None:
        record_active(state, member)


def record_active(state: RunState, member: Member, *, at_ns: int | None = None) -> None:
    """Record the member as active, once. at_ns: when that was, if not now."""
    if member.recorded_as != "active":
        _record_joined(state, member, gpus=1, at_ns=at_ns)


def _record_joined(state: RunState, member: Member, *, gpus: int, at_ns: int | None = None) -> None:
    member.recorded_as = member.role
    state.outbox.record(
        MemberJoined(
            id="",
            occurred_ns=state.now_ns if at_ns is None else at_ns,
            subject=member.name,
            gpus=gpus,
            role=member.role,
            node=member.node,
            host=state.roster.nodes[member.node].host if member.node in state.roster.nodes else "",
        )
    )


def activate(state: RunState, node: Node) -> None:
    """Make the node active, at the first free place among the active nodes."""
    taken = {other.order for other in state.roster.nodes.values() if not other.is_spare}
    node.order = next(order for order in range(len(taken) + 1) if order not in taken)
    node.is_spare = False
    state.roster.nodes_active += 1
    node.seats = [None] * node.slots
    state.roster.vacant.update({(node.name, slot): None for slot in range(node.slots)})
    state.roster.short[node.name] = None


def withdraw(state: RunState, member: Member) -> None:
    """Stop waiting for the member and keep it out of coming generations."""
    state.roster.coming.pop(member.name, None)
    state.roster.waiting.pop(member.name, None)


def vacate(state: RunState, member: Member) -> None:
    """Free the member's place, in a seat or in the pool."""
    node = state.roster.nodes.get(member.node)
    withdraw(state, member)
    if node is None:
        return
    if node.pool.get(member.slot) == member.name:
        del node.pool[member.slot]
        state.roster.short[node.name] = None
    elif not node.is_spare and member.slot < node.slots and node.seats[member.slot] == member.name:
        node.seats[member.slot] = None
        state.roster.vacant[node.name, member.slot] = None
    if member.reached != "ready":
        node.failures += 1
        node.start_ns = state.now_ns + backoff_ns(node.failures)


def stop(state: RunState, member: Member, grace_s: float) -> None:
    member.is_stopped = True
    if member.node in state.roster.nodes:
        state.outbox.effects.append(ToNode(member.node, StopWorker(member=member.name, grace_s=grace_s)))


def gone(state: RunState, member: Member) -> None:
    """Note that the process is gone. The name is kept while it matters to the present generation."""
    if member.is_gone:
        return
    member.is_gone = True
    state.roster.running -= 1
    if member.has_left or (
        state.generations.announced is not None and state.generations.announced.has(member.name)
    ):
        state.roster.departed.append(member.name)
    else:
        del state.roster.members[member.name]


def _sit(state: RunState, node: Node, member: Member, slot: int) -> None:
    node.seats[slot] = member.name
    member.seated_ns = state.now_ns
    state.roster.vacant.pop((node.name, slot), None)
    state.roster.coming[member.name] = None


def _environment(state: RunState, node: Node, member: Member) -> dict[str, str]:
    """The variables that torchrun would set, and the member's identity.

    The agent adds variables that are the same for all its workers: the coordinator's address, the token, and
    the directory for checkpoints.
    """
    active = state.roster.active_nodes()
    before = sum(other.slots for other in active if other.order < node.order)
    world = sum(other.slots for other in active)
    first = active[0]
    slot = member.slot % node.slots  # a warm one does not know its place yet: use any that exists
    rank = before + slot
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(slot),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(node.slots),
        "GROUP_RANK": str(node.order),
        "GROUP_WORLD_SIZE": str(len(active)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": "default",
        "MASTER_ADDR": first.address,
        "MASTER_PORT": str(first.port),
        "TORCHELASTIC_RUN_ID": state.policy.run,
        "TORCHELASTIC_RESTART_COUNT": str(state.launch.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(state.policy.max_restarts),
        "HOLDFAST_RUN": state.policy.run,
        "HOLDFAST_MEMBER": member.name,
        "HOLDFAST_NODE": node.name,
        "HOLDFAST_ADDRESS": node.address,
    }
