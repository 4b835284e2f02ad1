"""What endangered a run: protection that did not work, so that a failure would have cost more than usual.

Checkpoints that could not be saved or used, snapshots, copies in further places, proofs that failed, and what
the run's own processes recorded about themselves. None of it changes the accounts.
"""

from collections.abc import Iterator, Mapping

import msgspec

from holdfast import wording
from holdfast.ledger.copies import copied
from holdfast.record.events import (
    CheckpointBegun,
    CheckpointCopied,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointVerified,
    RunEndangered,
)

_MEANT = {
    "record": "The run's record could not be written",
    "successor": "The coordinator had no successor: had it died, the run would have ended",
    "connections": "The coordinator could not accept new connections: no member could have joined",
}
"""What the run's own processes say about themselves."""
GOOD_KEPT_MAX = 64
"""Good checkpoints that are remembered, in case later ones prove damaged."""


class Danger(msgspec.Struct, frozen=True, kw_only=True):
    """Protection that did not work: what (save, restore, snapshot, copy or proof of checkpoints; record,
    successor, connections), where, how often, when, since when it works again if it does, and a sentence.
    """

    what: str
    place: str
    times: int
    from_ns: int
    to_ns: int
    over_ns: int | None
    reason: str
    sentence: str


class Weakness(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of protection at one place, and how often it failed; what failed again for the same checkpoint
    counts once. over_ns: since when it works again. step: the last it failed for.
    """

    times: int
    from_ns: int
    to_ns: int
    steps: tuple[int, int] | None = None
    reason: str = ""
    over_ns: int | None = None
    step: int | None = None


class Dangers:
    """All of them so far, by kind and place.

    _begun: the steps of checkpoints whose writing began and did not succeed. _good: those of the last ones
    that were saved and have not proved damaged.
    """

    __slots__ = ("_begun", "_found", "_good")

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Weakness] = {}
        self._begun: frozenset[int] = frozenset()
        self._good: tuple[int, ...] = ()

    def copy(self) -> "Dangers":
        return copied(self, "_found")

    def begun(self, event: CheckpointBegun) -> None:
        self._begun |= {event.step}

    def failed(self, event: CheckpointFailed) -> None:
        now_ns, step = event.occurred_ns, event.step
        if event.is_snapshot:
            self._note("snapshot", event.place, now_ns, event.reason, step)
        elif step in self._begun:
            self._note("save", "", now_ns, event.reason, step)
        else:
            self._leave_out(step)
            self._note("restore", "", now_ns, event.reason, step)

    def saved(self, event: CheckpointSaved) -> None:
        self._begun -= {event.step}
        self._leave_out(event.step)
        self._good = (*self._good, event.step)[-GOOD_KEPT_MAX:]
        self._end("save", "", event.occurred_ns)

    def loaded(self, event: CheckpointLoaded) -> None:
        if event.is_snapshot:
            for kind, place in self._found:
                if kind == "snapshot":
                    self._end(kind, place, event.occurred_ns)

    def _leave_out(self, step: int) -> None:
        self._good = tuple(one for one in self._good if one != step)

    def copied(self, event: CheckpointCopied) -> None:
        if event.reason:
            self._note("copy", event.place, event.occurred_ns, event.reason, event.step)
        else:
            self._end("copy", event.place, event.occurred_ns)

    def verified(self, event: CheckpointVerified) -> None:
        if event.sound:
            self._end("proof", "", event.occurred_ns)
        else:
            self._leave_out(event.step)
            self._note("proof", "", event.occurred_ns, event.reason, event.step)

    def endangered(self, event: RunEndangered) -> None:
        if event.over:
            self._end(event.what, "", event.occurred_ns, event.reason)
        else:
            self._note(event.what, "", event.occurred_ns, event.reason)

    def _note(self, kind: str, place: str, now_ns: int, reason: str, step: int | None = None) -> None:
        before = self._found.get((kind, place))
        steps = None if step is None else (step, step)
        if before is not None and before.steps is not None and step is not None:
            steps = min(before.steps[0], step), max(before.steps[1], step)
        is_again = kind != "copy" and before is not None and step is not None and before.step == step
        self._found[kind, place] = Weakness(
            times=1 if before is None else before.times + (not is_again),
            from_ns=now_ns if before is None else before.from_ns,
            to_ns=now_ns,
            steps=steps,
            reason=reason,
            step=step,
        )

    def _end(self, kind: str, place: str, now_ns: int, more: str = "") -> None:
        found = self._found.get((kind, place))
        if found is not None and found.over_ns is None:
            reason = "; ".join(part for part in (found.reason, more) if part)
            self._found[kind, place] = msgspec.structs.replace(found, over_ns=now_ns, reason=reason)

    @property
    def saves_failed(self) -> int:
        found = self._found.get(("save", ""))
        return 0 if found is None else found.times

    def told(
        self, copies: Mapping[str, tuple[int | None, str]], *, is_complete: bool = False
    ) -> Iterator[Danger]:
        """Each of them with a sentence; those that are not over come first. copies: by place, the newest step
        there. is_complete: the run is, so nothing is at stake any more.
        """
        found = sorted(self._found.items(), key=lambda one: (one[1].over_ns is not None, one[1].from_ns))
        for (kind, place), one in found:
            good = max(self._good, default=None)
            newest = copies.get(place, (None, ""))[0] if kind == "copy" else good
            yield Danger(
                what=kind,
                place=place,
                times=one.times,
                from_ns=one.from_ns,
                to_ns=one.to_ns,
                over_ns=one.over_ns,
                reason=one.reason,
                sentence=_sentence(kind, place, one, newest, is_complete=is_complete),
            )


def _sentence(kind: str, place: str, one: Weakness, newest: int | None, *, is_complete: bool) -> str:
    said = f"{_what(kind, place, one)} ({_when(one)}). {_sentence_of(one.reason)}"
    if one.over_ns is not None:
        return f"{said} It works again since {wording.stamp(one.over_ns)}."
    if is_complete:
        return said.strip()
    match kind:
        case "save" if newest is None:
            way = "There is no good checkpoint, so the run can only begin again at its start."
        case "save" | "restore" | "proof" if newest is not None:
            way = f"The newest good one is of step {newest:,}."
        case "snapshot":
            way = "If all members are lost, the run goes back to a checkpoint."
        case "copy":
            way = "Nothing is there." if newest is None else f"The newest there is of step {newest:,}."
        case _:
            way = ""
    return f"{said} {way}".strip()


def _what(kind: str, place: str, one: Weakness) -> str:
    match kind:
        case "save":
            return f"{wording.many(one.times, 'checkpoint')} could not be saved"
        case "restore":
            return f"{wording.many(one.times, 'checkpoint')} could not be used"
        case "snapshot":
            return f"Snapshots at {place} failed" if place else "Snapshots in memory failed"
        case "copy":
            return f"Copies of checkpoints to {place} failed {wording.times(one.times)}"
        case "proof":
            return f"{wording.many(one.times, 'checkpoint')} did not give what the run had computed"
        case _:
            return _MEANT.get(kind, kind)


def _when(one: Weakness) -> str:
    when = wording.stamp(one.from_ns) if one.from_ns == one.to_ns else wording.span(one.from_ns, one.to_ns)
    if one.steps is None or not one.steps[1]:
        return when
    first, last = one.steps
    return f"step {first:,}, {when}" if first == last else f"steps {first:,} to {last:,}, {when}"


def _sentence_of(reason: str) -> str:
    """The reason as a sentence, or nothing."""
    said = wording.opening(reason.strip())
    return said if not said or said.endswith((".", "!", "?")) else f"{said}."
