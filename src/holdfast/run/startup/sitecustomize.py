"""What a worker's Python runs before its script: lets the agent ask where the process is.

An agent puts this directory in front of PYTHONPATH. This file takes it out again, so that whatever the script
starts is started as without Holdfast, and then runs the `sitecustomize` of the user's own, if there is one.
It needs nothing but the standard library: the script's Python need not be Holdfast's.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress

SIGNAL = signal.SIGRTMIN + 10
"""Nobody uses it: glibc has the first two real-time signals, and programs that want one take the next."""
SIGNAL_ALL = SIGNAL + 1
"""Asks for the stacks of all threads. Not of a process in which one runs: its frames change meanwhile."""
VARIABLE = "HOLDFAST_STACK_FD"
FILE_NAME = "holdfast-stack"
PATH = "PYTHONPATH"


def register(environment: MutableMapping[str, str]) -> None:
    """Let the agent ask where this process is, if it has given it the file for it."""
    given = environment.pop(VARIABLE, "")
    if not given.isdecimal():
        return
    with suppress(OSError):
        # A program between the agent and this one may have closed it, and opened another in its place.
        if FILE_NAME in os.readlink(f"/proc/self/fd/{given}"):  # noqa: PTH115 - pathlib takes a while to load
            os.set_inheritable(int(given), False)
            faulthandler.register(SIGNAL, file=int(given), all_threads=False)
            faulthandler.register(SIGNAL_ALL, file=int(given), all_threads=True)


def added(environment: Mapping[str, str]) -> str:
    """PYTHONPATH with this directory in front."""
    return os.pathsep.join(filter(None, (os.path.dirname(__file__), environment.get(PATH, ""))))  # noqa: PTH120


def _withdraw(environment: MutableMapping[str, str]) -> None:
    """Leave no trace in what this process looks at, and what it starts."""
    own = os.path.dirname(__file__)  # noqa: PTH120
    sys.path[:] = [place for place in sys.path if place != own]
    rest = [place for place in environment.get(PATH, "").split(os.pathsep) if place != own]
    if any(rest):
        environment[PATH] = os.pathsep.join(rest)
    else:
        environment.pop(PATH, None)


def _run_users() -> None:
    """The `sitecustomize` that Python would have found without this one."""
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
