"""A worker's Python runs this before its script, so that the agent can ask where the process is.

An agent puts this directory at the front of PYTHONPATH. This file removes it again, so that processes started
by the script run as without Holdfast, and then runs the user's own `sitecustomize`, if there is one. It needs
only the standard library, because the script's Python may not be Holdfast's.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress

SIGNAL = signal.SIGRTMIN + 10
"""An unused signal: glibc uses the first two real-time signals, and programs that need one take the next."""
SIGNAL_ALL = SIGNAL + 1
"""Asks for the stacks of all threads. It is not sent to a process with a running thread, because that
thread's frames change meanwhile."""
VARIABLE = "HOLDFAST_STACK_FD"
FILE_NAME = "holdfast-stack"
PATH = "PYTHONPATH"


def register(environment: MutableMapping[str, str]) -> None:
    """Let the agent ask where this process is, if the agent has given it the file for that."""
    given = environment.pop(VARIABLE, "")
    if not given.isdecimal():
        return
    with suppress(OSError):
        # A program between the agent and this one may have closed it and opened another file in its place.
        if FILE_NAME in os.readlink(f"/proc/self/fd/{given}"):  # noqa: PTH115 - pathlib takes a while to load
            os.set_inheritable(int(given), False)
            faulthandler.register(SIGNAL, file=int(given), all_threads=False)
            faulthandler.register(SIGNAL_ALL, file=int(given), all_threads=True)


def added(environment: Mapping[str, str]) -> str:
    """PYTHONPATH with this directory at the front."""
    return os.pathsep.join(filter(None, (os.path.dirname(__file__), environment.get(PATH, ""))))  # noqa: PTH120


def _withdraw(environment: MutableMapping[str, str]) -> None:
    """Remove this directory from the paths of this process and of processes it starts."""
    own = os.path.dirname(__file__)  # noqa: PTH120
    sys.path[:] = [place for place in sys.path if place != own]
    rest = [place for place in environment.get(PATH, "").split(os.pathsep) if place != own]
    if any(rest):
        environment[PATH] = os.pathsep.join(rest)
    else:
        environment.pop(PATH, None)


def _run_users() -> None:
    """Run the `sitecustomize` that Python would have found without this one."""
    this = sys.modules.pop(__name__)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        sys.modules[__name__] = this
        if error.name != __name__:
            raise


if __name__ == "sitecustomize":
    _withdraw(os.environ)
    register(os.environ)
    _run_users()
