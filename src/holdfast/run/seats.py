"""Fill every seat with a member, and keep warm processes ready."""

from holdfast.run import devices, processes, replicas
from holdfast.run.state import RunState


def promote_spare_nodes(state: RunState) -> None:
    """Activate spare nodes as soon as there is room for them."""
    room = state.policy.nodes_max - state.roster.nodes_active
    if room > 0 and len(state.roster.nodes) > state.roster.nodes_active:
        spares = [node for node in state.roster.nodes.values() if node.is_spare and not node.is_drained]
        chosen = state.replacing.chosen
        spares.sort(key=lambda node: (node.name not in chosen, -state.roster.readiness(node), node.joined_ns))
        for node in spares[:room]:
            processes.activate(state, node)


def fill_seats(state: RunState) -> None:
    """Give empty seats to warm processes at once; start cold ones when that disturbs no member.

    After a GPU failure, the process that had the GPU must be gone first. If it failed before, the seat stays
    empty for a while.
    """
    may_start = (
        not state.generations.survivors
        or bool(state.ending.undone_main)
        or _is_calm(state)
        or replicas.is_stuck(state)
    )
    for name, slot in list(state.roster.vacant):
        node = state.roster.nodes[name]
        if node.is_drained:
            continue
        if (free_ns := devices.free_ns(state, (name, slot))) > state.now_ns:
            state.outbox.wake(free_ns)
            continue
        if processes.seat_from_pool(state, node, slot) or not may_start:
            continue
        if state.now_ns < node.start_ns:
            state.outbox.wake(node.start_ns)
        else:
            processes.start(state, node, slot, "active")


def is_anybody_coming(state: RunState) -> bool:
    """Whether a process is getting ready, or will be started in a seat that is empty or may soon be."""
    return (
        bool(state.roster.coming)
        or state.generations.keeps_seats
        or any(not state.roster.nodes[node].is_drained for node, _ in state.roster.vacant)
    )


def fill_pools(state: RunState) -> None:
    """Start missing warm processes. On a spare node they disturb no member, because it has no other work."""
    is_calm = _is_calm(state)
    if not is_calm and len(state.roster.nodes) == state.roster.nodes_active:
        return
    for name in list(state.roster.short):
        node = state.roster.nodes[name]
        if node.is_drained:
            del state.roster.short[name]
            continue
        first, count = (0, node.slots) if node.is_spare else (node.slots, state.policy.warm)
        missing = [slot for slot in range(first, first + count) if slot not in node.pool]
        if missing and not (is_calm or node.is_spare):
            continue
        if missing and state.now_ns < node.start_ns:
            state.outbox.wake(node.start_ns)
            continue
        for slot in missing:
            processes.start(state, node, slot, "spare")
        del state.roster.short[name]


def _is_calm(state: RunState) -> bool:
    """Whether the generation has formed and is whole: only then may new processes compete with it."""
    generation = state.generations.announced
    return generation is not None and generation.formed_ns is not None and not generation.lost
