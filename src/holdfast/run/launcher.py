"""What `holdfast run` does on one machine: hold the run's coordinator or find it, and have agents there.

Whoever is started where the coordinator is meant to be holds it; the same command anywhere else, or once more
there, only brings nodes. Nothing is left behind: processes die with the launcher even if it is killed, and
the rest is removed here.
"""

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.record.clock import Clock, SystemClock
from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.record.spool import SPOOL_BYTES
from holdfast.run import kin
from holdfast.run.agent import EXIT_DISCONNECTED, Assignment
from holdfast.run.chaos import Storm
from holdfast.run.coordinator import Coordinator
from holdfast.run.endpoint import Endpoint, reserved, run_directory
from holdfast.run.handshake import Unreachable
from holdfast.run.happenings import Ending, FromMember, Happening, StrikeRequested
from holdfast.run.nodes import LineOutlet, NodeAgent, end_orphans
from holdfast.run.output import STREAMS, Printer, View
from holdfast.run.site import Site, reach, survey
from holdfast.run.state import RunPolicy
from holdfast.run.status import Status
from holdfast.run.tls import Identity, make_identity
from holdfast.run.wire import FaultKind, Strike, Struck

CHECKPOINTS_DIRECTORY = "checkpoints"
END_WAIT_S = 10.0
"""How long agents have to exit when the run is over: they wait for their workers' last processes."""
AWAY_S = 3.0
"""How long a node that was lost stays away where no fault says otherwise."""
LAST_WORDS_WAIT_S = 0.05
"""Within this time the coordinator has read what a node said before it was lost."""
HANDOVER_WAIT_S = 2.0
"""How long a launcher that has the run's name may take until its coordinator answers."""
STORM_POLL_INTERVAL_S = 0.2
STORM_WAIT_S = 60.0
"""A script whose members have lived for so long without a commit is taken for one that never joins."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_SIGNALS = 2
"""After so many signals there is no more asking."""
EXIT_FAILED = 1
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the kernel says of a disk, a quota or a file that takes no more."""

Display = Callable[[Callable[[], Status], Clock], AbstractContextManager[LineOutlet]]
"""Shows a run while the block lasts; the members print to its outlet."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants of this machine, checked.

    policy: what the run is to be like if its coordinator is held here; is_named: its name was given, and not
    made up. command: the script, ready to be started. nodes: how many agents; node_rank: as torchrun counts.
    coordinator: where it should be; None: here, for this machine alone. token: empty where none is set.
    view: what of the members' output is shown. is_virtual: a member sees no GPU but its own. signals: what
    ends the run. checkpoints: None: in the run's own directory; checkpoint_every: None: by cost.
    is_encrypted: no control connection may be in plain.
    storm_per_min: faults a minute, from `seed`. metrics: the address and port to serve them at, where the
    coordinator is.
    """

    policy: RunPolicy
    is_named: bool
    command: tuple[str, ...]
    home: Path
    nodes: int = 1
    node_rank: int | None = None
    coordinator: tuple[str, int] | None = None
    token: str = ""
    is_encrypted: bool = False
    checkpoints: Path | None = None
    checkpoint_every: int | None = None
    address: str = ""
    role: str = "default"
    log_directory: Path | None = None
    view: View = View()
    is_virtual: bool = False
    signals: tuple[signal.Signals, ...] = SIGNALS
    storm_per_min: float = 0.0
    seed: int = 0
    metrics: tuple[str, int] | None = None


def launch(order: Order, display: Display | None = None) -> int:
    """Run it to its end. Returns the exit code of `holdfast run`."""
    is_shared = order.policy.nodes_min > order.nodes
    site = survey(order.coordinator, order.token, is_shared=is_shared)
    site = msgspec.structs.replace(site, is_encrypted=order.is_encrypted)
    others = kin.children()
    kin.adopt_orphans()
    return asyncio.run(_launch(order, site, display, others))


async def _launch(order: Order, site: Site, display: Display | None, others: frozenset[int]) -> int:
    voice = _Voice()
    try:
        if site.bind:
            try:
                return await _hold(order, site, display, voice)
            except HoldfastError as unable:
                await _expect_another(site, unable)
        return await _join(order, site, voice)
    finally:
        await end_orphans(others)
        voice.close()


