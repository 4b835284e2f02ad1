"""Explain why members are stuck, from what their agents saw of them in several looks.

Pure. It considers what a process did between two looks: whether it used the processor, moved a byte, or left
the function it was in. And it considers what the process waits for, by its stacks and the kernel.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from holdfast.run.stacks import Stack, StackFrame, own_frame
from holdfast.run.stages import IN_STEP
from holdfast.run.wire import Located, Stage

IDLE_SHARE = 0.1
"""A process that uses less than this share of a processor is waiting. Polling every 10 ms uses a fiftieth."""
LOOP_SHARE = 0.25
"""As a share of the time that a step may take: a process that had less processor time than this may only be
slow for lack of it."""
MOVED_BYTES_MAX = 64 << 10
"""A process that reads or writes more than this during the looks makes progress, however slow."""
LOOKS_MIN = 3
"""With fewer looks it cannot be told whether anything moves."""
STACK_LINES_MAX = 12
"""How many lines of a stack are recorded."""

HangKind = Literal["loop", "lock", "data", "members", "answer", "device", "busy", "idle", "unknown"]
FAULTS: dict[HangKind, str] = {
    "loop": "endless loop",
    "lock": "deadlock on a lock",
    "data": "data loader stuck",
    "members": "deadlock between members",
    "answer": "no answer to a member",
    "device": "stuck in a device or file system",
    "busy": "no progress",
    "idle": "no progress",
    "unknown": "no progress",
}
"""The name of each kind in the record."""

_WAITS = {
    "lock": "for a lock",
    "connection": "for data from a connection",
    "pipe": "for data from a pipe",
    "poll": "for a connection or a pipe",
    "sleep": "asleep",
    "process": "for a process that it has started",
    "": "in the kernel",
}
_TALKING = (
    "/torch/distributed/",
    "/socket.py",
    "/ssl.py",
    "/multiprocessing/",
    "/asyncio/",
    "/http/client.py",
)
_MEETING = ("/torch/distributed/", "/torch/nn/parallel/", "/torch/autograd/")
"""Libraries in which a script waits for other ranks. Autograd is one because DDP exchanges gradients in
`backward()`."""
_LOADING = ("/torch/utils/data/", "/holdfast/train/data.py")
_LOCKING = ("with ", "async with ")
"""How lines begin that take a lock. Lines that call `acquire` do so, too."""


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What the looks at a member have shown since its stall was noticed. is_fixed: it was in the same
    function each time, called from the same lines. ran: how often its main thread was running or ready to
    run. others_ran: the same for its other threads and child processes. woken: how often its wait ended and
    it waited again.
    """

    first_ns: int
    first: Located
    last_ns: int
    last: Located
    looks: int = 1
    is_fixed: bool = True
    ran: int = 0
    others_ran: int = 0
    woken: int = 0

    @classmethod
    def begun(cls, message: Located, now_ns: int) -> "Watched":
        return cls(first_ns=now_ns, first=message, last_ns=now_ns, last=message)._counted(message)

    def _counted(self, message: Located) -> "Watched":
        seen = message.seen
        if seen is None:
            return self
        others_ran = self.others_ran + seen.runs_threads
        return msgspec.structs.replace(self, ran=self.ran + (seen.state == "R"), others_ran=others_ran)

    def then(self, message: Located, now_ns: int) -> "Watched":
        is_fixed = self.is_fixed and _is_same_call(self.last.stacks, message.stacks)
        return msgspec.structs.replace(
            self,
            last_ns=now_ns,
            last=message,
            looks=self.looks + 1,
            is_fixed=is_fixed,
            woken=self.woken + message.was_woken,
        )._counted(message)

    @property
    def cpu_s(self) -> float:
        if self.first.seen is None or self.last.seen is None:
            return 0.0
        return self.last.seen.cpu_s - self.first.seen.cpu_s

    @property
    def computes(self) -> bool:
        """Whether it computes, or would if it had a processor: a busy machine may give it almost no time."""
        is_ready = self.ran > 0 or 2 * self.others_ran > self.looks
        return is_ready or self.cpu_s > IDLE_SHARE * (self.last_ns - self.first_ns) / 1e9

    @property
    def moves_data(self) -> bool:
        if self.first.seen is None or self.last.seen is None:
            return False
        return self.last.seen.moved_bytes - self.first.seen.moved_bytes > MOVED_BYTES_MAX

    @property
    def is_idle(self) -> bool:
        if self.first.seen is None or self.last.seen is None:
            return False
        return not self.computes and not self.moves_data

    @property
    def has_got_further(self) -> bool:
        """Whether it visibly made progress. A script that computes in one function may progress without
        showing it. If the stack cannot be read, any activity counts as progress.
        """
        if not self.main:
            return not self.is_idle or self.woken > 0
        return self.moves_data or not self.is_fixed or (self.meets_others and self.woken > 0)

    @property
    def meets_others(self) -> bool:
        """Whether it waits for other ranks, in torch."""
        return not self.computes and _is_in(self.main, _MEETING) and not _is_in(self.main, _LOADING)

    @property
    def main(self) -> Stack:
        return self.last.stacks[0] if self.last.stacks else ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The culprits and the kind of hang. sentence: about all culprits. is_certain: there is no need to wait
    longer than a step usually takes. is_proven: there is no need to wait at all, because they wait for each
    other.
    """

    kind: HangKind = "unknown"
    culprits: tuple[str, ...] = ()
    sentence: str = ""
    is_certain: bool = False
    is_proven: bool = False


def explain(
    watched: Mapping[str, Watched], stages: Mapping[str, Stage], suspects: Sequence[str], patience_s: float
) -> Explanation:
    """Explain why the suspects are stuck. patience_s: how long a step may take before they are ended."""
    known = {name: watched[name] for name in suspects if name in watched}
    kinds = {name: _kind(one, stages[name]) for name, one in known.items()}
    if talking := _waiting_for_each_other(known, kinds):
        return talking
    # A member that waits for an answer may wait for another suspect that gives none.
    culprits = [name for name, kind in kinds.items() if kind not in ("answer", "unknown")] or list(kinds)
    if not culprits:
        return Explanation()
    kind = kinds[culprits[0]]
    sentences = [f"{name} {_sentence(known[name], kinds[name])}" for name in culprits]
    return Explanation(
        kind=kind,
        culprits=tuple(culprits),
        sentence="; ".join(sentences) if kind != "unknown" else "",
        is_certain=all(_is_certain(known[name], kinds[name], stages[name], patience_s) for name in culprits),
        is_proven=all(kinds[name] == "lock" and bool(_locked_threads(known[name])) for name in culprits),
    )


def account(watched: Mapping[str, Watched], stages: Mapping[str, Stage], explanation: Explanation) -> str:
    """The full text for the record: the sentence, the culprits' stacks, and where all other members are."""
    lines = [explanation.sentence] if explanation.sentence else []
    for name in explanation.culprits:
        for number, stack in enumerate(watched[name].last.stacks):
            lines.append(f"{name}, {'main thread' if number == 0 else f'thread {number}'}:")
            lines += [f"  {frame}" for frame in stack[:STACK_LINES_MAX]]
    others = [name for name in watched if name not in explanation.culprits]
    lines += [f"{name}: {stages[name]}, at {watched[name].last.place or '?'}" for name in others]
    return "\n".join(lines)


