"""The coordinator's process: it serves one run to its end, from the beginning or in a predecessor's place.

`python -m holdfast.run.hub` is private to the launcher, which writes a `HubOrder` to its stdin and reads from
its stdout whether the run could start. It ends with the launcher, unless the run should outlive the launcher.
"""

import asyncio
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast import wording
from holdfast.record.clock import Clock, SystemClock
from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.journal import JOURNAL_DIRECTORY, new_token
from holdfast.record.recorder import Recorder
from holdfast.record.spool import SPOOL_BYTES
from holdfast.run.arbiter import Arbiter, arbiter_at
from holdfast.run.chaos import STORM_WEIGHTS, Storm
from holdfast.run.coordinator import Coordinator
from holdfast.run.endpoint import Endpoint, Reservation, inherited, keep_line, reserved, run_directory
from holdfast.run.estate import Duties, Estate, TermBegun
from holdfast.run.following import Following, first_electorate
from holdfast.run.happenings import FromMember, Happening, StrikeRequested, TookOver
from holdfast.run.heir import Heir
from holdfast.run.kin import wake_with
from holdfast.run.lines import LINES_FILE, KeptLines
from holdfast.run.output import STREAMS, Printer
from holdfast.run.reigning import tend
from holdfast.run.sent import FRAMES_MAX
from holdfast.run.site import Site, is_here
from holdfast.run.state import RunPolicy
from holdfast.run.succession import Electorate, MachinePlace, Mandate, Reign
from holdfast.run.tls import Identity, make_identity
from holdfast.run.watching import end_lines
from holdfast.run.wire import Strike, Struck

END_WAIT_S = 10.0
"""How long agents have to exit when the run is over: they wait for their workers' last processes."""
END_POLL_INTERVAL_S = 0.02
SIGN_INTERVAL_S = 5.0
STORM_POLL_INTERVAL_S = 0.2
STORM_WAIT_S = 60.0
"""If members have lived for this long without a commit, the script is assumed never to join."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The kernel's errors for a full disk, an exhausted quota or a file at its size limit."""


class HubOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator's task. launcher: the process to end with; 0 for none. duties: for the first coordinator;
    later ones find them in the estate. machine: this machine's name for the others. arbiter: the URL of the
    arbiter between two machines; empty for none. ahead_ns: for an elected coordinator and its successors, how
    far the first coordinator's clock was ahead of this machine's. name: the run's name in this home; empty
    for its own. prints: Holdfast's lines, to stderr, because no launcher here shows them.
    """

    policy: RunPolicy
    home: str
    site: Site
    launcher: int = 0
    started_by: int = 0
    is_encrypted: bool = False
    duties: Duties = Duties()
    machine: str = "here"
    arbiter: str = ""
    ahead_ns: int = 0
    name: str = ""
    prints: bool = False


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the run could start: the port, or what went wrong. is_mistake: it was the user's mistake."""

    port: int = 0
    sentence: str = ""
    hint: str = ""
    is_mistake: bool = False


class Legacy(msgspec.Struct, frozen=True, kw_only=True):
    """What a dead coordinator leaves to its successor. reservation: a descriptor; None if the successor is on
    another machine and has to make one there. election: how that machine was elected. identity: the TLS
    identity used at the listener so far; None to make one if needed.
    """

    estate: Estate
    listener: socket.socket
    reservation: int | None = None
    election: "Election | None" = None
    identity: Identity | None = None


class Election(msgspec.Struct, frozen=True, kw_only=True):
    """How an heir was elected coordinator. electorate: the new electorate, if the arbiter decided; None if it
    stays the same.
    """

    term: int
    electorate: Electorate | None = None


class _ShiftedClock:
    """This machine's clock, shifted to continue the last coordinator's."""

    def __init__(self, ahead_ns: int) -> None:
        self._clock, self._ahead_ns = SystemClock(), ahead_ns

    def now_ns(self) -> int:
        return self._clock.now_ns() + self._ahead_ns

    def wall_ns(self) -> int:
        return self._clock.wall_ns()


