"""A generation from its announcement to its commits, and how it is recorded.

It is announced at once but recorded only when it has formed. Only then is its starting version known, and the
ledger counts the time in between as recovery.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby

from holdfast.record.events import Action, ActionTaken, CheckpointLoaded, GenerationOpened, StepCommitted
from holdfast.run import pacing, processes, replacing, replicas
from holdfast.run.happenings import ToMembers
from holdfast.run.history import gist
from holdfast.run.state import Generation, Member, RunState, Trouble
from holdfast.run.wire import Announced, Broken
from holdfast.wording import many
from holdfast.wording.lanes import few_lanes

FATE_CHARS_MAX = 60
"""How much of a lost member's cause the generation's line repeats; it was given in full a moment before."""
WORDS_CHARS_MAX = 300
"""How much is kept of the communication library's message about a broken generation."""


def announce(
    state: RunState, survivors: Sequence[str], *, at_boundary: bool, because: Trouble | None = None
) -> None:
    """Announce the next generation: the survivors, and ready newcomers as far as the lanes allow."""
    leaving = replicas.leaving(state, survivors) if at_boundary else {}
    stand_ins = [name for name in leaving.values() if name]
    others = [name for name in state.roster.waiting if replacing.is_newcomer(state, name)]
    newcomers = others if state.policy.mesh.ranks > 1 else others[: max(0, room(state))]
    staying = [name for name in survivors if name not in leaving]
    members = _ranked(state, staying, [*newcomers, *stand_ins])
    newcomers = [name for name in newcomers if name in members]
    shelved = tuple(name for name in (*staying, *stand_ins) if name not in members)
    if any(replicas.is_fresh(state, name) for name in newcomers):
        state.ending.is_cut_short = False
    for name in newcomers:
        del state.roster.waiting[name]
        processes.record_active(state, state.roster.members[name])
    for name in stand_ins:
        del state.roster.waiting[name]
    state.roster.waiting |= dict.fromkeys(shelved)
    state.generations.number += 1
    lost = () if state.generations.announced is None else tuple(state.generations.announced.lost)
    generation = Generation(
        number=state.generations.number,
        members=members,
        names=frozenset(members),
        at_boundary=at_boundary,
        opened_ns=state.now_ns,
        because=because,
        leaving=leaving,
        shelved=shelved,
    )
    if state.generations.announced is not None:
        _act(state, generation, lost, newcomers)
    state.generations.announced = generation
    state.launch.stalled_ns = None
    state.generations.vacated.clear()
    for name in state.roster.departed:
        del state.roster.members[name]
    state.roster.departed.clear()
    present = state.generations.formed
    announcement = Announced(
        number=state.generations.number,
        members=members,
        boundary_of=present.number if at_boundary and present is not None else 0,
        is_apart=any(makers.isdisjoint(members) for makers in state.generations.makers),
        faults=state.faults,
        replicas_most=max(state.generations.replicas_most, len(members) // state.policy.mesh.ranks),
        rebalances=state.policy.rebalances,
        audit_rate=state.audits.rate(state.policy.audit_rate, is_deterministic=_is_deterministic(state)),
    )
    _note_makers(state, generation.names)
    state.outbox.effects.append(ToMembers(members, announcement))
    if leaving or shelved:  # they change over, too, then wait to be ended or to come back
        state.outbox.effects.append(ToMembers((*leaving, *shelved), announcement))


def _note_makers(state: RunState, names: frozenset[str]) -> None:
    """Keep no set that contains another: members apart from the larger are apart from the smaller, too."""
    makers = state.generations.makers
    if not any(one <= names for one in makers):
        state.generations.makers = [*(one for one in makers if not names <= one), names]


def _is_deterministic(state: RunState) -> bool:
    """Whether the script lets Holdfast make kernels deterministic."""
    return state.launch.setup is not None and state.launch.setup[1].deterministic


def _ranked(state: RunState, survivors: Sequence[str], newcomers: Sequence[str]) -> tuple[str, ...]:
    """The members in rank order: by seat, but rank 0 stays the same process as long as it lives. In a sharded
    model, only members of whole replicas.
    """
    everyone = sorted(
        (*survivors, *newcomers), key=lambda name: state.roster.seat_of(state.roster.members[name])
    )
    if state.policy.mesh.ranks > 1:
        first = [name for name in survivors if state.roster.members[name].rail == 0]
        ranked = replicas.arrange(state, survivors, newcomers, _main(state, first, newcomers))
    else:
        main = _main(state, survivors, newcomers) or everyone[0]
        ranked = (main, *(name for name in everyone if name != main))
    for name in newcomers:
        if name in ranked and not state.roster.members[name].since_generation:  # set if it was on the shelf
            state.roster.members[name].since_generation = state.generations.number + 1
    return ranked


def _main(state: RunState, survivors: Sequence[str], newcomers: Sequence[str]) -> str:
    """Rank 0: the member that had it, or else the oldest. Empty at the start, when seats decide.

    Of several that joined together, the one with the lowest rank before counts as the oldest. After the last
    step the others may be done: then the member that repeats a lost rank 0's part is rank 0, too.
    """
    fresh = [name for name in newcomers if replicas.may_stand_in(state, name)]
    if state.ending.undone_main and fresh:
        lost, state.ending.undone_main = state.ending.undone_main, ""
        return next((name for name in fresh if state.roster.members[name].replaces == lost), fresh[0])
    if not survivors:
        return ""
    if state.generations.main in survivors:
        return state.generations.main
    return min(survivors, key=lambda name: state.roster.members[name].since_generation)


def room(state: RunState) -> int:
    """How many more members the lanes allow."""
    if state.launch.setup is None:
        return 0
    present = (
        0
        if state.generations.announced is None
        else len(state.generations.announced.members) - len(state.generations.announced.lost)
    )
    return state.launch.setup[1].lanes - present


def broke(state: RunState, generation: Generation) -> Trouble:
    """Handle a generation that cannot continue although no member was lost. Say why, but only once if the
    same happens again.
    """
    trouble, before = generation.trouble, state.progress.trouble
    if trouble is None:
        trouble = Trouble(member="a member", words="could not go on")
    if before is not None and gist(before.words) == gist(trouble.words):
        trouble.times, trouble.is_said = before.times + 1, before.is_said
    state.progress.trouble, state.progress.setback = trouble, str(trouble)
    state.generations.failed_ns = state.generations.failed_ns or generation.broken_ns
    if generation.formed_ns is None and not trouble.is_said:
        trouble.is_said = True
        state.outbox.say(f"generation {generation.number} did not form, because {trouble}", "trouble")
    return trouble


def trouble_of(message: Broken, *, is_before: bool) -> Trouble:
    told = " ".join(message.reason.split())[:WORDS_CHARS_MAX]
    words = f"could not {message.operation}: {told}"
    return Trouble(member=message.member, words=words, is_before=is_before)


def form(state: RunState, generation: Generation) -> None:
    """Form the generation after all members regrouped. It continues from the highest version among them."""
    version = max(generation.regrouped.values())
    if version > state.progress.step:
        _keep_late(state, generation, version)
    _record_loaded(state, generation, version)
    if version < state.progress.step or state.generations.formed is None:
        _go_back(state, generation, version)
    state.progress.step = version
    _record_opened(state, generation, version)
    _say_formed(state, generation, version)
    generation.formed_ns = state.now_ns
    if generation.trouble is not None and generation.trouble.is_before:
        generation.broken_ns = generation.trouble = None  # all members have left the previous generation
    state.generations.replicas_most = max(
        state.generations.replicas_most, len(generation.members) // state.policy.mesh.ranks
    )
    if state.generations.formed is not None:
        _note_hurt(state)
    state.generations.formed, state.generations.makers = generation, [generation.names]
    pacing.begin(state, generation)
    state.generations.lost_ns, state.generations.failed_ns, state.generations.causes = None, None, ()
    state.generations.fates.clear()
    state.progress.first_ns.clear()
    for step in sorted(generation.tally):
        keep(state, generation, step)


def keep(state: RunState, generation: Generation, step: int) -> None:
    """Count the step for the run if all members of the generation have committed it."""
    if generation.formed_ns is None or generation.tally.get(step, 0) < len(generation.members):
        return
    del generation.tally[step]
    reached_ns = generation.reached_ns.pop(step, state.now_ns)
    state.progress.first_ns.pop(step, None)
    if step <= state.progress.step:
        return
    since_ns = max(generation.formed_ns, state.progress.committed_ns or 0)
    at_ns = max(since_ns, reached_ns)
    _note_time(state, generation, step, since_ns, at_ns)
    state.progress.worked.note(step, at_ns - since_ns)
    state.progress.step, state.progress.committed_ns = step, at_ns
    if step > state.progress.step_max:  # repeated steps after a rollback are not progress
        state.progress.step_max, state.progress.setbacks, state.progress.setback, state.progress.complaint = (
            step,
            0,
            "",
            "",
        )
        state.progress.trouble, state.devices.failures = None, ()
        state.print_held()  # the run has survived it
    _record_committed(state, step, at_ns)
    pacing.note(state)
    if state.generations.hurt is not None:
        _say_recovered(state, generation, step, at_ns)


def _go_back(state: RunState, generation: Generation, version: int) -> None:
    """Go back to an earlier version because no member had the state, and say what that costs. For the very
    first generation this only sets the start. Members on the shelf may still have an earlier step.
    """
    if state.generations.formed is not None:
        steps = state.progress.step - version
        again = f"{steps} step{'s' * (steps > 1)} ({_duration(state.progress.worked.since_ns(version))})"
        what, where = "the state", "the start"
        if loaders := _loaders(state, generation, version):
            kind = "snapshot" if any(member.from_memory for member in loaders) else "checkpoint"
            where = f"the {kind} at step {version}"
        elif version:
            what, where = f"step {state.progress.step}", f"step {version}, the last that any member has"
        state.outbox.say(
            f"no member has {what}: back to {where}; {again} will be computed again", severity="trouble"
        )
    state.progress.worked.go_back(version)


def _note_hurt(state: RunState) -> None:
    """Note when recovery began. It lasts until all members have committed a step, which may take several
    generations.
    """
    if state.generations.hurt is None and state.generations.lost_ns is not None:
        state.generations.hurt = (state.generations.lost_ns, "loss")
    elif state.generations.hurt is None and state.generations.failed_ns is not None:
        state.generations.hurt = (state.generations.failed_ns, "failure")


def _say_recovered(state: RunState, generation: Generation, step: int, at_ns: int) -> None:
    assert state.generations.hurt is not None
    (since_ns, what), state.generations.hurt = state.generations.hurt, None
    count = len(generation.members)
    whose = "the only member" if count == 1 else f"all {count} members"
    state.outbox.say(
        f"step {step} committed by {whose}, {max(0, at_ns - since_ns) / 1e9:.2f} s after the {what}"
    )


def _duration(took_ns: int) -> str:
    took_s = took_ns / 1e9
    if took_s < 10:
        return f"{took_s:.1f} s"
    if took_s < 600:
        return f"{took_s:.0f} s"
    return f"{took_s / 60:.0f} min" if took_s < 36_000 else f"{took_s / 3600:.1f} h"


def _note_time(state: RunState, generation: Generation, step: int, since_ns: int, at_ns: int) -> None:
    """Note the time the step took and the time the script took before it. since_ns: the end of the step
    before.

    Members that wait for another one have a long step, and the late one has a short step. So the shortest
    counts as the step, and the rest of the time as the script's. The first step of a generation may include
    compilation and is noted separately.
    """
    shortest_ns = generation.took_ns.pop(step, None)
    is_fresh, generation.is_fresh = generation.is_fresh, False
    if state.hangs.working or state.hangs.resumed_ns > since_ns:
        return  # with declared work, or while a member was stopped
    took_ns = (at_ns - since_ns) // (step - state.progress.step)
    if is_fresh:
        state.observed.note("first", took_ns)
        return
    step_ns = took_ns if shortest_ns is None else min(shortest_ns, took_ns)
    state.observed.note("step", step_ns)
    state.observed.note("pause", took_ns - step_ns)


def _keep_late(state: RunState, generation: Generation, version: int) -> None:
    """Record a step that only some members had when others were lost and from which the new generation
    continues.

    It is dated back to its first report, but before the loss, because it was done by then. At the start of
    the run nothing is recorded if the step comes from a checkpoint.
    """
    loaded = [state.roster.members[name].loaded for name in generation.members]
    if state.generations.formed is None and any(
        known is not None and known[0] == version for known in loaded
    ):
        return
    lost_ns = state.now_ns if state.generations.lost_ns is None else state.generations.lost_ns
    first_ns = state.progress.first_ns.get(version, lost_ns)
    if version > state.progress.step_max:
        state.progress.step_max, state.progress.setbacks = version, 0
    for step in range(state.progress.step + 1, version):
        if step in state.progress.skipped:  # a replay needs these; otherwise the last step is enough
            _record_committed(state, step, min(first_ns, lost_ns - 1))
    _record_committed(state, version, min(first_ns, lost_ns - 1))


def _record_committed(state: RunState, step: int, at_ns: int) -> None:
    skipped = state.progress.skipped.pop(step, ())
    state.progress.lanes_skipped = len(skipped)
    state.outbox.record(StepCommitted(id="", occurred_ns=at_ns, step=step, skipped_lanes=skipped))


def _record_loaded(state: RunState, generation: Generation, version: int) -> None:
    """Record a loaded checkpoint if the generation continues from it rather than from a peer's state."""
    if state.generations.formed is not None and version >= state.progress.step:
        return
    loaders = _loaders(state, generation, version)
    if not loaders:
        return
    assert loaders[0].loaded is not None
    took_ns = [one.restore_ns for one in loaders if one.restore_ns is not None]
    state.outbox.record(
        CheckpointLoaded(
            id="",
            occurred_ns=state.now_ns,
            step=version,
            place=loaders[0].loaded[1],
            restore_ns=max(took_ns, default=None),
            is_snapshot=loaders[0].from_memory,
        )
    )


def _loaders(state: RunState, generation: Generation, version: int) -> list[Member]:
    """The members that loaded this version. Other versions do not matter here."""
    members = [state.roster.members[name] for name in generation.members]
    return [one for one in members if one.loaded is not None and one.loaded[0] == version]


def _record_opened(state: RunState, generation: Generation, version: int) -> None:
    opened_ns, began_ns = state.now_ns, generation.opened_ns
    if generation.at_boundary:
        # The previous generation lasted until its last commit; the change began there.
        opened_ns = began_ns = max(generation.opened_ns, state.progress.committed_ns or 0)
    replacing.hand_over(state, generation, opened_ns)
    state.observed.note("form", state.now_ns - began_ns)
    gpus = max(state.launch.gpus, state.roster.seats, len(generation.members))
    known = state.launch.setup if state.generations.formed is None else None
    setup = None if known is None else known[1]
    state.outbox.record(
        GenerationOpened(
            id="",
            occurred_ns=opened_ns,
            generation=generation.number,
            members=generation.members,
            gpus=gpus if gpus != state.launch.gpus else None,
            step=version,
            abort_ns=generation.parts_ns.get("abort"),
            group_ns=generation.parts_ns.get("group"),
            state_ns=generation.parts_ns.get("state"),
            reason=_reason(state, generation),
            lanes=None if setup is None else setup.lanes,
            seed=None if setup is None else setup.seed,
            model="" if setup is None or state.policy.mesh.sizes else setup.model,
            device="" if setup is None else setup.device,
            causes=state.generations.causes,
        )
    )
    state.launch.gpus = gpus


def _act(state: RunState, generation: Generation, lost: Sequence[str], newcomers: list[str]) -> None:
    """Work out and record the actions for losses and newcomers."""
    by = {state.roster.members[name].replaces: name for name in newcomers}
    generation.replaced = {old: by[old] for old in lost if old in by}
    generation.missing = tuple(old for old in lost if old not in by)
    generation.added = tuple(new for new in newcomers if new not in generation.replaced.values())
    for old, new in generation.replaced.items():
        _record_action(state, "replace", old, f"{new} was warm")
    for old in generation.missing:
        _record_action(state, "shrink", old, "no warm process was ready to take its place")
    for new in generation.added:
        _record_action(state, "grow", new, "it is ready")
    if state.generations.announced is not None and state.generations.announced.formed_ns is None:
        _carry_over(state.generations.announced, generation)


def _carry_over(before: Generation, generation: Generation) -> None:
    """Merge in the changes of the previous generation: it never formed, so they were not reported."""
    replaced, missing = dict(before.replaced), list(before.missing)
    added = [new for new in before.added if new not in generation.missing]
    whose = {new: old for old, new in before.replaced.items()}
    for old, new in generation.replaced.items():
        if old in added:
            added[added.index(old)] = new
        else:
            replaced[whose.get(old, old)] = new
    for old in generation.missing:
        replaced.pop(whose.get(old, old), None)
        if old not in before.added:
            missing.append(whose.get(old, old))
    generation.replaced, generation.missing = replaced, tuple(missing)
    generation.added = (*added, *generation.added)


def _changes(state: RunState, generation: Generation) -> str:
    """How it differs from the previous generation, and why."""
    parts = [f"{new} takes the place of {_fated(state, [old])}" for old, new in generation.replaced.items()]
    parts += [
        f"{new} takes the place of {old} ({replacing.reason_of(state, old)})"
        if new
        else f"without {old} (drained)"
        for old, new in generation.leaving.items()
    ]
    if generation.missing:
        parts.append(f"without {_fated(state, generation.missing)}")
    if generation.added:
        parts.append(f"with {', '.join(generation.added)}")
    if generation.shelved:
        parts.append(f"{', '.join(generation.shelved)} on the shelf until a replica is whole")
    changes = "; ".join(parts) or "the same members again"
    trouble = generation.because
    if trouble is None:
        return changes
    if trouble.is_said:
        return changes + (f", for the same reason ({trouble.times} times now)" if trouble.times > 1 else "")
    trouble.is_said = True
    return f"{changes}, because {trouble}"


def _reason(state: RunState, generation: Generation) -> str:
    """Why the generation was opened, for the record."""
    lost = [*generation.replaced, *generation.missing]
    parts = [str(generation.because)] if generation.because is not None else []
    if lost:
        parts.append(f"lost: {_fated(state, lost)}")
    for why, names in groupby(generation.leaving, partial(replacing.reason_of, state)):
        parts.append(f"replaced, {why}: {', '.join(names)}")
    if generation.added:
        parts.append(f"joined: {', '.join(generation.added)}")
    return "; ".join(parts)


def _fated(state: RunState, names: Iterable[str]) -> str:
    """The names, each group followed by the cause of the loss if it is known by now."""

    def fate(name: str) -> str:
        words = state.generations.fates.get(name, "")
        return words if len(words) <= FATE_CHARS_MAX else f"{words[: FATE_CHARS_MAX - 1]}…"

    grouped = [(words, ", ".join(group)) for words, group in groupby(names, fate)]
    return ", ".join(f"{named} ({words})" if words else named for words, named in grouped)


def _record_action(state: RunState, action: Action, subject: str, reason: str) -> None:
    causes = () if action == "grow" else (f"lost {subject}",)
    state.outbox.record(
        ActionTaken(
            id="", occurred_ns=state.now_ns, subject=subject, action=action, reason=reason, causes=causes
        )
    )


def _say_formed(state: RunState, generation: Generation, version: int) -> None:
    count = len(generation.members)
    members = many(count, "member")
    if state.generations.formed is None:
        nodes = len({state.roster.members[name].node for name in generation.members})
        where = many(nodes, "node")
        then = f"step {version + 1} is next"
        if state.progress.is_last:
            then = f"the checkpoint has all {version} steps"
        elif version:
            then += f", after the checkpoint of step {version}"
        state.outbox.say(f"generation {generation.number}: {members} on {where}; {then}")
        if doubt := _few_lanes(state, generation):
            state.outbox.say(doubt)
        return
    what = "the work after the last step" if state.progress.is_last else f"step {version + 1}"
    state.outbox.say(
        f"generation {generation.number}: {_changes(state, generation)}; {what} goes on with {members}"
        f"{_without_lanes(state, generation)}"
    )


def _few_lanes(state: RunState, generation: Generation) -> str:
    """A sentence on the cost of losing a replica, if that cost is needlessly high."""
    if state.launch.setup is None or state.launch.setup[1].on_shortage != "same bits":
        return ""
    mesh = state.policy.mesh
    return few_lanes(state.launch.setup[1].lanes, len(generation.members) // mesh.ranks, mesh.slices)


def _without_lanes(state: RunState, generation: Generation) -> str:
    """A phrase for the number of lanes that no member computes in its first step."""
    if state.launch.setup is None or state.progress.is_last:
        return ""
    if state.launch.setup[1].on_shortage == "same bits" and not state.policy.skipped:
        return ""
    lanes, slices = state.launch.setup[1].lanes, state.policy.mesh.slices
    dealt = {lane for name in generation.members for lane in state.roster.members[name].lanes}
    missing = lanes - len(dealt) * slices
    return f", without {missing} of {lanes} lanes" if missing > 0 else ""
