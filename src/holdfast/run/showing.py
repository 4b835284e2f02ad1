"""How a warm process learns that its agent prints its output from now on: the end of a pipe between the two.

Its output is not shown before it joins. The agent is told to show it by the coordinator, as the process is
told to go on, so it might print first, and its first lines would be lost.
"""

import os
import select
from collections.abc import MutableMapping
from contextlib import suppress

VARIABLE = "HOLDFAST_SHOWN_FD"
SHOWN_S = 5.0
"""The longest to wait for the agent. It is at most stopped; then lines may be lost, but the run goes on."""


def await_shown(environment: MutableMapping[str, str]) -> None:
    """Wait until this process's output is shown, if it was not from the start."""
    text = environment.pop(VARIABLE, "")
    if not text.isdecimal():
        return
    with suppress(OSError):
        waiting = select.poll()
        waiting.register(int(text), select.POLLIN)
        waiting.poll(1_000 * SHOWN_S)
        os.close(int(text))
