"""Commands that start in milliseconds: a process that has imported every verb, and forks.

A line of JSON on stdin, a `Call`, makes a process that goes on as `python -m holdfast` does once it has
imported what it needs: its own streams, environment and folder, its own end. The answer on stdout is a line
with its exit code, negative for a signal. Everything is single-threaded until a command is its own process.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

WRITTEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class Call(NamedTuple):
    """arguments: what follows `holdfast`. out, err: the files that its streams are written to."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    out: str
    err: str
    limit_s: int


def preload(more: Sequence[str]) -> None:
    """Import every module of the command, and with them the libraries that it takes a second to import. more:
    modules that only some verbs use.
    """
    package = importlib.import_module("holdfast.cli")
    for module in pkgutil.walk_packages(package.__path__, "holdfast.cli."):
        importlib.import_module(module.name)
    for name in more:
        importlib.import_module(name)
    gc.freeze()


def serve() -> None:
    for line in sys.stdin.buffer:
        call = Call(**json.loads(line))
        pid = os.fork()
        if pid == 0:
            become(call)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(call: Call) -> NoReturn:
    """Be the command, to its end; only taking the interpreter apart, as long as all else, is left out."""
    code = 1
    try:
        settle(call)
        sys.argv = ["holdfast", *call.arguments]
        runpy.run_module("holdfast", run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def settle(call: Call) -> None:
    """Take the place, the environment and the streams that the command was given."""
    streams = ((0, os.devnull, os.O_RDONLY), (1, call.out, WRITTEN), (2, call.err, WRITTEN))
    for stream, path, how in streams:
        file = os.open(path, how)
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(call.environment)
    time.tzset()
    os.chdir(call.folder)
    signal.alarm(call.limit_s)


if __name__ == "__main__":
    preload(sys.argv[1:])
    serve()
