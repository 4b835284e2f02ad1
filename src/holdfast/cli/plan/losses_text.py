"""What replicas of several GPUs survive, in the terminal: a line for each part that may be lost."""

from collections.abc import Sequence

from holdfast.economics.sizing.coverage import ReplicaLoss


def loss_rows(losses: Sequence[ReplicaLoss]) -> list[tuple[str, str]]:
    """The lost part, and what the run does about it."""
    return [(f"{one.lost} lost", _said(one)) for one in losses]


def _said(loss: ReplicaLoss) -> str:
    after = f", {loss.after_s:.0f} s beyond a step" if loss.after_s is not None else ""
    longer = 100 * ((loss.slowdown or 1) - 1)
    slower = f"; a step then takes {longer:.1f} % longer" if longer else ""
    return f"{loss.outcome}: {loss.sentence}{after}{slower}"
