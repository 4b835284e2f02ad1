"""What `holdfast run` does on one machine: start or find the run's coordinator, and run agents.

The launcher on the coordinator's machine starts the coordinator in a process of its own (hub.py) and shows
its lines. The same command on other machines, or once more on that one, only adds nodes. Nothing is left
behind: all processes die with the launcher even if it is killed, unless the run should outlive it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from holdfast import wording
from holdfast.record.clock import Clock, SystemClock
from holdfast.record.errors import HoldfastError, InputError
from holdfast.run import kin
from holdfast.run.agent import EXIT_DISCONNECTED, Assignment
from holdfast.run.distant import HeirOrder
from holdfast.run.endpoint import going_runs, keep_line, kept_line, run_directory
from holdfast.run.estate import Duties
from holdfast.run.handshake import Unreachable
from holdfast.run.heirs import MachineHeir, machine_name
from holdfast.run.hub import END_WAIT_S, HubOrder, Readiness, encoded, one_line
from holdfast.run.lines import LINES_FILE
from holdfast.run.nodes import LineOutlet, NodeAgent, end_orphans
from holdfast.run.output import STREAMS, Printer, View
from holdfast.run.prover import ProofOrder
from holdfast.run.site import Site, is_here, reach, survey
from holdfast.run.started_with import forget, keep
from holdfast.run.state import RunPolicy
from holdfast.run.status import Status
from holdfast.run.watching import STATUS_INTERVAL_S, Viewer, end_line, end_lines
from holdfast.run.wire import RunClosed, Said

CHECKPOINTS_DIRECTORY = "checkpoints"
AWAY_S = 3.0
"""How long a lost node stays away if no fault says otherwise."""
LAST_WORDS_WAIT_S = 0.2
"""Within this time the coordinator has read and passed on the last messages of a lost node."""
HANDOVER_WAIT_S = 2.0
"""How long the coordinator of another launcher that has the run's name may take to answer."""
TURN_INTERVAL_S = 1.0
"""How often a launcher whose coordinator is gone checks whether another one has taken over."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_SIGNALS = 2
"""From this many signals on, processes are killed without grace."""
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
NO_LINES = 1 << 62
"""A viewer that claims to have seen this many lines is sent none."""

Check = Callable[["Order"], None]
"""Raises `InputError` if the run should not begin."""
Display = Callable[[Callable[[], Status], Clock], AbstractContextManager[LineOutlet]]
"""Shows a run while the block lasts; the members print to its outlet."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The user's wishes for this machine, checked.

    policy: the run's policy if its coordinator starts here. is_named: the user gave its name. command: the
    script, ready to be started. nodes: how many agents. node_rank: as torchrun counts. coordinator: where it
    should be; None for here, for this machine alone. token: empty if none is set. view: which part of the
    members' output is shown. is_virtual: a member sees only its own GPU. signals: those that end the run.
    checkpoints: empty for the run's own directory. checkpoint_every, snapshot_every: None to choose by cost.
    checkpoint_rate: bytes a second; None for no limit. prove_every_s, proof_words: how often the newest
    checkpoint is proven, and the script and arguments for that. is_encrypted: all control connections must
    use TLS. is_detachable: the run outlives this process. storm_per_min: faults a minute, from `seed`.
    metrics: the address and port to serve them at, on the coordinator's machine. arbiter: the URL of the
    arbiter between two machines; empty for none.
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
    is_detachable: bool = False
    checkpoints: tuple[Path, ...] = ()
    checkpoint_every: int | None = None
    checkpoint_rate: float | None = None
    snapshot_every: int | None = None
    prove_every_s: float | None = None
    proof_words: tuple[str, ...] = ()
    address: str = ""
    role: str = "default"
    log_directory: Path | None = None
    view: View = View()
    is_virtual: bool = False
    signals: tuple[signal.Signals, ...] = SIGNALS
    storm_per_min: float = 0.0
    seed: int = 0
    metrics: tuple[str, int] | None = None
    arbiter: str = ""

    @property
    def leaving_signals(self) -> tuple[signal.Signals, ...]:
        """Those that end this process, and not the run."""
        is_free = self.is_detachable and signal.SIGINT not in self.signals
        return (signal.SIGINT,) if is_free else ()

    @property
    def own_checkpoints(self) -> tuple[Path, ...]:
        """The directories that the run writes its checkpoints to."""
        return self.checkpoints or (run_directory(self.home, self.policy.run) / CHECKPOINTS_DIRECTORY,)


