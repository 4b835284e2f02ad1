"""The stages of a run: from when on which reference was declared, and what was in a step.

A run may change what a step is: a batch that grows, longer sequences, another mix of data. Whoever declares
it (`reference.declared`) opens a stage, and what was declared holds from then on. The first word on a matter
holds for the time before it as well: nothing else is known of that.
"""

from collections.abc import Iterator

import msgspec

from holdfast.record.events import ReferenceDeclared

STAGES_MAX = 64
"""So many stages are kept apart; whoever declares more changes the last one."""

_WORK = ("tokens_per_step", "sequence_tokens", "batch_sequences")


class ReferenceStage(msgspec.Struct):
    """What was declared of the steps of one stage.

    from_ns, entry  when it began, and with which first execution of a step
    step_ns         a healthy step; None where it is to be estimated from the steps themselves
    step_gpus       on how many GPUs; None until the next step shows how many take part
    """

    from_ns: int = 0
    entry: int = 0
    step_ns: int | None = None
    step_gpus: int | None = None
    tokens_per_step: int | None = None
    sequence_tokens: int | None = None
    batch_sequences: int | None = None


class Stages:
    """All stages so far; the last one is the one that the run is in."""

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all = [ReferenceStage()]

    def __iter__(self) -> Iterator[ReferenceStage]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def current(self) -> ReferenceStage:
        return self._all[-1]

    def copy(self) -> "Stages":
        twin = Stages()
        twin._all = [msgspec.structs.replace(stage) for stage in self._all]
        return twin

    def number_at(self, entry: int) -> int:
        """The stage in which a step was first done, by the number of its entry."""
        return max(number for number, stage in enumerate(self._all) if stage.entry <= entry or not number)

    def declare(self, event: ReferenceDeclared, now_ns: int, entry: int) -> None:
        """Take what is said of a healthy step from now on. entry: of the next step that is done."""
        current = self.current
        given = {name: value for name in _WORK if (value := getattr(event, name)) is not None}
        is_other_work = any(getattr(current, name) not in (None, value) for name, value in given.items())
        is_other_step = event.step_ns is not None and current.step_ns not in (None, event.step_ns)
        if (is_other_work or is_other_step) and entry > current.entry and len(self._all) < STAGES_MAX:
            current = msgspec.structs.replace(current, from_ns=now_ns, entry=entry)
            self._all.append(current)
        for name, value in given.items():
            setattr(current, name, value)
        if event.step_ns is not None:
            current.step_ns, current.step_gpus = event.step_ns, event.gpus
        elif is_other_work:
            # A step of other work takes another time, which nobody declared.
            current.step_ns = current.step_gpus = None