def _kind(one: Watched, stage: Stage) -> HangKind:
    seen = one.last.seen
    if seen is None or one.looks < LOOKS_MIN:
        return "unknown"
    if not one.is_idle:
        is_own = bool(one.main) and one.main[0].is_own
        return "loop" if one.computes and one.is_fixed and is_own else "busy"
    if seen.state == "D":
        return "device"
    if not one.is_fixed:
        return "idle"
    if seen.waits_for == "lock" and _locked_threads(one):
        return "lock"
    if stage == "data" or _is_in(one.main, _LOADING):
        return "data"
    if _is_in(one.main, _TALKING) or seen.waits_for in ("connection", "pipe", "poll"):
        return "answer"
    return "lock" if seen.waits_for == "lock" else "idle"


def _is_certain(one: Watched, kind: HangKind, stage: Stage, patience_s: float) -> bool:
    """Whether a member is certainly stuck. Within a step, the usual time of members is known. Between steps,
    a script may take any time, and only threads that wait for each other's locks are certain to wait forever.
    """
    if kind == "lock" and _locked_threads(one):
        return True
    if stage not in IN_STEP:
        return False
    if kind == "loop":
        return one.cpu_s >= LOOP_SHARE * patience_s
    return kind in ("lock", "data", "answer") or (kind == "idle" and one.is_fixed)