def launch(order: Order, display: Display | None = None, check: Check = lambda order: None) -> int:
    """Carry out the order to the run's end. Returns the exit code of `holdfast run`. check: called before the
    run's coordinator starts here.
    """
    is_shared = order.policy.nodes_min > order.nodes
    site = survey(order.coordinator, order.token, is_shared=is_shared)
    site = msgspec.structs.replace(site, is_encrypted=order.is_encrypted)
    others = kin.children()
    kin.adopt_orphans()
    return asyncio.run(_launch(order, site, display, check, others))


async def _launch(
    order: Order, site: Site, display: Display | None, check: Check, others: frozenset[int]
) -> int:
    voice = _Voice()
    try:
        if (gone := await _gone_elsewhere(order, site)) is not None:
            voice.say(f"the run {order.policy.run} continues at {gone}: this machine joins it there")
            return await _join(order, gone, voice)
        if site.bind:
            try:
                check(order)
                return await _hold(order, site, display, voice)
            except HoldfastError as unable:
                await _expect_another(site, unable)
        return await _join(order, site, voice)
    finally:
        await end_orphans(others)
        voice.close()


async def _gone_elsewhere(order: Order, site: Site) -> Site | None:
    """Where the run continues, if another machine took over after this one was lost."""
    if not site.bind or not order.is_named:
        return None
    for host, port in kept_line(order.home, order.policy.run):
        there = msgspec.structs.replace(site, host=host, port=port, bind="")
        if (host, port) != (site.host, site.port):
            with suppress(HoldfastError):
                if await reach(there, 0) == order.policy.run:
                    return there
    return None


async def _expect_another(site: Site, unable: HoldfastError) -> None:
    """Raise `unable`, because the run could not start here, unless another launcher started it first."""
    if not site.port:
        raise unable
    try:
        await reach(site, HANDOVER_WAIT_S)
    except Unreachable:
        raise unable from None


# ---- with the coordinator --------------------------------------------------------------------------------


async def _hold(order: Order, site: Site, display: Display | None, voice: "_Voice") -> int:
    """Run to the end with a coordinator on this machine. Raise `HoldfastError` if it cannot start here."""
    wishes = _Wishes()
    heard = (*order.signals, *order.leaving_signals)
    with _signals(heard, wishes.take), _deaf(order):  # before any process is started
        return await _hold_heard(order, site, display, voice, wishes)


async def _hold_heard(
    order: Order, site: Site, display: Display | None, voice: "_Voice", wishes: "_Wishes"
) -> int:
    run = order.policy.run
    hub = await _start_hub(order, site, wishes)
    keep(order.home, run, order.policy.started_with)
    wishes.may_leave = bool(order.leaving_signals)
    site = msgspec.structs.replace(site, port=hub.port)
    screen = _Screen(voice, is_board=display is not None)
    viewer = Viewer(site, screen.show, seek_s=order.policy.wait_s)
    following = asyncio.create_task(viewer.follow())
    inheriting = asyncio.create_task(_follow_in_turn(order, site, hub, viewer))
    try:
        async with _shown(display, viewer, screen) as outlet:
            assignments = _assignments(
                order, site, run, _names(order, is_first=not site.is_shared), is_holder=True
            )
            nodes = [
                NodeAgent(one, outlet, partial(_struck_s, viewer), voice.say, lambda: viewer.place)
                for one in assignments
            ]
            conducting = asyncio.create_task(_conduct(hub, viewer, nodes, wishes))
            if not (is_left := await _is_left(wishes, conducting)):
                over = await conducting
                await asyncio.wait([following], timeout=END_WAIT_S)
        if is_left:
            _leave(
                f"run {run} goes on; `holdfast attach {run}` shows it, `holdfast stop {run}` ends it", voice
            )
    finally:
        following.cancel()
        inheriting.cancel()
        await asyncio.gather(inheriting, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_WAIT_S):
                await hub.process.wait()
    if over is None:
        voice.say(f"the coordinator at {site} is gone")
        voice.say(_way_on(run, viewer))
        return EXIT_FAILED
    keep_line(order.home, run, ())
    _keep_start(order, over)
    voice.tell_end(run, over)
    return over.code


def _keep_start(order: Order, over: RunClosed) -> None:
    """Keep what the run was started with, if it may be started again under its name."""
    if order.is_named or any(place.exists() for place in order.own_checkpoints):
        start = order.policy.started_with
        is_complete = over.outcome == "completed"
        keep(order.home, order.policy.run, msgspec.structs.replace(start, was_complete=is_complete))
    else:
        forget(order.home, order.policy.run)


