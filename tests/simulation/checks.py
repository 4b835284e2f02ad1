"""What must be true of every schedule. Each check reads the history and says what is wrong, in a sentence."""

from collections.abc import Callable, Iterator, Sequence

from tests.simulation.history import (
    Announcing,
    Began,
    BeganAgain,
    Doubled,
    Ended,
    GivenUp,
    Heeded,
    Kept,
    Lingering,
    Note,
    Opened,
    Recorded,
    Returned,
    Summed,
)
from tests.simulation.setting import Setting

Check = Callable[[Sequence[Note], Setting, "Outcome"], Iterator[str]]


class Outcome:
    """What the checks need to know besides the history. kinds: of faults that struck. away: nodes that have
    not returned.
    """

    def __init__(self, kinds: Sequence[str], away: Sequence[str]) -> None:
        self.kinds = frozenset(kinds)
        self.away = tuple(away)


def one_content(notes: Sequence[Note], setting: Setting, outcome: Outcome) -> Iterator[str]:
    """A step has the same content for every member and generation that commits it."""
    contents: dict[tuple[int, int], Kept | Began] = {}
    for note in notes:
        if isinstance(note, Kept | Began):
            step = note.step if isinstance(note, Kept) else note.version
            first = contents.setdefault((note.history, step), note)
            if first.content != note.content:
                yield (
                    f"step {step} is not the same on {first.member} (generation {first.generation}) and on "
                    f"{note.member} (generation {note.generation})"
                )


def one_membership(notes: Sequence[Note], setting: Setting, outcome: Outcome) -> Iterator[str]:
    """Two memberships never both commit a step. With replicas of several members, one on the shelf may have
    reported a step too late. It is ended then, and the content is the same.
    """
    for note in notes:
        if isinstance(note, Doubled) and setting.policy.mesh.ranks == 1:
            yield (
                f"generation {note.generation} committed step {note.step}, which {note.other} has from "
                f"generation {note.before}, and is not in it"
            )


def every_lane_once(notes: Sequence[Note], setting: Setting, outcome: Outcome) -> Iterator[str]:
    """A sum has each lane exactly once, from the same state, except lanes that may be skipped."""
    lanes = setting.lanes // setting.policy.mesh.slices
    for note in notes:
        if not isinstance(note, Summed):
            continue
        where = f"step {note.step} in generation {note.generation}"
        given = sorted(lane for one in note.lanes for lane in one)
        if given != [lane for lane in range(lanes) if lane not in note.without]:
            yield f"{where} has the lanes {given} of {lanes}, and {list(note.without)} were to be skipped"
        if note.without and not setting.is_smaller:
            yield f"{where} skips lanes {list(note.without)}"
        if len(set(note.contents)) > 1:
            yield f"{where} adds up gradients of different states"


def nothing_lost(notes: Sequence[Note], setting: Setting, outcome: Outcome) -> Iterator[str]:
    """No step of a counted member is lost, and no member goes back without need."""
    for note in notes:
        if isinstance(note, Returned) and note.holders:
            yield (
                f"generation {note.generation} goes back to step {note.version}, though "
                f"{', '.join(note.holders)} count and have the state"
            )
        elif isinstance(note, BeganAgain) and note.is_needless:
            yield "all members begin again for want of a part, though living members have every part"


def steps_in_order(notes: Sequence[Note], setting: Setting, outcome: Outcome) -> Iterator[str]:
    """The record is consistent: steps one by one, from where the generation opened. One of members on the
    shelf may open a step earlier, if the members that had the last one are gone.
    """
    reached = 0
    returned: int | None = None  # where a generation that was not formed may have gone back to
    for note in notes:
        if isinstance(note, Returned):
            returned = note.version
        elif isinstance(note, Recorded):
            if note.step <= reached:
                yield f"step {note.step} is recorded again after step {reached}"
            if note.lacking:
                names = ", ".join(note.lacking)
                yield f"step {note.step} is recorded as committed, but {names} does not have it"
            reached = note.step
        elif isinstance(note, Opened):
            is_shelf = returned is None and note.is_apart and not note.holders and note.step == reached - 1
            if note.step < reached and not is_shelf and (returned is None or note.step < returned):
                yield f"generation {note.generation} opens at step {note.step} after step {reached}"
            if note.lacking:
                yield f"generation {note.generation} is recorded as formed without {', '.join(note.lacking)}"
            reached, returned = note.step, None


