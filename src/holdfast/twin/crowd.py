"""Many members that say the same at the same moment, told to the membership at once.

Of a thousand members that report a step, the last report decides, and those before it only enter what they
say. So what the others say is entered here, just as `membership.advance` would enter it (a test holds the two
against each other, state against state), and the last one speaks to `advance` itself. Whatever is decided is
decided there.
"""

from collections.abc import Sequence

from holdfast.run import membership
from holdfast.run.state import Effect, FromMember, FromNode, State
from holdfast.run.waits import ns
from holdfast.run.wire import Committed, NodeBeat, Regrouped


def commit(
    state: State, names: Sequence[str], *, step: int, took_s: float, now_ns: int
) -> tuple[Effect, ...]:
    """Each of them, all living members of the generation that steps, reports this step."""
    round_, (*others, last) = state.stepping, names
    assert round_ is not None
    reported = (round_.number, step)
    _enter_presence(state, others, now_ns)
    for name in others:
        state.members[name].reported = reported
    if others:
        state.first_ns.setdefault(step, now_ns)
        round_.tally[step] = round_.tally.get(step, 0) + len(others)
        round_.took_ns[step] = min(ns(took_s), round_.took_ns.get(step, ns(took_s)))
    message = Committed(member=last, generation=round_.number, step=step, loss=None, took_s=took_s)
    return membership.advance(state, FromMember(last, message), now_ns)


def regroup(
    state: State, names: Sequence[str], *, version: int, steps_total: int, took_s: float, now_ns: int
) -> tuple[Effect, ...]:
    """Each of them, all living members of the announced generation, is in its group and has the state."""
    round_, (*others, last) = state.round, names
    assert round_ is not None
    _enter_presence(state, others, now_ns)
    if others:
        state.steps_total = steps_total
        round_.regrouped.update(dict.fromkeys(others, version))
        round_.parts_ns["group"] = max(round_.parts_ns.get("group", 0), ns(took_s))
    message = Regrouped(
        member=last,
        generation=round_.number,
        version=version,
        lanes=(),
        steps_total=steps_total,
        parts_s={"group": took_s},
    )
    return membership.advance(state, FromMember(last, message), now_ns)


def beat(state: State, nodes: Sequence[str], members: Sequence[str], *, now_ns: int) -> tuple[Effect, ...]:
    """Each of these nodes and members says that it lives, and does what it did."""
    *others, last = nodes
    _enter_presence(state, members, now_ns)
    for name in others:
        node = state.nodes[name]
        state.observed.note_gap(now_ns - node.seen_ns)
        node.seen_ns = now_ns
    return membership.advance(state, FromNode(last, NodeBeat(node=last)), now_ns)


def _enter_presence(state: State, names: Sequence[str], now_ns: int) -> None:
    """They were heard now."""
    state.now_ns = max(state.now_ns, now_ns)
    for name in names:
        state.members[name].seen_ns = now_ns
