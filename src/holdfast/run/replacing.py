"""A member is replaced because the operator asks for it. Nobody is lost by it, and no step is.

Its heir, a warm process of its node, is admitted and builds its model while the member goes on. Then a
generation is announced with the heir in the member's place; the present one changes over at a step boundary,
as it does to grow, and the member is ended. Until that generation is formed the member has the state that
others may need: if anybody is lost meanwhile, it stays, and the heir is ended.
"""

from holdfast.record.events import ActionTaken, MemberJoined
from holdfast.run import processes
from holdfast.run.state import Close, Member, Round, State
from holdfast.run.wire import Answer, Replace

REASON = "asked for by the operator"


def ask(state: State, message: Replace) -> Answer:
    """Begin to replace the member, or say how that stands."""
    name = message.member
    if state.replaced.get(name):
        return Answer(ok=True, sentence=f"{state.replaced[name]} has taken the place of {name}")
    if state.closing is not None:
        return Answer(ok=False, sentence="the run is ending")
    if name in state.leaving:
        return Answer(ok=True, sentence=f"{name} is being replaced", is_done=False)
    if message.asks_only and name in state.replaced:
        return Answer(ok=False, sentence=f"{name} stays: somebody was lost meanwhile")
    return _begin(state, name)


def _begin(state: State, name: str) -> Answer:
    round_ = state.round
    if round_ is None:
        return Answer(ok=False, sentence="the script has not joined, so its processes cannot be replaced")
    members = [member for member in round_.members if member not in round_.lost]
    if name not in members:
        what = f"{name} is a node; name one of its members" if name in state.nodes else f"no member {name!r}"
        sentence = f"{what}; the run has {', '.join(members)}"
        return Answer(ok=False, sentence=sentence, is_mistake=True)
    if len(members) == 1:
        return Answer(ok=False, sentence=f"{name} is the only member: nobody else has its state")
    if any(state.members[member].is_done for member in members):
        return Answer(ok=False, sentence="the training is through")
    state.replaced.pop(name, None)
    state.leaving[name] = ""
    state.say(f"{name} is to be replaced, {REASON}")
    return Answer(ok=True, sentence=f"{name} is being replaced", is_done=False)


def settle(state: State) -> None:
    """Find an heir for whoever has none; see to it that what was begun can go on, or is undone."""
    round_ = state.round
    if round_ is None or not (state.leaving or round_.leaving):
        return
    if _is_upset(state, round_):
        revert(state, round_)
    is_calm = round_.formed_ns is not None and not round_.lost
    for name, heir_name in list(state.leaving.items()):
        member, heir = state.living(name), state.living(heir_name)
        if member is None:
            _inherit(state, name, heir)
        elif heir_name and heir is None:
            _give_up(state, name, f"{heir_name} was lost before it could take its place")
        elif heir is None and is_calm:
            _find_heir(state, member)


def ready(state: State) -> dict[str, str]:
    """Whose heir waits to take the place, and the heir."""
    return {name: heir for name, heir in state.leaving.items() if heir in state.waiting}


def hand_over(state: State, round_: Round, opened_ns: int) -> None:
    """The generation is formed: the heirs have the seats, and those who had them are ended."""
    for name, heir_name in round_.leaving.items():
        member, heir = state.members[name], state.members[heir_name]
        state.nodes[heir.node].seats[heir.slot] = heir_name
        member.is_lost = True
        processes.stop(state, member, state.policy.grace_s)
        # Its GPU is the heir's from now on; it is there to be ended, and brings none.
        left = MemberJoined(
            id="", occurred_ns=opened_ns, subject=name, gpus=0, role="spare", node=member.node
        )
        state.record(left)
        processes.record_active(state, heir, at_ns=opened_ns)
        state.record(ActionTaken(id="", occurred_ns=opened_ns, subject=name, action="replace", reason=REASON))
        state.leaving.pop(name, None)
        state.replaced[name] = heir_name


def revert(state: State, round_: Round) -> None:
    """The generation that was to replace members is not formed, and will not be: they stay in it."""
    stays = {heir: name for name, heir in round_.leaving.items() if state.living(name) is not None}
    for heir_name, name in stays.items():
        if (heir := state.living(heir_name)) is not None:
            _dismiss(state, heir)
        round_.lost.pop(heir_name, None)
        _give_up(state, name, "somebody was lost meanwhile")
    ranks = {} if state.stepping is None else {name: at for at, name in enumerate(state.stepping.members)}
    members = [stays.get(name, name) for name in round_.members]
    round_.members = tuple(sorted(members, key=lambda name: ranks.get(name, len(ranks))))
    round_.names = frozenset(round_.members)
    round_.leaving = {}
    round_.is_void = True


def _is_upset(state: State, round_: Round) -> bool:
    """Whether the generation that is to replace members cannot come as it was announced."""
    return round_.formed_ns is None and bool(
        round_.leaving and (round_.lost or any(state.living(name) is None for name in round_.leaving))
    )


def _find_heir(state: State, member: Member) -> None:
    node = state.nodes[member.node]
    heir = processes.from_pool(state, node, member.slot)
    if heir is not None:
        heir.replaces, heir.seated_ns = member.name, state.now_ns
        state.coming[heir.name] = None
        state.leaving[member.name] = heir.name
        processes.admit_parked(state, heir)
    elif state.policy.warm:
        return  # the pool is being filled
    elif state.now_ns < node.start_ns:
        state.wake(node.start_ns)
    else:
        processes.start(state, node, node.slots, "spare")
        _find_heir(state, member)


def _inherit(state: State, name: str, heir: Member | None) -> None:
    """The member was lost: its heir takes the seat as any replacement does, unless somebody else has it."""
    del state.leaving[name]
    if heir is None:
        return
    node = state.nodes[heir.node]
    if (node.name, heir.slot) not in state.vacant:
        _dismiss(state, heir)
        return
    state.replaced[name] = heir.name
    node.seats[heir.slot] = heir.name
    del state.vacant[node.name, heir.slot]


def _give_up(state: State, name: str, why: str) -> None:
    state.leaving.pop(name, None)
    state.replaced[name] = ""
    state.say(f"{name} stays: {why}", "trouble")


def _dismiss(state: State, heir: Member) -> None:
    """It is not needed any more. That it ends is no loss."""
    processes.stop(state, heir, 0)
    state.out.append(Close("worker", heir.name))
    heir.is_lost = True
    state.coming.pop(heir.name, None)
    state.waiting.pop(heir.name, None)