async def _is_left(wishes: "_Wishes", working: "asyncio.Future[Any]") -> bool:
    """Wait for the end of the work, or for the operator to leave it."""
    leaving = asyncio.create_task(wishes.left.wait())
    await asyncio.wait([leaving, working], return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    return wishes.left.is_set() and not working.done()


def _leave(farewell: str, voice: "_Voice") -> NoReturn:
    """End this process and nothing else: asyncio would kill the processes that it has started."""
    voice.say(farewell)
    voice.close()
    os._exit(EXIT_INTERRUPTED)


async def _follow_in_turn(order: Order, site: Site, hub: "_HubProcess", viewer: Viewer) -> None:
    """After the coordinator has moved to another machine, keep an heir here, as other machines do."""
    await hub.process.wait()
    while viewer.place == (site.host, site.port):  # until another machine has taken over
        await asyncio.sleep(TURN_INTERVAL_S)
    heir = MachineHeir(_heir_order(order, site), lambda: viewer.place)
    try:
        await heir.keep()
    finally:
        await heir.finish(0.0)


class _HubProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator's process and port."""

    process: asyncio.subprocess.Process
    port: int


class _Wishes:
    """Signals that the operator sent to this process, kept until they can be passed on.

    left: the operator has left a detachable run with Ctrl-C.
    """

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.may_leave = False
        self._received: list[signal.Signals] = []
        self._pass_on: Callable[[signal.Signals], None] = lambda number: None

    def take(self, number: signal.Signals) -> None:
        if number == signal.SIGINT and self.may_leave:
            self.left.set()
            return
        self._received.append(number)
        self._pass_on(number)

    def pass_on(self, to: Callable[[signal.Signals], None]) -> None:
        """Pass on the signals received so far and all that follow."""
        self._pass_on = to
        for number in self._received:
            to(number)

    @property
    def are_urgent(self) -> bool:
        return len(self._received) >= PATIENCE_SIGNALS


async def _start_hub(order: Order, site: Site, wishes: _Wishes) -> _HubProcess:
    """Start the coordinator's process. Raise `HoldfastError` if the run cannot start here."""
    charge = HubOrder(
        policy=order.policy,
        home=str(order.home),
        site=site,
        launcher=0 if order.is_detachable else os.getpid(),
        started_by=os.getpid(),
        is_encrypted=order.is_encrypted,
        duties=Duties(metrics=order.metrics, storm_per_min=order.storm_per_min, seed=order.seed),
        machine=machine_name(),
        arbiter=order.arbiter,
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "holdfast.run.hub"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):  # it was killed before it could read
        process.stdin.write(encoded(charge))
        process.stdin.close()
    wishes.pass_on(lambda number: process.kill() if wishes.are_urgent else None)
    told = await process.stdout.read()
    if not told:
        await process.wait()
        raise HoldfastError("The coordinator's process ended before it could start.")
    ready = msgspec.json.decode(told, type=Readiness)
    if ready.sentence:
        await process.wait()
        raise (InputError if ready.is_mistake else HoldfastError)(ready.sentence, hint=ready.hint)
    return _HubProcess(process=process, port=ready.port)


async def _conduct(
    hub: _HubProcess, viewer: Viewer, nodes: Sequence[NodeAgent], wishes: _Wishes
) -> RunClosed | None:
    """Keep the nodes and pass on the operator's signals until the run ends."""
    signals = 0

    def stop(number: signal.Signals) -> None:
        nonlocal signals
        signals += 1
        with suppress(ProcessLookupError):  # a stopped coordinator would not hear it
            hub.process.send_signal(signal.SIGCONT)
        viewer.stop(number.name)
        if signals > PATIENCE_SIGNALS:
            for node in nodes:
                node.send_signal(signal.SIGKILL)

    keeping = [asyncio.create_task(node.keep()) for node in nodes]
    ended = asyncio.create_task(viewer.over())
    nodes_gone = asyncio.gather(*keeping)
    wishes.pass_on(stop)
    try:
        waits: list[asyncio.Future[Any]] = [ended, nodes_gone]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            viewer.stop("no agent lives on this machine")
        return await ended
    finally:
        await _end(nodes, keeping)


async def _end(nodes: Sequence[NodeAgent], keeping: Sequence[asyncio.Task[int]]) -> None:
    """Wait for the agents, which the coordinator told to exit, for a bounded time; then kill them."""
    for node in nodes:
        node.finish()
    _done, late = await asyncio.wait(keeping, timeout=END_WAIT_S)
    for node in nodes:
        node.send_signal(signal.SIGKILL)
    if late:
        await asyncio.wait(late, timeout=END_WAIT_S)


async def _struck_s(viewer: Viewer) -> float:
    """How long the node that was just lost stays away."""
    await asyncio.sleep(LAST_WORDS_WAIT_S)
    away_s, viewer.away_s = viewer.away_s, None
    return AWAY_S if away_s is None else away_s


@contextmanager
def _deaf(order: Order) -> Iterator[None]:
    """Ignore SIGHUP, the end of the terminal, if the run should outlive it."""
    if order.is_detachable and signal.SIGHUP not in order.signals:
        with _signals([signal.SIGHUP], lambda number: None):
            yield
    else:
        yield


class _Screen:
    """Where the lines for the operator go. A live display shows Holdfast's own lines itself."""

    def __init__(self, voice: "_Voice", *, is_board: bool) -> None:
        self.printer = voice.printer
        self.descriptor = STREAMS["stderr"]
        self._voice = voice
        self._is_board = is_board

    def show(self, said: Said) -> None:
        if said.member:  # last output that the agent held back: like its other lines
            lines = "".join(f"[{said.member}] {line}\n" for line in said.text.splitlines())
            self.printer.put(self.descriptor, lines.encode("utf-8", "replace"))
        elif not self._is_board:
            self._voice.say(said.text)


@asynccontextmanager
async def _shown(display: Display | None, viewer: Viewer, screen: _Screen) -> AsyncIterator[LineOutlet]:
    """Where the members' lines go while the run is shown."""
    if display is None:
        yield LineOutlet()
        return
    asking = asyncio.create_task(viewer.ask())
    try:
        await viewer.await_status()
        with display(viewer.status, SystemClock()) as outlet, _printer(screen, outlet):
            yield outlet
            await asyncio.sleep(2 * STATUS_INTERVAL_S)
    finally:
        asking.cancel()


@contextmanager
def _printer(screen: _Screen, outlet: LineOutlet) -> Iterator[None]:
    """Print to the members' outlet, and finish before a display closes it."""
    if outlet.stderr == STREAMS["stderr"]:
        yield  # in order with our own lines
        return
    before, screen.printer, screen.descriptor = screen.printer, Printer(lambda: None), outlet.stderr
    try:
        yield
    finally:
        screen.printer.close()
        screen.printer, screen.descriptor = before, STREAMS["stderr"]


# ---- without the coordinator -----------------------------------------------------------------------------


async def _join(order: Order, site: Site, voice: "_Voice") -> int:
    """Bring nodes to a run whose coordinator is elsewhere, until it ends."""
    run = await _meet(site, order.policy.wait_s, voice)
    if order.is_named and order.policy.run != run:
        raise InputError(
            f"The coordinator at {site} serves the run {run!r}, not {order.policy.run!r}.",
            hint="Leave --run out, or choose another port.",
        )
    names = _names(order, is_first=False)
    is_record_here = run in going_runs(order.home)
    voice.say(f"{wording.many(len(names), 'node')} of this machine for run {run}, coordinated at {site}")
    viewer = Viewer(site, lambda _said: None, seek_s=order.policy.wait_s, seen=NO_LINES)
    nodes = [
        NodeAgent(one, LineOutlet(), _away_s, voice.say, lambda: viewer.place)
        for one in _assignments(order, site, run, names)
    ]
    heir = MachineHeir(_heir_order(order, site), lambda: viewer.place)
    chores = [asyncio.create_task(work) for work in (viewer.follow(), heir.keep())]
    received: list[signal.Signals] = []
    wishes = _Wishes()
    wishes.may_leave = bool(order.leaving_signals)

    def end(number: signal.Signals) -> None:
        received.append(number)
        for node in nodes:
            node.finish()
            node.send_signal(signal.SIGTERM if len(received) < PATIENCE_SIGNALS else signal.SIGKILL)

    wishes.pass_on(end)
    is_over, over = False, None
    try:
        with _signals((*order.signals, *order.leaving_signals), wishes.take), _deaf(order):
            keeping = asyncio.gather(*(node.keep() for node in nodes))
            if await _is_left(wishes, keeping):
                _leave(f"this machine stays in run {run}, which {site} coordinates", voice)
            codes = await keeping
        is_over = not received and EXIT_DISCONNECTED not in codes
        is_lost = not viewer.is_connected  # otherwise only this node was given up
        if is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_WAIT_S):
                    over = await viewer.over()
    finally:
        await heir.finish(END_WAIT_S if is_over else 0.0)
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
    if received:
        return 128 + received[0]
    # The heir of this machine, if it has taken the run over, has told the end itself.
    has_moved_here = viewer.place != (site.host, site.port) and is_here(viewer.place[0])
    if over is not None and not has_moved_here:
        voice.say(end_line(run, over, "" if is_record_here else viewer.place[0]))
    if EXIT_DISCONNECTED in codes:
        voice.say(f"the coordinator at {site} is gone")
        if is_lost:
            voice.say(_way_on(run, viewer))
    return max(EXIT_FAILED if code < 0 or code == EXIT_DISCONNECTED else code for code in codes)


