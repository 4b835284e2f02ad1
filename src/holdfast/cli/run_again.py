"""`holdfast run` under the name of an earlier run: tells what has changed since, before anything starts."""

from contextlib import suppress

from holdfast.cli.terminal import say
from holdfast.record.errors import HoldfastError, InputError
from holdfast.run.endpoint import going_runs
from holdfast.run.launcher import Order
from holdfast.run.started_with import changes, in_words, kept


def check_unchanged(order: Order, *, goes_on: bool) -> None:
    """Raise `InputError` if the run would go on from a checkpoint that another script or other arguments
    made, unless the user wants that (`goes_on`). Without a checkpoint, only tell.
    """
    run = order.policy.run
    before = kept(order.home, run)
    if before is None or run in going_runs(order.home):
        return
    found = in_words(changes(before, order.policy.started_with))
    if not found:
        return
    step = _newest_step(order)
    if step is None:
        say(f"the run {run} was started differently before: {found}; the record has both under this name")
        return
    if goes_on:
        say(f"goes on from the checkpoint of step {step} although it was started differently before: {found}")
        say("what the checkpoint holds stays as it was, such as the optimizer's learning rate")
        return
    more = " It was complete, so it trains on only if the script asks for more steps."
    raise InputError(
        f"The run {run!r} has a checkpoint of step {step} and was started differently before: {found}.",
        hint="To train anew, give this one another name with --run. To go on from that checkpoint all the "
        f"same, put --changed before the script.{more if before.was_complete else ''}",
    )


def _newest_step(order: Order) -> int | None:
    """The newest checkpoint of the run's own directories."""
    from holdfast.train.kept import kept_steps

    steps: list[int] = []
    for directory in order.own_checkpoints:
        with suppress(OSError, HoldfastError):  # if it cannot be read, the run says so
            steps += [one.step for one in kept_steps(directory) if one.is_complete]
    return max(steps, default=None)