def encoded(charge: HubOrder) -> bytes:
    """The order as JSON. Paths may not be valid UTF-8, which msgspec's JSON requires."""
    return json.dumps(msgspec.to_builtins(charge)).encode()


def decoded(data: bytes) -> HubOrder:
    return msgspec.convert(json.loads(data), HubOrder)


# ---- the run -----------------------------------------------------------------------------------------------


async def serve(charge: HubOrder, begun: Callable[[Readiness], None], legacy: Legacy | None = None) -> bool:
    """Serve the run to its end, or as long as this coordinator may coordinate; whether the run is over. Raise
    `HoldfastError` if the run cannot start.
    """
    home, run = Path(charge.home), charge.policy.run
    clock: Clock = _ShiftedClock(charge.ahead_ns) if charge.ahead_ns else SystemClock()
    watch = _HomeWatch(home)
    identity = None if legacy is None else legacy.identity
    if identity is None and charge.is_encrypted:
        identity = make_identity()
    with (
        _place(charge, legacy) as reservation,
        Recorder(home / JOURNAL_DIRECTORY, run=run, clock=clock, listener=watch) as recorder,
        _keeper(run_directory(home, run) / LINES_FILE) as keep,
        _printer(prints=charge.prints) as put,
    ):
        estate = (
            Estate(charge.policy, clock.now_ns(), new_token(), FRAMES_MAX, charge.duties)
            if legacy is None
            else legacy.estate
        )
        say = partial(_say_own, (keep, put))
        hub = _Hub(charge.policy, charge.site.token, recorder, clock, say, identity, estate)
        hub.show = partial(_keep_members, keep)
        hub.on_line = partial(keep_line, home, run)
        watch.listen(hub, asyncio.get_running_loop())
        arbiter = arbiter_at(charge.arbiter, run, estate.state.started_ns)
        try:
            with _measured(charge, hub, legacy) as page:  # the user may have made a mistake
                if arbiter is not None and legacy is None:
                    await asyncio.to_thread(arbiter.prepare)
                if legacy is None:
                    await hub.start(charge.site.bind, charge.site.port)
                    _begin(charge, hub)
                    _introduce(charge, hub, page)
                else:
                    _succeed(charge, hub, legacy)
                    _introduce_again(charge, hub, legacy, page)
                is_over = await _coordinate(charge, hub, reservation, begun, arbiter)
            if hub.over is not None:
                put("".join(f"{line}\n" for line in end_lines(run, hub.over)).encode("utf-8", "replace"))
            await asyncio.to_thread(recorder.close)
            await asyncio.sleep(0)  # let its last messages through
            return is_over
        finally:
            await hub.close()


@contextmanager
def _place(charge: HubOrder, legacy: Legacy | None) -> Iterator[Reservation]:
    """Hold the run's name on this machine."""
    home, run = Path(charge.home), charge.policy.run
    if legacy is not None and legacy.reservation is not None:
        with inherited(home, charge.name or run, legacy.reservation) as reservation:
            yield reservation
        return
    with ExitStack() as stack:
        try:
            reservation = stack.enter_context(reserved(home, run))
        except InputError:
            if legacy is None:
                raise
            # The home is shared, and the last coordinator, which is cut off but alive, has the name.
            reservation = stack.enter_context(reserved(home, f"{run}-{charge.machine}"))
        yield reservation


def _begin(charge: HubOrder, hub: "_Hub") -> None:
    """Begin the first term. This machine is the only elector until others join."""
    electorate = first_electorate(charge.machine, has_arbiter=bool(charge.arbiter))
    mandate = Mandate(electorate=electorate)
    reign = Reign(charge.machine, 1, mandate, hub.estate.known.position)
    hub.heirs = Following(hub.estate, _own(charge, hub.endpoint[1]), reign)
    hub.enter(TermBegun(term=1, electorate=electorate, now_ns=hub.now_ns()))


