"""Simulated runs on a Ray cluster, through a separate process that is Ray's driver.

With a wrong address Ray tries to connect for minutes and ignores signals; it writes to stderr at any time;
and it ends its own process when the cluster goes away. All that happens in the driver only, so the user gets
a clear sentence in bounded time. The cluster's machines need the same version of Holdfast.
"""

import importlib.util
import multiprocessing
import os
import socket
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast import __version__, wording
from holdfast.record.errors import HoldfastError, InputError
from holdfast.twin import workers
from holdfast.twin.sweep import Figures, Task

LISTENER_S_MAX = 5
"""How long a connection may take."""
CONNECT_S_MAX = 90
"""How long the cluster may take to admit the driver. Usually it takes one to four seconds. A head node with
busy cores needs more than 25 to start the process that serves a client, and Ray 21 to report a missing
token."""
ATTEMPTS_MAX = 3
"""How often to ask a head node for a process that serves the driver. Ray's proxy forks it while gRPC is busy
in other threads, and now and then the child dies or hangs (ray-project/ray#63202); the next one works."""
RECONNECT_S_MAX = 5
"""How long a head node keeps a lost client's place. It also does so for a client that it failed to serve, and
Ray reports the failure only afterwards: its default of 30 s would leave no time to ask again."""
ADDRESS_HINT = (
    "Name it as HOST:6379 or `auto` on a machine of the cluster, or ray://HOST:10001 from elsewhere."
)
CONNECT_HINT = (
    "Its Ray must be of our version; if it wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN."
)
LOGS_HINT = "Ray's own logs tell more: on its head node, in /tmp/ray/session_latest/logs."

Reply = list[Figures] | Exception
"""The driver sends an empty list once it is connected, then figures in order, or finally an error."""


def played_by_ray(
    tasks: Sequence[Task], address: str, connect_s_max: float = CONNECT_S_MAX
) -> Generator[Figures, None, None]:
    if importlib.util.find_spec("ray") is None:
        raise InputError(
            "Ray is not installed here.",
            hint="`pip install 'ray[client]'`, or leave --ray out to use this machine.",
        )
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    if address != "auto":
        _require_listener(address)
    context = multiprocessing.get_context("spawn")
    (lifeline, held), (replies, says) = context.Pipe(duplex=False), context.Pipe(duplex=False)
    driver = context.Process(target=_drive, args=(lifeline, says, tasks, address))
    with held, replies:
        with lifeline, says, workers.deaf_to_interrupts():
            driver.start()
        try:
            _await_driver(replies, address, connect_s_max)
            yield from _figures(replies, len(tasks), address)
        finally:
            held.close()
            _bury(driver)


def _require_listener(address: str) -> None:
    """Refuse an address where no process listens, and `local`, with which Ray would start a cluster."""
    try:
        url = urlsplit(address if "://" in address else f"ray://{address}")
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
    if not host or not port or url.scheme != "ray":
        raise InputError(f"{address!r} is not the address of a Ray cluster.", hint=ADDRESS_HINT)
    try:
        socket.create_connection((host, port), LISTENER_S_MAX).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"No Ray cluster answers at {address}: {reason}.", hint=ADDRESS_HINT) from None


def _await_driver(replies: Connection, address: str, within_s: float) -> None:
    if not replies.poll(within_s):
        raise InputError(
            f"The process that listens at {address} has not answered as a Ray cluster within "
            f"{wording.number(within_s)} s.",
            hint=ADDRESS_HINT,
        )


def _figures(replies: Connection, owed: int, address: str) -> Iterator[Figures]:
    while owed:
        try:
            reply: Reply = replies.recv()
        except EOFError:
            raise HoldfastError(
                f"The Ray cluster at {address} went away before all runs were simulated.", hint=LOGS_HINT
            ) from None
        if isinstance(reply, Exception):
            raise reply
        owed -= len(reply)
        yield from reply


def _bury(driver: SpawnProcess) -> None:
    driver.join(workers.LAST_WORDS_S_MAX + 1)
    if driver.is_alive():
        driver.kill()
        driver.join()
    driver.close()


def _drive(lifeline: Connection, says: Connection, tasks: Sequence[Task], address: str) -> None:
    """The main function of the driver process."""
    workers.end_with(lifeline)
    with Path(os.devnull).open("wb") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    try:
        for figures in _played_remotely(tasks, address):
            says.send(figures)
    except Exception as error:
        says.send(error)


def _played_remotely(tasks: Sequence[Task], address: str) -> Iterator[list[Figures]]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_CLIENT_RECONNECT_GRACE_PERIOD", str(RECONNECT_S_MAX))
    import ray

    _connect(ray, address)
    yield []
    try:
        _require_same_version(ray)
        call = ray.remote(workers.play_batch).remote
        cores = int(ray.cluster_resources().get("CPU", 1))
        yield from workers.in_order((call(batch) for batch in workers.batches(tasks, cores)), ray.get)
    except ray.exceptions.RayTaskError as error:
        error.cause.add_note(str(error))  # the traceback on the cluster
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise HoldfastError(
            f"The Ray cluster at {address} failed: {_first_line(error)}", hint=LOGS_HINT
        ) from None
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            ray.init(address=address, log_to_driver=False)
            return
        except ConnectionAbortedError as error:  # sent by the head node, with its traceback
            if attempt == ATTEMPTS_MAX:
                reason = str(error).strip().splitlines()[-1]
                raise InputError(
                    f"The head node at {address} did not serve us, {attempt} times: {reason}", hint=LOGS_HINT
                ) from None
        except Exception as error:  # Ray has no common class for these errors.
            raise InputError(
                f"Ray cannot connect to {address}: {_first_line(error)}", hint=CONNECT_HINT
            ) from None


def _require_same_version(ray: Any) -> None:
    def installed() -> str:
        # Ray sends a nested function as code, so this one runs even on machines without Holdfast.
        try:
            from holdfast import __version__ as theirs
        except ImportError:
            return "no Holdfast"
        return f"Holdfast {theirs}"

    here, there = f"Holdfast {__version__}", ray.get(ray.remote(installed).remote())
    if there != here:
        raise InputError(
            f"The Ray cluster has {there} and this is {here}: figures could differ.",
            hint=f"Install holdfast=={__version__} on every machine of the cluster.",
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
