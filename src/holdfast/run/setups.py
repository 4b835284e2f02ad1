"""Check that members fit together: they must be built alike, and there must be a lane for each."""

from holdfast.run import ending, losses
from holdfast.run.happenings import ToMembers
from holdfast.run.state import Member, RunState
from holdfast.run.wire import Dismissed, Setup

_SETTINGS = ("lanes", "seed", "threads", "torch", "device", "deterministic", "on_shortage")


def fits(state: RunState, member: Member, setup: Setup) -> bool:
    """Whether the member is built like the first one.

    At the start it is unknown which of two is right, so the run ends; later only the newcomer is dismissed.
    """
    if state.launch.setup is None:
        state.launch.setup = (member.name, setup)
    twin = state.launch.setups.setdefault(member.rail, (member.name, setup))
    difference = _setting(state.launch.setup, (member.name, setup)) or _part(twin, (member.name, setup))
    if not difference:
        return True
    hint = "Every member must build the same model, with the same versions and settings."
    if state.generations.announced is None:
        ending.refuse(state, difference, hint)
        return False
    state.outbox.say(f"{member.name} cannot take part: {difference}", "trouble")
    state.outbox.effects.append(ToMembers((member.name,), Dismissed(sentence=difference, hint=hint)))
    member.is_stopped = True
    losses.lose(state, member, "built differently")
    return False


def has_lanes(state: RunState) -> bool:
    """Whether every member would have a lane; if not, the run ends here."""
    assert state.launch.setup is not None
    lanes, mesh = state.launch.setup[1].lanes, state.policy.mesh
    if state.policy.skipped_of not in (None, lanes):
        ending.refuse(
            state,
            f"The run to be repeated had {state.policy.skipped_of} lanes, this one has {lanes}.",
            "Give protect() as many lanes, or leave out --skip-lanes.",
        )
        return False
    if lanes % mesh.slices:
        ending.refuse(
            state,
            f"{lanes} lanes cannot be cut into {mesh.slices} slices each.",
            "Give protect() a number of lanes that is a multiple of --shard.",
        )
        return False
    if state.roster.seats // mesh.ranks <= lanes // mesh.slices:
        return True
    ending.refuse(
        state,
        f"{state.roster.seats} members cannot share {lanes} lanes.",
        "Give protect() at least as many lanes as there are members, or start fewer members.",
    )
    return False


def _setting(first: tuple[str, Setup], second: tuple[str, Setup]) -> str:
    """The first setting in which two members differ, as a sentence; empty if there is none."""
    (one, a), (other, b) = first, second
    for setting in _SETTINGS:
        left, right = getattr(a, setting), getattr(b, setting)
        if left != right:
            return f"{one} has {setting}={left} and {other} has {setting}={right}."
    return ""


def _part(first: tuple[str, Setup], second: tuple[str, Setup]) -> str:
    """The first difference between the models of two members of one rail, as a sentence; empty if none."""
    (one, a), (other, b) = first, second
    if a.model == b.model:
        return ""
    parts = [part for part in {**a.parts, **b.parts} if a.parts.get(part) != b.parts.get(part)]
    where = f" in {parts[0]}" if parts else ""
    return f"The model of {other} differs from that of {one}{where}."