async def _expect_another(site: Site, unable: HoldfastError) -> None:
    """The run could not be begun here: well and good if another launcher was quicker to do so."""
    if not site.port:
        raise unable
    try:
        await reach(site, HANDOVER_WAIT_S)
    except Unreachable:
        raise unable from None


# ---- with the coordinator --------------------------------------------------------------------------------


class _Hub(Coordinator):
    """A coordinator beside which the nodes are kept: it overhears for how long a fault takes one away."""

    def __init__(
        self,
        policy: RunPolicy,
        token: str,
        recorder: Recorder,
        clock: Clock,
        say: Callable[[str], None],
        identity: Identity | None,
    ) -> None:
        super().__init__(policy, token, recorder, clock, say, identity)
        self._planned_s = {fault.id: fault.for_s for fault in policy.faults if fault.fault == "node"}
        self._away_s = AWAY_S

    def happened(self, event: Happening) -> None:
        match event:
            case StrikeRequested(Strike(fault="node", for_s=for_s)):
                self._away_s = for_s
            case FromMember(_, Struck(fault=number)):
                self._away_s = self._planned_s.get(number, self._away_s)
        super().happened(event)

    async def away_s(self) -> float:
        """How long the node that was lost just now stays away."""
        await asyncio.sleep(LAST_WORDS_WAIT_S)
        away_s, self._away_s = self._away_s, AWAY_S
        return away_s


async def _hold(order: Order, site: Site, display: Display | None, voice: "_Voice") -> int:
    """The run to its end, by its coordinator. `HoldfastError` where it cannot be begun here."""
    run, clock = order.policy.run, SystemClock()
    say: Callable[[str], None] = voice.say if display is None else lambda _text: None
    watch = _HomeWatch(order.home, voice)
    identity = make_identity() if order.is_encrypted else None
    with (
        reserved(order.home, run) as publish,
        Recorder(order.home / JOURNAL_DIRECTORY, run=run, clock=clock, listener=watch) as recorder,
    ):
        coordinator = _Hub(order.policy, site.token, recorder, clock, say, identity)
        loop = asyncio.get_running_loop()
        watch.tell = lambda text: loop.call_soon_threadsafe(coordinator.tell, text)
        try:
            with _measured(order, coordinator) as page:  # first of all: it may be a mistake of the user's
                await coordinator.start(site.bind, site.port)
                site = msgspec.structs.replace(site, port=coordinator.endpoint[1])
                publish(Endpoint(host=site.host, port=site.port, token=site.token, pid=os.getpid()))
                with _shown(display, coordinator, clock) as outlet, _printer(voice, outlet) as printer:
                    coordinator.show = partial(_show, printer, outlet)
                    say(f"run {run}{' with TLS' if identity else ''}, coordinator at {site}")
                    if page:
                        say(f"metrics at {page}")
                    if order.storm_per_min:
                        say(f"chaos: {order.storm_per_min:g} faults a minute, --seed {order.seed}")
                    assignments = _assignments(order, site, run, _names(order, is_first=True))
                    nodes = [NodeAgent(one, outlet, coordinator.away_s, say) for one in assignments]
                    ending = await _conduct(order, coordinator, nodes)
        finally:
            watch.tell = voice.say
            await coordinator.close()
    voice.tell_end(run, ending)
    return ending.code


async def _conduct(order: Order, coordinator: Coordinator, nodes: Sequence[NodeAgent]) -> Ending:
    """Have the nodes, and pass on what the operator wants, until the run ends."""
    signals = 0

    def stop(number: signal.Signals) -> None:
        nonlocal signals
        signals += 1
        coordinator.stop(number.name)
        if signals > PATIENCE_SIGNALS:
            for node in nodes:
                node.send_signal(signal.SIGKILL)

    keeping = [asyncio.create_task(node.keep()) for node in nodes]
    storming = asyncio.create_task(_storm(order, coordinator))
    ended = asyncio.create_task(coordinator.ended())
    nodes_gone = asyncio.gather(*keeping)
    with _signals(order.signals, stop):
        try:
            waits: list[asyncio.Future[Any]] = [ended, nodes_gone]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                coordinator.stop("no agent lives on this machine")
            return await ended
        finally:
            storming.cancel()
            await _end(nodes, keeping)


