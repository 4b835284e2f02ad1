"""Somebody for every seat, and somebody warm behind them."""

from holdfast.run import devices, processes
from holdfast.run.state import State


def promote_spare_nodes(state: State) -> None:
    """A node that is there and not needed yet takes part as soon as there is room for it."""
    room = state.policy.nodes_max - state.nodes_active
    if room > 0 and len(state.nodes) > state.nodes_active:
        spares = [node for node in state.nodes.values() if node.is_spare and not node.is_drained]
        spares.sort(key=lambda node: (not state.has_parked(node), node.joined_ns))
        for node in spares[:room]:
            processes.activate(state, node)


def fill_seats(state: State) -> None:
    """A warm process takes an empty seat at once; a cold one is started when that disturbs nobody.

    Where a GPU failed, the process that had it must be gone first; where it failed before, the seat rests.
    """
    may_start = not state.survivors or bool(state.undone_main) or _is_calm(state)
    for name, slot in list(state.vacant):
        node = state.nodes[name]
        if node.is_drained:
            continue
        if (free_ns := devices.free_ns(state, (name, slot))) > state.now_ns:
            state.wake(free_ns)
            continue
        if processes.seat_from_pool(state, node, slot) or not may_start:
            continue
        if state.now_ns < node.start_ns:
            state.wake(node.start_ns)
        else:
            processes.start(state, node, slot, "active")


def is_anybody_coming(state: State) -> bool:
    """Whether a process is getting ready, or is to be started in an empty seat."""
    return bool(state.coming) or any(not state.nodes[node].is_drained for node, _ in state.vacant)


def fill_pools(state: State) -> None:
    """Warm processes where they are missing. A spare node's disturb nobody: it has nothing else to do."""
    is_calm = _is_calm(state)
    if not is_calm and len(state.nodes) == state.nodes_active:
        return
    for name in list(state.short):
        node = state.nodes[name]
        if node.is_drained:
            del state.short[name]
            continue
        first, count = (0, node.slots) if node.is_spare else (node.slots, state.policy.warm)
        missing = [slot for slot in range(first, first + count) if slot not in node.pool]
        if missing and not (is_calm or node.is_spare):
            continue
        if missing and state.now_ns < node.start_ns:
            state.wake(node.start_ns)
            continue
        for slot in missing:
            processes.start(state, node, slot, "spare")
        del state.short[name]


def _is_calm(state: State) -> bool:
    """Whether the generation is formed and whole: only then may new processes compete with it."""
    round_ = state.round
    return round_ is not None and round_.formed_ns is not None and not round_.lost