def _heir_order(order: Order, site: Site) -> HeirOrder:
    return HeirOrder(
        host=site.host,
        port=site.port,
        token=site.token,
        machine=machine_name(),
        home=str(order.home),
        memory=0,
        address=order.address or site.address,
        launcher=0 if order.is_detachable else os.getpid(),
        started_by=os.getpid(),
        arbiter=order.arbiter,
    )


async def _meet(site: Site, wait_s: float, voice: "_Voice") -> str:
    """The run's name, once its coordinator answers. It may start later than this node."""
    try:
        return await reach(site, 0)
    except Unreachable:
        if not wait_s:
            raise
    voice.say(f"waiting for the coordinator at {site}, for at most {wording.number(wait_s)} s")
    return await reach(site, wait_s)


async def _away_s() -> float:
    """How long a lost node stays away. Only the coordinator's launcher knows a fault's own duration."""
    return AWAY_S


# ---- in both cases ---------------------------------------------------------------------------------------


def _way_on(run: str, viewer: Viewer) -> str:
    """What to do after the run has lost its coordinator."""
    again = (
        f"start it again as before, with `--run {run}`: it goes on from its newest checkpoint, if it has one"
    )
    if viewer.may_be_elsewhere:
        return f"another machine may coordinate the run {run} by now; if none does, {again}"
    return f"the run {run} is over; {again}"