def sound_generations(notes: Sequence[Note], setting: Setting, outcome: Outcome) -> Iterator[str]:
    """Ranks are unique and dense, numbers rise, no member that was given up is in a generation, and no
    survivor is left out.
    """
    before = 0
    for note in notes:
        if not isinstance(note, Announcing):
            continue
        if note.generation <= before:
            yield f"generation {note.generation} was announced after generation {before}"
        before = note.generation
        members, ranks = note.members, setting.policy.mesh.ranks
        if not members or len(set(members)) != len(members) or len(members) % ranks:
            yield f"generation {note.generation} has the members {', '.join(members)}"
        if note.given_up:
            yield f"generation {note.generation} has {', '.join(note.given_up)}, which was given up"
        if note.left_out:
            yield f"generation {note.generation} leaves out {', '.join(note.left_out)}, which lives"


def fences_hold(notes: Sequence[Note], setting: Setting, outcome: Outcome) -> Iterator[str]:
    """Messages of a member that was given up change nothing, and it is ended."""
    for note in notes:
        if isinstance(note, Heeded):
            yield f"{note.member} was given up, and its {note.what} changed something"
        elif isinstance(note, Lingering):
            yield f"{note.member} was given up, and lives on"


_REASONS: tuple[tuple[str, frozenset[str]], ...] = (
    ("after the training was complete", frozenset()),
    ("failures and not one commit in between", frozenset()),
    ("the script failed", frozenset({"raise"})),
    ("the script's mistake", frozenset({"device"})),
)
"""Reasons with which a run may fail, and the faults that each requires; at least one fault in any case."""


def ends_once(notes: Sequence[Note], setting: Setting, outcome: Outcome) -> Iterator[str]:
    """The run ends once and as it should: faults stop, and then it continues to its last step."""
    ends = [note for note in notes if isinstance(note, Ended)]
    if len(ends) != 1:
        yield "the run never ends" if not ends else f"the run ends {len(ends)} times"
        return
    end = ends[0]
    if end.outcome == "completed":
        last = max((note.step for note in notes if isinstance(note, Kept)), default=0)
        if last != setting.steps:
            yield f"the run is complete at step {last} of {setting.steps}"
    elif end.outcome == "stopped":
        if "stop" not in outcome.kinds:
            yield f"the run was stopped without a request: {end.reason}"
    elif not _may_fail(end.reason, setting, outcome):
        yield f"the run fails without need: {end.reason}"


def _may_fail(reason: str, setting: Setting, outcome: Outcome) -> bool:
    if reason.startswith(("waited", "only")):
        has_nodes = setting.nodes - len(outcome.away) >= setting.policy.nodes_min
        return not has_nodes or not outcome.kinds.isdisjoint(("drain", "hang", "hold up", "slow"))
    return any(words in reason and kinds <= outcome.kinds and outcome.kinds for words, kinds in _REASONS)


_MUTE = frozenset({"power", "partition", "pause", "agent pause", "hang", "slow", "lag", "hold up", "deaf"})
"""Faults that keep a member from a generation without an end that anybody sees."""


def none_stays_away(notes: Sequence[Note], setting: Setting, outcome: Outcome) -> Iterator[str]:
    """No healthy member stays away from a generation until it is given up."""
    for note in notes:
        if isinstance(note, GivenUp) and outcome.kinds.isdisjoint(_MUTE):
            yield f"{note.member} did not regroup in time, and was healthy"


CHECKS: tuple[Check, ...] = (
    one_content,
    one_membership,
    every_lane_once,
    nothing_lost,
    steps_in_order,
    sound_generations,
    fences_hold,
    ends_once,
    none_stays_away,
)


def violations(notes: Sequence[Note], setting: Setting, outcome: Outcome) -> list[str]:
    return [told for check in CHECKS for told in check(notes, setting, outcome)]