def _waiting_for_each_other(
    known: Mapping[str, Watched], kinds: Mapping[str, HangKind]
) -> Explanation | None:
    """Members that wait for answers which no other member could give. The kernel shows both ends of a
    connection: if both are waiting members, the deadlock is proven.
    """
    waiting = [name for name, kind in kinds.items() if kind == "answer"]
    ends = {name: seen.ends for name in waiting if (seen := known[name].last.seen) and seen.ends}
    pair = next(
        ((a, b) for a, b in combinations(ends, 2) if ends[a] == (ends[b][1], ends[b][0])),
        None,
    )
    if pair is None and (len(waiting) < 2 or len(waiting) < len(kinds)):
        return None
    culprits = pair or tuple(waiting)
    places = [f"{name} waits {_where(known[name])}" for name in culprits]
    how = "each other" if pair else "answers that no other member can give"
    sentence = f"{' and '.join(culprits)} wait for {how}: {', '.join(places)}"
    return Explanation(
        kind="members", culprits=culprits, sentence=sentence, is_certain=True, is_proven=pair is not None
    )


def _sentence(one: Watched, kind: HangKind) -> str:
    where = _where(one)
    match kind:
        case "loop":
            return f"computes {where} and makes no progress: an endless loop, or a call that never returns"
        case "busy":
            return f"is at work {where}"
        case "data":
            return f"waits for its data loader, which does not return: it waits {_waits(one)} {where}"
        case "lock":
            threads = _locked_threads(one) or _other_threads(one)
            others = "; ".join(f"another thread waits {_at(frame)}" for frame in threads)
            known = f": {others}" if others else ""
            return f"waits for a lock that is never released, {where}{known}"
        case "answer":
            seen = one.last.seen
            whom = f" by {seen.ends[1]}" if seen is not None and seen.ends is not None else ""
            return f"waits {_waits(one)}, which is not sent{whom}, {where}"
        case "device":
            channel = "" if one.last.seen is None else one.last.seen.channel
            return f"waits in the kernel for a device or file system ({channel or 'state D'}), {where}"
        case "idle":
            return f"waits {_waits(one)}, {where}"
        case "members" | "unknown":
            return f"is {where}"


def meeting(one: Watched) -> str:
    """The call in which it waits for other ranks, such as `all_reduce() at train.py:20`."""
    depth = next((depth for depth, frame in enumerate(one.main) if frame.is_own), len(one.main))
    calls = [frame.function for frame in reversed(one.main[:depth]) if frame.function != "wrapper"]
    frame = own_frame(one.main)
    return f"{calls[0] if calls else 'a call'}() at {frame.place if frame is not None else '?'}"


def _waits(one: Watched) -> str:
    return _WAITS[one.last.seen.waits_for if one.last.seen is not None else ""]


def _where(one: Watched) -> str:
    """The script's innermost line, such as "at train.py:30 in load(): `sock.recv(1)`", and the library
    function it called.
    """
    frame = own_frame(one.main)
    if frame is None:
        return "at an unknown place"
    inside = one.main[0]
    return _at(frame) + ("" if inside is frame else f", in {inside.function}() of {inside.place}")


def _at(frame: StackFrame) -> str:
    source = f": `{frame.source}`" if frame.source else ""
    function = f" in {frame.function}()" if frame.function and not frame.function.startswith("<") else ""
    return f"at {frame.place}{function}{source}"


def _locked_threads(one: Watched) -> list[StackFrame]:
    """Other threads that are taking a lock, if the main thread is taking one, too."""
    main = own_frame(one.main)
    if main is None or not _takes_lock(main):
        return []
    return [frame for frame in _other_threads(one) if _takes_lock(frame)]


def _other_threads(one: Watched) -> list[StackFrame]:
    """The frames of the script's other threads in its own code."""
    frames = [own_frame(stack) for stack in one.last.stacks[1:]]
    return [frame for frame in frames if frame is not None and frame.is_own]


def _takes_lock(frame: StackFrame) -> bool:
    return frame.source.startswith(_LOCKING) or ".acquire(" in frame.source


def _is_in(stack: Stack, parts: tuple[str, ...]) -> bool:
    """Whether the script's innermost line called into such a library."""
    for frame in stack:
        if any(part in frame.path for part in parts):
            return True
        if frame.is_own:
            return False
    return False


def _is_same_call(before: Sequence[Stack], after: Sequence[Stack]) -> bool:
    if not before or not after:
        return False
    (one, *callers), (other, *others) = before[0], after[0]
    return (one.path, one.function) == (other.path, other.function) and callers == others