def _succeed(charge: HubOrder, hub: "_Hub", legacy: Legacy) -> None:
    """Take the predecessor's place: in its term if it was on this machine, otherwise in the next one."""
    estate, election = hub.estate, legacy.election
    port = legacy.listener.getsockname()[1]
    term = estate.known.term if election is None else election.term
    mandate = estate.mandate if election is None else Mandate(electorate=estate.mandate.electorate)
    reign = Reign(charge.machine, term, mandate, estate.known.position)
    hub.heirs = Following(estate, _own(charge, port), reign)
    if election is None:
        hub.succeed(legacy.listener)
        hub.happened(TookOver())
        return
    reign.is_granted = election.electorate is not None
    hub.succeed(
        legacy.listener, TermBegun(term=election.term, electorate=election.electorate, now_ns=hub.now_ns())
    )
    hub.happened(TookOver(charge.site.host))


def _own(charge: HubOrder, port: int) -> MachinePlace:
    return MachinePlace(charge.machine, charge.site.host, port)


def _introduce(charge: HubOrder, hub: "_Hub", page: str) -> None:
    place = msgspec.structs.replace(charge.site, port=hub.endpoint[1])
    hub.announce(f"run {charge.policy.run}{' with TLS' if hub.identity else ''}, coordinator at {place}")
    if page:
        hub.announce(f"metrics at {page}")
    if charge.duties.storm_per_min:
        hub.announce(f"chaos: {_faults(charge.duties)}")


def _introduce_again(charge: HubOrder, hub: "_Hub", legacy: Legacy, page: str) -> None:
    """Announce what moved with the coordinator."""
    duties = hub.estate.duties
    if duties.metrics is not None:
        if not page:
            hub.tell("the run's metrics are no longer served: no port is available for them")
        elif legacy.election is not None:
            hub.announce(f"metrics at {page} on {charge.site.host} now")
        elif duties.metrics[1] and f":{duties.metrics[1]}/" not in page:
            hub.announce(f"metrics at {page} now: another program has port {duties.metrics[1]}")
    if duties.storm_per_min and legacy.election is not None:
        hub.announce(f"chaos goes on: {_faults(duties)}")


def _faults(duties: Duties) -> str:
    return f"{wording.number(duties.storm_per_min)} faults a minute, --seed {duties.seed}"


