"""Texts that the board and the plain lines of a live run share."""

from holdfast import wording
from holdfast.run.status import Status


def progress(status: Status) -> str:
    """The progress of the run in one line."""
    parts = [f"step {status.step:,}" + (f" of {status.steps_total:,}" if status.steps_total else "")]
    if status.loss is not None:
        parts.append(f"loss {wording.number(status.loss, 4)}")
    if status.rate:
        parts.append(f"{wording.number(status.rate, 3)} steps/s")
    return ", ".join((*parts, strength(status), f"generation {status.generation}"))


def strength(status: Status) -> str:
    """How many members take part."""
    members = [member for member in status.members if member.alive and member.lanes]
    nodes = {member.node for member in members}
    return f"{wording.many(len(members), 'member')} on {wording.many(len(nodes), 'node')}"


def since(start_ns: int, now_ns: int) -> str:
    """A stretch of time as a stopwatch shows it."""
    minutes, seconds = divmod(max(0, now_ns - start_ns) // 10**9, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
