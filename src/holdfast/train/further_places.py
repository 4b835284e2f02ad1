"""Further places for a run's checkpoints: checked and read before the run starts, filled while it goes on."""

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.files import require_directory
from holdfast.run.launcher import Order
from holdfast.run.site import reach, survey
from holdfast.train.copying import steps_in
from holdfast.train.fetching import CopyNews, fetch_newest
from holdfast.train.filling import FINISH, LEAVE, FillingOrder, by_hand
from holdfast.train.place import DirectoryStorage
from holdfast.train.places import is_url, opened_place

KEEP = 2
REQUEST_S_MAX = 20.0
"""How long an answer may take while the run has not started."""
LEAVE_S_MAX = 10.0
"""How long filling processes that were told to leave have to name the checkpoint they did not copy."""
LOOK_S, LIVES_MAX = 5.0, 20
"""How often to check whether the filling process is alive, and how often it may be started."""

_KEEP = re.compile(r"(?P<place>.+),keep=(?P<keep>[1-9][0-9]{0,5})")
_SETTING = re.compile(r",\w+=[^/]*$")


class FurtherPlace(msgspec.Struct, frozen=True, kw_only=True):
    """place: a directory or a URL, as the user gave it."""

    place: str
    keep: int = KEEP


def further_place(text: str) -> FurtherPlace:
    """Parse `PLACE[,keep=N]`. Raises `InputError`."""
    told = _KEEP.fullmatch(text)
    found = FurtherPlace(place=told["place"], keep=int(told["keep"])) if told else FurtherPlace(place=text)
    opened_place(found.place)
    if _SETTING.search(found.place):
        raise InputError(
            f"{text} does not say how many checkpoints to keep there.", hint="Write PLACE,keep=5."
        )
    if is_url(found.place):
        return found
    require_directory("--checkpoints-also", Path(found.place))
    return msgspec.structs.replace(found, place=str(Path(found.place).absolute()))


@contextlib.contextmanager
def filled(order: Order, further: Sequence[FurtherPlace], say: Callable[[str], None]) -> Iterator[None]:
    """Fetch the newest checkpoint from these places, then fill them with the run's checkpoints while the
    block lasts. Raises `InputError`.
    """
    if not further:
        yield
        return
    if order.coordinator is not None and not order.is_named:
        raise InputError(
            "Checkpoints of a run on several machines cannot be copied without the run's name.",
            hint="Give the same --run on all of them.",
        )
    own = order.own_checkpoints
    _check_apart(own, further)
    news: list[CopyNews] = []
    if not _is_going(order):
        places = [
            (opened_place(one.place, request_s=REQUEST_S_MAX), opened_place(one.place)) for one in further
        ]
        news = fetch_newest([one.absolute() for one in own], places, order.policy.run, say)
    fillers = [
        _Filler(
            FillingOrder(
                directories=tuple(str(directory.absolute()) for directory in own),
                place=one.place,
                keep=one.keep,
                run=order.policy.run,
                home=str(order.home),
                is_detached=order.is_detachable,
                news=() if number else tuple(news),
            ),
            say,
        )
        for number, one in enumerate(further)
    ]
    try:
        yield
    finally:
        with _interruptible():
            _await(fillers)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _await(fillers: Sequence["_Filler"]) -> None:
    """Wait for the last copies, for a bounded time. One interrupt ends the wait, a second one ends it at
    once.
    """
    try:
        for filler in fillers:
            filler.finish()
        for filler in fillers:
            filler.wait()
    except KeyboardInterrupt:
        try:
            for filler in fillers:
                filler.leave()
            until_s = time.monotonic() + LEAVE_S_MAX
            for filler in fillers:
                filler.await_left(until_s)
        except KeyboardInterrupt:
            for filler in fillers:
                filler.end()


def _check_apart(own: Sequence[Path], further: Sequence[FurtherPlace]) -> None:
    """A further place must not be one of the run's own directories, where its `keep` would remove the run's
    checkpoints. Raises `InputError`.
    """
    taken = {directory.resolve() for directory in own}
    for one in further:
        if not is_url(one.place) and Path(one.place).resolve() in taken:
            raise InputError(
                f"--checkpoints-also {one.place} is the directory that the run writes its checkpoints to.",
                hint="Name another place, or leave it out.",
            )


def _is_going(order: Order) -> bool:
    """Whether the run has a state already, which joining members get from a peer."""
    if order.coordinator is None or order.policy.mesh.sizes:
        return False
    try:
        site = survey(order.coordinator, order.token, is_shared=order.policy.nodes_min > order.nodes)
        asyncio.run(reach(msgspec.structs.replace(site, is_encrypted=order.is_encrypted), 0))
    except HoldfastError:
        return False
    return True


class _Filler:
    """The process that fills a place, started again if it ends."""

    def __init__(self, order: FillingOrder, say: Callable[[str], None]) -> None:
        self._order = order
        self._say = say
        self._is_over = threading.Event()
        self._process = self._started()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def _started(self) -> "subprocess.Popen[bytes]":
        # -P: a user's file with the name of one of our modules must not be imported in its place.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.train.filling"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it was killed before it could read
            process.stdin.write(msgspec.json.encode(self._order) + b"\n")
            process.stdin.flush()
        return process

    def _watch(self) -> None:
        lives = 1
        while not self._is_over.wait(LOOK_S):
            if self._process.poll() is None:
                continue
            if lives == LIVES_MAX:
                self._say(
                    f"nothing is copied to {self._order.place} until the run is over: the copying process "
                    f"has ended {LIVES_MAX} times"
                )
                return
            self._process = self._started()
            lives += 1

    def finish(self) -> None:
        """Tell the process that the run is over. If it was ended with the run's leftover processes, start it
        again.
        """
        self._is_over.set()
        self._watching.join()
        if self._process.poll() is not None:
            self._process = self._started()
        self._tell(FINISH)

    def _tell(self, word: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(word)
            self._process.stdin.flush()

    def wait(self) -> None:
        """Wait for the process, which ends within a bounded time."""
        self._process.wait()
        self._close()

    def leave(self) -> None:
        """Tell the process to report what is missing and to end."""
        self._is_over.set()
        self._tell(LEAVE)

    def await_left(self, until_s: float) -> None:
        """Wait until this moment. If the process has not reported what is missing by then, report it here."""
        try:
            self._process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.end()
            directory, step = self._newest()
            copy = by_hand(directory, self._order)
            self._say(f"interrupted: step {step} may not be in {self._order.place}; {copy}")
        self._close()

    def _newest(self) -> tuple[str, int]:
        """The directory and the step of the run's last checkpoint."""
        found = [(0, self._order.directories[0])]
        for directory in self._order.directories:
            with contextlib.suppress(OSError):
                kept = steps_in(DirectoryStorage(Path(directory)).listed())
                found += [(one.step, directory) for one in kept]
        step, directory = max(found, key=lambda one: one[0])
        return directory, step

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