async def _end(nodes: Sequence[NodeAgent], keeping: Sequence[asyncio.Task[int]]) -> None:
    """Wait for the agents, whom the coordinator told to exit; but not for ever."""
    for node in nodes:
        node.finish()
    _done, late = await asyncio.wait(keeping, timeout=END_WAIT_S)
    for node in nodes:
        node.send_signal(signal.SIGKILL)
    if late:
        await asyncio.wait(late, timeout=END_WAIT_S)


async def _storm(order: Order, coordinator: Coordinator) -> None:
    """Strike at random, once the run makes progress, or is taken for a script that never joins.

    Before that a strike would count as one of such a script's few restarts.
    """
    if not order.storm_per_min:
        return
    kinds: tuple[FaultKind, ...] = (
        ("kill", "pause", "node") if order.policy.nodes_max > 1 else ("kill", "pause")
    )
    storm = Storm(order.storm_per_min, order.seed, kinds)
    waited_s = 0.0
    while (status := coordinator.status()).step == 0 and waited_s < STORM_WAIT_S:
        await asyncio.sleep(STORM_POLL_INTERVAL_S)
        waited_s += STORM_POLL_INTERVAL_S if any(member.alive for member in status.members) else 0.0
    while True:
        wait_s, strike = storm.next()
        await asyncio.sleep(wait_s)
        coordinator.strike(strike)


# ---- without ---------------------------------------------------------------------------------------------


async def _join(order: Order, site: Site, voice: "_Voice") -> int:
    """Bring nodes to a run whose coordinator is elsewhere, until it ends."""
    run = await _meet(site, order.policy.wait_s, voice)
    if order.is_named and order.policy.run != run:
        raise InputError(
            f"The coordinator at {site} is that of the run {run!r}, not {order.policy.run!r}.",
            hint="Leave --run out, or choose another port.",
        )
    names = _names(order, is_first=False)
    nodes = [
        NodeAgent(one, LineOutlet(), _away_s, voice.say) for one in _assignments(order, site, run, names)
    ]
    received: list[signal.Signals] = []

    def leave(number: signal.Signals) -> None:
        received.append(number)
        for node in nodes:
            node.finish()
            node.send_signal(signal.SIGTERM if len(received) < PATIENCE_SIGNALS else signal.SIGKILL)

    with _signals(order.signals, leave):
        codes = await asyncio.gather(*(node.keep() for node in nodes))
    if received:
        return 128 + received[0]
    if EXIT_DISCONNECTED in codes:
        voice.say(f"the coordinator at {site} is gone")
    return max(EXIT_FAILED if code < 0 or code == EXIT_DISCONNECTED else code for code in codes)


async def _meet(site: Site, wait_s: float, voice: "_Voice") -> str:
    """The run's name, once its coordinator answers: nodes may be started in any order."""
    try:
        return await reach(site, 0)
    except Unreachable:
        if not wait_s:
            raise
    voice.say(f"waiting for the coordinator at {site}, for at most {wait_s:g} s")
    return await reach(site, wait_s)


async def _away_s() -> float:
    """What a fault says about it is known where the coordinator is, and not here."""
    return AWAY_S


# ---- either way ------------------------------------------------------------------------------------------


def _assignments(order: Order, site: Site, run: str, names: Sequence[str]) -> list[Assignment]:
    checkpoints = order.checkpoints or run_directory(order.home, run) / CHECKPOINTS_DIRECTORY
    log_directory = str((order.log_directory / run).absolute()) if order.log_directory else ""
    return [
        Assignment(
            launcher=os.getpid(),
            host=site.host,
            port=site.port,
            token=site.token,
            node=name,
            slots=order.policy.slots,
            command=order.command,
            checkpoints=str(checkpoints.absolute()),
            checkpoint_every=order.checkpoint_every,
            role=order.role,
            address=order.address or site.address,
            log_directory=log_directory,
            view=order.view,
            is_virtual=order.is_virtual,
            grace_s=order.policy.grace_s,
            local=(number, len(names)),
        )
        for number, name in enumerate(names)
    ]