async def _coordinate(
    charge: HubOrder,
    hub: "_Hub",
    reservation: Reservation,
    begun: Callable[[Readiness], None],
    arbiter: Arbiter | None,
) -> bool:
    """Keep a successor ready, and tell operators where we are, until the run ends and its agents are gone.
    False if this coordinator was deposed while the run may continue.
    """
    site = msgspec.structs.replace(charge.site, port=hub.endpoint[1])
    charge = msgspec.structs.replace(charge, site=site, name=reservation.name)
    heir = Heir(encoded(charge), hub, reservation.descriptor, partial(_publish_later, charge, reservation))
    hub.follow = heir.follow
    if hub.estate.takeovers:
        _publish_later(charge, reservation, 0)
    else:
        _publish(charge, reservation, 0)
    begun(Readiness(port=charge.site.port))
    works = (heir.keep(), _storm(hub), _give_signs_of_life(reservation))
    chores: list[asyncio.Task[Any]] = [asyncio.create_task(work) for work in works]
    assert hub.heirs is not None
    reigning = asyncio.create_task(tend(hub, hub.heirs, charge.site.token, arbiter))
    ended = asyncio.create_task(hub.ended())
    chores += [reigning, ended]
    with _signals(hub), tied(charge.launcher):
        try:
            await asyncio.wait([reigning, ended], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                hub.tell_over(ended.result())
                await _agents_gone(hub, charge.started_by)
                hub.heirs.finish()
                keep_line(Path(charge.home), charge.policy.run, ())
            else:
                hub.retire()
                print(f"holdfast: this machine's coordinator ends: {reigning.result()}", file=sys.stderr)
            return ended.done()
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            await heir.finish()


async def _give_signs_of_life(reservation: Reservation) -> None:
    while True:
        reservation.give_sign_of_life()
        await asyncio.sleep(SIGN_INTERVAL_S)


def _publish(charge: HubOrder, reservation: Reservation, successor: int) -> None:
    site = charge.site
    reservation.publish(
        Endpoint(
            host=site.host,
            port=site.port,
            token=site.token,
            pid=os.getpid(),
            launcher=charge.started_by,
            successor=successor,
        )
    )


def _publish_later(charge: HubOrder, reservation: Reservation, successor: int) -> None:
    with suppress(HoldfastError):  # if the home is full, the run continues anyway
        _publish(charge, reservation, successor)


async def _agents_gone(hub: Coordinator, launcher: int) -> None:
    """Wait until the agents are gone. Also wait for the launcher if it has not found this coordinator yet,
    which may have succeeded one that died at the end of the run.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(END_WAIT_S):
            while hub.has_agents or not (hub.has_viewers or _is_gone(launcher)):
                await asyncio.sleep(END_POLL_INTERVAL_S)


def _is_gone(process: int) -> bool:
    return not process or not Path(f"/proc/{process}").exists()


class _Hub(Coordinator):
    """A coordinator that tells the launchers, which restart nodes, how long a fault takes a node away."""

    def happened(self, event: Happening) -> None:
        match event:
            case StrikeRequested(Strike(fault="node", for_s=for_s)):
                self.node_struck(for_s)
            case FromMember(_, Struck(fault=number)):
                for fault in self.estate.state.policy.faults:
                    if fault.id == number and fault.fault == "node":
                        self.node_struck(fault.for_s)
        super().happened(event)


async def _storm(coordinator: Coordinator) -> None:
    """Strike at random, once the run makes progress or its script is assumed never to join.

    An earlier strike would count as one of such a script's few restarts.
    """
    estate = coordinator.estate
    if not estate.duties.storm_per_min:
        return
    kinds = tuple(kind for kind in STORM_WEIGHTS if kind != "node" or estate.state.policy.nodes_max > 1)
    storm = Storm(estate.duties.storm_per_min, estate.duties.seed + estate.takeovers, kinds)
    waited_s = 0.0
    while (status := coordinator.status()).step == 0 and waited_s < STORM_WAIT_S:
        await asyncio.sleep(STORM_POLL_INTERVAL_S)
        waited_s += STORM_POLL_INTERVAL_S if any(member.alive for member in status.members) else 0.0
    while True:
        wait_s, strike = storm.next()
        await asyncio.sleep(wait_s)
        coordinator.strike(strike)


def _measured(charge: HubOrder, hub: Coordinator, legacy: Legacy | None) -> AbstractContextManager[str]:
    """Serve the run's metrics if wanted. Yields the page's URL, or an empty string."""
    if hub.estate.duties.metrics is None:
        return nullcontext("")
    host, port = hub.estate.duties.metrics
    if legacy is None:
        return _pages(hub, host, port)
    return _served_again(hub, host if is_here(host) else charge.site.host, port)


def _pages(hub: Coordinator, host: str, port: int) -> AbstractContextManager[str]:
    from holdfast.run.metrics import serving  # loaded only if metrics are served

    return serving(host, port, hub.status)


@contextmanager
def _served_again(hub: Coordinator, host: str, port: int) -> Iterator[str]:
    """Serve the metrics in the predecessor's place, at another port if that one is taken. If that fails, the
    run continues without them.
    """
    with ExitStack() as stack:
        url = ""
        for wanted in dict.fromkeys((port, 0)):
            with suppress(HoldfastError):
                url = stack.enter_context(_pages(hub, host, wanted))
                break
        yield url


@contextmanager
def _signals(hub: Coordinator) -> Iterator[None]:
    """Treat signals to this process like signals to the launcher: stop the run."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, hub.stop, number.name)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextmanager
def tied(launcher: int) -> Iterator[None]:
    """End this process as soon as the launcher is gone, as if killed with it."""
    if not launcher:
        yield
        return
    try:
        watched = os.pidfd_open(launcher)
    except ProcessLookupError:
        os._exit(1)
    wake_with(launcher)
    loop = asyncio.get_running_loop()
    loop.add_reader(watched, os._exit, 1)
    try:
        yield
    finally:
        loop.remove_reader(watched)
        os.close(watched)


# ---- lines kept for later viewers --------------------------------------------------------------------------

Keep = Callable[[bytes], None]


@contextmanager
def _keeper(path: Path) -> Iterator[Keep]:
    kept = KeptLines.opened(path)
    if kept is None:
        yield lambda line: None
        return
    try:
        yield partial(kept.keep, "stderr")
    finally:
        kept.close()


@contextmanager
def _printer(*, prints: bool) -> Iterator[Keep]:
    if not prints:
        yield lambda line: None
        return
    printer = Printer(lambda: None)  # stderr may have no reader, and the coordinator must not wait for one
    try:
        yield partial(printer.put, STREAMS["stderr"])
    finally:
        printer.close()


def _say_own(keeps: Iterable[Keep], text: str) -> None:
    line = f"holdfast: {one_line(text)}\n".encode("utf-8", "replace")
    for keep in keeps:
        keep(line)


def _keep_members(keep: Keep, member: str, text: str) -> None:
    for line in text.splitlines():
        keep(f"[{member}] {line}\n".encode("utf-8", "replace"))


def one_line(text: str) -> str:
    """The text as one line without terminal control characters, since reasons come from other programs."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class _HomeWatch:
    """Tells the operator that the run's record cannot be written. Called from the recorder's thread."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._tell: Callable[[str], object] = lambda text: None

        self._record: Callable[[str, bool], object] = lambda reason, over: None

    def listen(self, hub: Coordinator, loop: asyncio.AbstractEventLoop) -> None:
        self._tell = lambda text: loop.call_soon_threadsafe(hub.tell, text)
        self._record = lambda reason, over: loop.call_soon_threadsafe(
            partial(hub.endangered, "record", reason, over=over)
        )

    def refused(self, error: Exception) -> None:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        is_full = isinstance(error, OSError) and error.errno in FULL
        what = f"Holdfast's home {self._home} " + ("is full" if is_full else f"cannot be written ({why})")
        self._record(what, False)  # it waits in memory with the rest
        self._tell(
            f"{what}: the run continues, and up to {SPOOL_BYTES >> 20} MiB of its record wait in memory. "
            "Free space there, or set HOLDFAST_HOME to another directory for the next run."
        )

    def accepted(self, dropped: int) -> None:
        lost = f"; {dropped} events did not fit into memory and are lost" if dropped else "; nothing was lost"
        self._record(lost.removeprefix("; "), True)
        self._tell(f"Holdfast's home {self._home} takes the record again{lost}")

    def left(self, size_bytes: int, path: Path) -> None:
        self._tell(
            f"Holdfast's home {self._home} did not take the last {size_bytes} bytes of the record. They are "
            f"in {path} until this machine restarts; once there is room, `holdfast report` takes them in."
        )


# ---- the process -------------------------------------------------------------------------------------------


def _tell_begun(begun: Readiness) -> None:
    """Tell the launcher, then end stdout, which the launcher reads to its end."""
    with suppress(OSError):
        os.write(1, msgspec.json.encode(begun))
    os.dup2(2, 1)


def main() -> int:
    charge = decoded(sys.stdin.buffer.read())
    try:
        asyncio.run(serve(charge, _tell_begun))
    except HoldfastError as error:
        is_mistake = isinstance(error, InputError)
        _tell_begun(Readiness(sentence=error.sentence, hint=error.hint, is_mistake=is_mistake))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