def _listed(directories: Sequence[Path]) -> str:
    """The directories for checkpoints as one string for members."""
    for one in directories:
        if os.pathsep in str(one.absolute()):
            raise InputError(
                f"A directory for checkpoints must not have {os.pathsep!r} in its name: {one.absolute()}.",
                hint="Choose another one with --checkpoints, or a link to it.",
            )
    return os.pathsep.join(str(one.absolute()) for one in directories)


def _proof(order: Order, run: str, checkpoints: Path) -> ProofOrder | None:
    if order.prove_every_s is None:
        return None
    return ProofOrder(
        every_s=order.prove_every_s, run=run, checkpoints=str(checkpoints.absolute()), words=order.proof_words
    )


def _assignments(
    order: Order, site: Site, run: str, names: Sequence[str], *, is_holder: bool = False
) -> list[Assignment]:
    """The assignments of the agents. is_holder: the coordinator and the run's directory are here."""
    directory = run_directory(order.home, run)
    checkpoints = order.checkpoints or (directory / CHECKPOINTS_DIRECTORY,)
    log_directory = str((order.log_directory / run).absolute()) if order.log_directory else ""
    return [
        Assignment(
            launcher=0 if order.is_detachable else os.getpid(),
            lines=str(directory / LINES_FILE) if is_holder else "",
            host=site.host,
            port=site.port,
            token=site.token,
            node=name,
            slots=order.policy.slots,
            command=order.command,
            checkpoints=_listed(checkpoints),
            checkpoint_every=order.checkpoint_every,
            checkpoint_rate=order.checkpoint_rate,
            snapshot_every=order.snapshot_every,
            proof=_proof(order, run, checkpoints[0]) if is_holder and number == 0 else None,
            role=order.role,
            address=order.address or site.address,
            log_directory=log_directory,
            view=order.view,
            is_virtual=order.is_virtual,
            grace_s=order.policy.grace_s,
            wait_s=order.policy.wait_s,
            local=(number, len(names)),
        )
        for number, name in enumerate(names)
    ]


def _names(order: Order, *, is_first: bool) -> list[str]:
    """n0, n1, … if this launcher can know which of these names are its own. Otherwise empty names: the agents
    then use their host's name, as schedulers do, by which control knows the machines.
    """
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


class _Voice:
    """Prints Holdfast's own lines on stderr. It never waits for a paused terminal."""

    def __init__(self) -> None:
        self.printer = Printer(lambda: None)

    def say(self, text: str) -> None:
        self._write(f"holdfast: {one_line(text)}\n")

    def tell_end(self, run: str, ending: RunClosed) -> None:
        for line in end_lines(run, ending):
            self._write(line + "\n")

    def close(self) -> None:
        self.printer.close()

    def _write(self, text: str) -> None:
        self.printer.put(STREAMS["stderr"], text.encode("utf-8", "replace"))