def _names(order: Order, *, is_first: bool) -> list[str]:
    """n0, n1, … where this launcher can know which of them are its own; otherwise its agents find names."""
    if order.node_rank is None and not is_first:
        return [""] * order.nodes
    first = (order.node_rank or 0) * order.nodes
    return [f"n{number}" for number in range(first, first + order.nodes)]


@contextmanager
def _signals(numbers: Sequence[signal.Signals], handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _shown(
    display: Display | None, coordinator: Coordinator, clock: Clock
) -> AbstractContextManager[LineOutlet]:
    return nullcontext(LineOutlet()) if display is None else display(coordinator.status, clock)


@contextmanager
def _printer(voice: "_Voice", outlet: LineOutlet) -> Iterator[Printer]:
    """Prints where the members' lines go, and is done with it before a display closes that."""
    if outlet.stderr == STREAMS["stderr"]:
        yield voice.printer  # in order with what we say ourselves
        return
    printer = Printer(lambda: None)
    try:
        yield printer
    finally:
        printer.close()


def _show(printer: Printer, outlet: LineOutlet, member: str, text: str) -> None:
    """What a member said last, and its agent held back: as its other lines."""
    lines = "".join(f"[{member}] {line}\n" for line in text.splitlines())
    printer.put(outlet.stderr, lines.encode("utf-8", "replace"))


def _measured(order: Order, coordinator: Coordinator) -> AbstractContextManager[str]:
    """Serves the run's metrics, where that is wanted; the page's URL, or nothing."""
    if order.metrics is None:
        return nullcontext("")
    from holdfast.run.metrics import serving  # a run that nobody scrapes need not load it

    host, port = order.metrics
    return serving(host, port, coordinator.status)


class _HomeWatch:
    """Tells the operator that the run's record cannot be written. Called from the recorder's thread."""

    def __init__(self, home: Path, voice: "_Voice") -> None:
        self._home = home
        self.tell: Callable[[str], object] = voice.say

    def refused(self, error: Exception) -> None:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        is_full = isinstance(error, OSError) and error.errno in FULL
        what = f"Holdfast's home {self._home} " + ("is full" if is_full else f"cannot be written ({why})")
        self.tell(
            f"{what}: the run goes on, and its record waits in memory, up to {SPOOL_BYTES >> 20} MiB of it. "
            "Free space there; for the next run HOLDFAST_HOME may name another place."
        )

    def accepted(self, dropped: int) -> None:
        lost = f"; {dropped} events did not fit into memory and are lost" if dropped else "; nothing was lost"
        self.tell(f"Holdfast's home {self._home} takes the record again{lost}")

    def left(self, size_bytes: int, path: Path) -> None:
        self.tell(
            f"Holdfast's home {self._home} did not take the last {size_bytes} bytes of the record. They are "
            f"in {path} until this machine restarts; once there is room, `holdfast report` takes them in."
        )


class _Voice:
    """What Holdfast itself says, on stderr. It never waits for a terminal that is paused."""

    def __init__(self) -> None:
        self.printer = Printer(lambda: None)

    def say(self, text: str) -> None:
        # Reasons come from others' programs: one line, and nothing that a terminal would obey.
        shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
        self._write(f"holdfast: {shown}\n")

    def tell_end(self, run: str, ending: Ending) -> None:
        """The complaint, once; and how the run ended, where that was not the whole of it."""
        if ending.complaint:
            self._write(ending.complaint.rstrip() + "\n")
        if not ending.complaint.startswith("holdfast: "):
            self.say(f"run {run} {ending.outcome}; `holdfast report {run}` shows where its time went")

    def close(self) -> None:
        self.printer.close()

    def _write(self, text: str) -> None:
        self.printer.put(STREAMS["stderr"], text.encode("utf-8", "replace"))
