"""`join()` makes a script a member of a run; `Run` and `State` are what the script then works with."""

import atexit
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self, get_args

import torch

from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.journal import JOURNAL_DIRECTORY, home
from holdfast.record.recorder import Recorder
from holdfast.run import memory, visible, wire
from holdfast.run.mesh import MeshShape
from holdfast.run.replaying import ReplayOrder
from holdfast.run.startup.sitecustomize import register
from holdfast.train import determinism, randomness, shards, tree
from holdfast.train.checkpoint import Checkpoints, Happened, Writer
from holdfast.train.control import Alone, Control, Coordinated, declared
from holdfast.train.data import whole
from holdfast.train.failures import ObservedFailure, device_failure
from holdfast.train.gradients import Gradients
from holdfast.train.group import Group, Rendezvous
from holdfast.train.levels import LeveledCheckpoints
from holdfast.train.libnccl import library
from holdfast.train.log import Log, LogFile, Sink
from holdfast.train.measures import Collections
from holdfast.train.meeting import Item, Meeting, Op, Result
from holdfast.train.mirror import EVERY
from holdfast.train.nccl import NcclGroup, pose, warm_up
from holdfast.train.parts import RunCheckpoints
from holdfast.train.protected import Protected, digest
from holdfast.train.rehearsal import Rehearsal, rehearse
from holdfast.train.replay import Earlier, LaneReplay, Replaying
from holdfast.train.seat import MakeGroup, RunOver, Seat
from holdfast.train.sharding import Sharding
from holdfast.train.shortage import OnShortage, Shortage
from holdfast.train.snapshots import MemoryFirst, MemorySnapshots, Restorable
from holdfast.train.steps import Loop, ProtectSettings, Step
from holdfast.train.storage_budget import StorageBudget
from holdfast.train.tcp import Credentials, TcpGroup

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

LOOPBACK = "127.0.0.1"
JOIN_SEED = 0
"""The seed of every member's generators, so that all members build the same model."""

UNSHARDED = (
    "holdfast: --shard asks for replicas of {ranks} ranks, but the script does not use run.mesh: every rank "
    "holds the whole model. Give run.mesh to fully_shard or parallelize_module, or leave out --shard."
)
SIGNAL_AGAIN_S = 0.005
"""A signal that cannot be obeyed at the moment is sent again after this time."""
FINISH_S = 4.0
"""How long a script that is told to leave may finish its work after a step. SIGKILL follows after 10 s, so
there is enough time left for a checkpoint.
"""


def join(*, warm: Rehearsal | None = None) -> "Run":
    """Become a member of the run that started this process; without such a run, a run with one member.

    A warm process waits here until it is needed. warm: what it does meanwhile, given its device: build a
    model as the script does, compile it, run it forward and backward on zeros, and drop it. Every generator
    is seeded with the same number, so that all members build the same model. The number of intra-op threads
    is fixed, because sums depend on it.
    """
    sys.excepthook = _complaining(sys.excepthook)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    control: Control
    if "HOLDFAST_COORDINATOR" in os.environ:
        register(os.environ)
        coordinated = control = Coordinated(os.environ)
        if not coordinated.admitted_soon():
            device = _warm_up()
            if warm is not None and device is not None:
                rehearse(warm, device)
            coordinated.warmed_up()
    elif (order := ReplayOrder.given(os.environ)) is not None:
        control = Replaying(order)
    else:
        control = Alone(_own_recorder())
    admitted = control.admitted()
    visible.narrow(os.environ, admitted.slot, admitted.slots)
    randomness.seed_all(JOIN_SEED)
    return Run(control, admitted)


class Run:
    """A member's place in the run. Use it as a context manager: code after the block runs after the run."""

    def __init__(self, control: Control, admitted: wire.Admitted) -> None:
        self._control = control
        self._admitted = admitted
        self._seat: Seat | None = None
        self._loop: Loop | None = None
        self._before: Any = None
        self._again: threading.Timer | None = None
        self._is_entered = False
        self._mesh: DeviceMesh | None = None
        self._sharding = Sharding(shape=admitted.mesh, rail=admitted.rail) if admitted.mesh.sizes else None
        self.device = _device(admitted.slot, admitted.slots)

    @property
    def member(self) -> str:
        """The name of this member."""
        return self._control.member

    @property
    def rank(self) -> int:
        """This member's rank among the current members. It may change from step to step.

        Rank 0 is the oldest member: a process that has it keeps it as long as it lives. Before `protect()`
        this is the rank that the process was started with; after it, the first use waits for the others.
        """
        return self._loop.rank if self._loop is not None else int(os.environ.get("RANK", "0"))

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that prints, logs and saves.

        False until its script has caught up with the others: a newcomer goes through earlier loops again.
        """
        return self.rank == 0 and not (self._seat is not None and self._seat.minutes.is_behind)

    @property
    def mesh(self) -> "DeviceMesh":
        """The ranks that hold one replica of the model together, for `fully_shard` and `parallelize_module`.

        Its dimensions are those of `holdfast run --shard`; a script started without `--shard` has one rank.
        """
        if self._mesh is None:
            from holdfast.train.mesh import make_mesh

            if self._sharding is None:
                self._sharding = Sharding(shape=MeshShape((("shard", 1),)), rail=0)
            sharding = self._sharding
            self._mesh = make_mesh(sharding.line, sharding.shape, sharding.rail, self.device)
        return self._mesh

    def _check_sharding(self, state: Protected, lanes: int) -> None:
        if state.is_sharded:
            from holdfast.train.mesh import MeshGroup, add_up

            shards.check_mesh(state.parameters, MeshGroup)
            add_up(state.models)
        if self._sharding is None:
            return
        if state.scaler is not None:
            raise InputError(
                "A GradScaler cannot be protected with a sharded model: each rank would scale by itself.",
                hint="Train in bfloat16, which needs no scaling.",
            )
        if lanes % self._sharding.shape.slices:
            raise InputError(
                f"{lanes} lanes cannot be cut into {self._sharding.shape.slices} slices each.",
                hint="Take a multiple of --shard: every rank computes one lane at a time.",
            )
        if self._mesh is None and self._sharding.shape.ranks > 1 and os.environ.get("RANK") == "0":
            print(UNSHARDED.format(ranks=self._sharding.shape.ranks), file=sys.stderr, flush=True)

    def alone(self, work: str) -> AbstractContextManager[None]:
        """Declare work that this member does by itself for longer than a step, such as an evaluation:

            if run.rank == 0:
                with run.alone("evaluation"):
                    evaluate()

        The others wait for it. While the block lasts, no member is ended for lack of progress.
        """
        return declared(self._control, work)

    def together(self, work: str) -> AbstractContextManager[None]:
        """Declare work that all members do at the same time for longer than a step. Each of them declares it
        for itself, and none waits for the others here.
        """
        return self.alone(work)

    def protect(
        self,
        *things: object,
        lanes: int,
        seed: int,
        clip_norm: float | None = None,
        accumulate: int = 1,
        moving: Sequence[str] = (),
        on_commit: Callable[[], None] | None = None,
        deterministic: bool = True,
        mirror_every: int = EVERY,
        on_shortage: OnShortage = "same bits",
    ) -> "State":
        """Have the run protect a model, its optimizer, scheduler and anything else that has a state.

        lanes: a power of two, the same for the run's whole life. clip_norm: the norm to which gradients are
        clipped. accumulate: how often a lane calls `backward`. moving: buffers besides BatchNorm's that
        forward changes, in lanes and nowhere else; they are averaged over lanes. on_commit: called after the
        optimizer to change protected things, such as an average of weights. deterministic: use only kernels
        that always give the same bits; False continues without that promise and names the operations that
        break it. mirror_every: for a sharded model with one replica, how many steps apart each rank's whole
        state is sent to another rank; 0: never, and a lost rank sends the run back to its checkpoint.
        on_shortage: while replicas are missing, the others also compute their lanes ("same bits"), or those
        lanes are skipped and recorded ("smaller batch").
        """
        self._check_moment()
        lanes, accumulate, seed = whole("lanes", lanes), whole("accumulate", accumulate), whole("seed", seed)
        _check_choices(lanes, accumulate, mirror_every, on_shortage)
        state = Protected(things, moving)
        self._check_sharding(state, lanes)
        if state.device.type == "cuda" and self._control.is_asked:
            library()  # report a mistake before anything depends on it
        determinism.require(deterministic, state.device)
        parts = {
            **state.parts(),
            "protect(clip_norm=…)": str(clip_norm),
            "protect(accumulate=…)": str(accumulate),
            "protect(moving=…)": ", ".join(moving),
            "protect(mirror_every=…)": str(mirror_every),
        }
        setup = wire.Setup(
            lanes=lanes,
            seed=seed,
            threads=torch.get_num_threads(),
            torch=str(torch.__version__),
            device=_kind(state.device),
            deterministic=deterministic,
            model=digest(parts),
            parts=parts,
            on_shortage=on_shortage,
        )
        checkpoints: Checkpoints | None
        checkpoints, writer = self._checkpoints(state)
        snapshots = self._snapshots(state.device)
        sharding = self._sharding
        order = self._control.order if isinstance(self._control, Replaying) else None
        kept = checkpoints
        if order is not None:
            checkpoints, writer = self._earlier(checkpoints, order), None
        levels: Restorable | None = checkpoints
        if snapshots is not None:
            levels = MemoryFirst(snapshots, checkpoints)
        gradients = Gradients(state, lanes, accumulate, sharding)
        make_group = _maker(state.device)
        identity = {"lanes": lanes, "seed": seed, "threads": setup.threads}
        shortage = Shortage(
            on_shortage,
            self._admitted.skipped,
            lanes=lanes,
            slices=1 if sharding is None else sharding.shape.slices,
        )
        self._seat = Seat(
            *(self._control, state, gradients, identity, make_group, levels, sharding, mirror_every),
            shortage,
            _maker(torch.device("cpu")) if state.device.type == "cuda" else None,
        )
        settings = ProtectSettings(lanes=lanes, seed=seed, clip_norm=clip_norm, on_commit=on_commit)
        replay = LaneReplay(order, state, lanes, kept)
        self._loop = Loop(self._control, state, settings, gradients, self._seat, writer, replay, snapshots)
        self._control.ready(setup)
        return State(state, self._loop, self._seat)

    def _check_moment(self) -> None:
        """Raise unless `protect()` is called for the first time and inside the block."""
        if self._loop is not None:
            raise InputError(
                "protect() was called twice.", hint="Give it everything in one call: models, optimizers, all."
            )
        if not self._is_entered:
            raise InputError(
                "protect() was called outside `with hf.join() as run:`.",
                hint="The end of that block tells the others that this member is through.",
            )

    # ---- between steps: exchanges among members ----------------------------------------------------------

    def broadcast(self, value: object) -> Any:
        """The value of rank 0, on every member. A function is called there, and only there.

        Call this and the other functions below after `protect()`, between steps and outside the loop, on
        every member in the same order. If a member dies, the others continue without it.
        """
        return self._meeting("broadcast").broadcast(value)

    def reduce(self, value: float | torch.Tensor, op: Op = "sum") -> Any:
        """The sum, mean, min or max of the members' values, in rank order."""
        return self._meeting("reduce").reduce(value, op)

    def gather(self, value: object) -> list[Any]:
        """The members' values, in rank order."""
        return self._meeting("gather").gather(value)

    def barrier(self) -> None:
        """Wait until all members are here."""
        self._meeting("barrier").barrier()

    def share(self, items: Iterable[Item], work: Callable[[Item], Result]) -> list[Result]:
        """`work(item)` for all items, in order, on every member; each member does a part of them.

        The result does not depend on which member did which item, nor on the number of members, if `work`
        does not. The ranks of a replica do the same items together, so a sharded model can be evaluated here.
        A result is None only if a rank of the last whole replica was lost while the item was computed.
        """
        return self._meeting("share").share(items, work)

    def log(self, sink: str | os.PathLike[str] | Sink) -> Log:
        """A log of steps: a file of JSON lines, or a function of a step's number and values.

        Every member calls it once a step, `log(step, loss=step.loss)`; rank 0 writes. Each step is in the
        file once and in order, whichever member dies. A function is called at least once for every step.
        """
        loop = self._begun("log")
        log = Log(sink if callable(sink) else LogFile(Path(sink)), loop.writes)
        loop.logs.append(log)
        return log

    def _meeting(self, called: str) -> Meeting:
        return self._begun(called).meeting

    def _begun(self, called: str) -> Loop:
        if self._loop is None:
            raise InputError(
                f"run.{called}() was called before protect().",
                hint="Members know each other once their models are built: call it after protect().",
            )
        return self._loop

    def _checkpoints(self, state: Protected) -> tuple[Checkpoints | None, Writer | None]:
        told = os.environ.get("HOLDFAST_CHECKPOINTS", "")
        if "://" in told:
            raise InputError(
                f"HOLDFAST_CHECKPOINTS is {told}, but must be a directory.",
                hint="`holdfast run --checkpoints-also` copies checkpoints to object storage.",
            )
        places = [place for place in told.split(os.pathsep) if place]
        if not places:
            return None, None
        sharding = self._sharding or Sharding(shape=MeshShape(), rail=0)
        rate = os.environ.get("HOLDFAST_CHECKPOINT_RATE")
        budget = StorageBudget(float(rate)) if rate else None
        levels = [
            RunCheckpoints(
                Path(place),
                mesh=sharding.shape,
                rail=sharding.rail,
                wanted=state.wanted(),
                told=self._tell_checkpoint,
                budget=budget,
            )
            for place in places
        ]
        checkpoints = LeveledCheckpoints(levels, told=self._tell_checkpoint)
        every = os.environ.get("HOLDFAST_CHECKPOINT_EVERY")
        return checkpoints, Writer(
            checkpoints,
            told=self._tell_checkpoint,
            every_steps=int(every) if every else None,
            run=os.environ.get("HOLDFAST_RUN", ""),
        )

    def _snapshots(self, device: torch.device) -> MemorySnapshots | None:
        """Snapshots in the memory that this node's agent holds; None if it holds none."""
        slots = memory.given(os.environ)
        if not self._admitted.slot < len(slots):
            return None
        every = os.environ.get(memory.EVERY_VARIABLE)
        sharding = self._sharding
        return MemorySnapshots(
            slots,
            self._admitted.slot,
            node=os.environ.get("HOLDFAST_NODE", ""),
            device=device,
            told=_SnapshotTeller(self._control),
            every=int(every) if every else None,
            part=(0, 1) if sharding is None else (sharding.rail, sharding.shape.ranks),
        )

    def _earlier(self, kept: Checkpoints | None, order: ReplayOrder) -> Checkpoints | None:
        """The checkpoints that a replay may begin from."""
        if self._sharding is not None:
            raise InputError(
                "A step of a sharded model cannot be replayed.",
                hint="Replay only works for models that are not sharded.",
            )
        return None if kept is None else Earlier(kept, order.step - 1)

    def _tell_checkpoint(
        self, happened: Happened, step: int, place: str, reason: str = "", **measured: int | None
    ) -> None:
        self._control.say(
            wire.Checkpointed(
                member=self.member,
                happened=happened,
                step=step,
                place=place,
                reason=reason,
                is_snapshot=False,
                **measured,
            )
        )

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # A signal leaves through __exit__, which saves the state.
            self._before = signal.signal(signal.SIGTERM, self._leave)
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        over = kind is not None and issubclass(kind, RunOver)
        is_exit = isinstance(error, SystemExit) and error.code in (None, 0)
        if self._again is not None:
            self._again.cancel()  # it is leaving already
        failure = device_failure(error)
        try:
            if (kind is None or is_exit) and self._loop is not None:
                self._loop.finish(is_exit=is_exit)
            elif failure is None and not over and self._loop is not None:
                self._loop.keep_at_exit(is_failed=isinstance(error, Exception))
        except Exception as raised:
            failure = device_failure(raised)
            raise
        finally:
            if self._before is not None:
                signal.signal(signal.SIGTERM, self._before)
            if failure is not None:
                self._say_failed(failure)  # do not touch the device again
            elif self._loop is not None:
                self._loop.close()
            is_well = error is None or over or is_exit
            self._control.close("" if is_well else str(error) or type(error).__name__)
        return over

    def _leave(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM. The work that follows a committed step is done first, so that the next process does
        not miss it.
        """
        if Collections.is_told(frame):  # an exception here would be lost: try again soon
            self._signal_again(SIGNAL_AGAIN_S, number)
        elif self._loop is not None and self._loop.leave_soon(128 + number):
            self._signal_again(FINISH_S, number)
        else:
            raise SystemExit(128 + number)

    def _signal_again(self, after_s: float, number: int) -> None:
        self._again = threading.Timer(after_s, os.kill, (os.getpid(), number))
        self._again.daemon = True
        self._again.start()

    def _say_failed(self, failure: ObservedFailure) -> None:
        """Send this member's last message."""
        generation = self._seat.number if self._seat is not None else 0
        step = self._seat.version + 1 if self._seat is not None and generation else 0
        self._control.on_superseded(None)
        self._control.say(
            wire.DeviceFailed(
                member=self.member,
                generation=generation,
                step=step,
                failure=failure.failure,
                detail=failure.detail,
            )
        )


class _SnapshotTeller:
    """Reports snapshots to the coordinator."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def kept(self, step: int, stall_ns: int, size_bytes: int) -> None:
        self._control.say(
            wire.Snapshotted(member=self._control.member, step=step, stall_ns=stall_ns, size_bytes=size_bytes)
        )

    def failed(self, step: int, place: str, reason: str) -> None:
        self._control.say(
            wire.Checkpointed(
                member=self._control.member,
                happened="failed",
                step=step,
                place=place,
                reason=reason,
                is_snapshot=True,
            )
        )


class State:
    """The protected state, as the training loop sees it."""

    def __init__(self, state: Protected, loop: Loop, seat: Seat) -> None:
        self._state = state
        self._loop = loop
        self._seat = seat

    @property
    def version(self) -> int:
        """The number of the last committed step."""
        return self._seat.version

    def digest(self) -> str:
        """A hash of every protected byte: equal for equal states and, but for chance, only for these."""
        return self._state.digest()

    def steps(self, total: int) -> Iterator[Step]:
        """The steps still to be done, from where the run is up to number `total`."""
        return self._loop.steps(total)


def _check_choices(lanes: int, accumulate: int, mirror_every: int, on_shortage: OnShortage) -> None:
    """Check the settings of `protect()`."""
    if not tree.is_lane_count(lanes):
        raise InputError(
            f"lanes={lanes} is not a power of two between 1 and {tree.LANES_MAX}.",
            hint="Take 8 or 16: a few times as many as there will be members.",
        )
    if whole("mirror_every", mirror_every) < 0:
        raise InputError(f"mirror_every={mirror_every} is not a number of steps.", hint="Take 0 or more.")
    if on_shortage not in get_args(OnShortage):
        raise InputError(
            f"on_shortage={on_shortage!r} is not one of the choices.",
            hint='Take "same bits" or "smaller batch".',
        )
    if accumulate < 1:
        raise InputError(f"accumulate={accumulate} is not a number of calls.", hint="Take 1 or more.")


def _maker(device: torch.device) -> MakeGroup:
    """A function that makes groups for tensors on this device."""
    address = os.environ.get("HOLDFAST_ADDRESS", LOOPBACK)
    credentials = Credentials(os.environ.get("HOLDFAST_RUN", ""), os.environ.get("HOLDFAST_TOKEN", ""))

    def make(store: Rendezvous, rank: int, size: int, superseded: Callable[[], bool]) -> Group:
        if device.type == "cuda":
            return NcclGroup(store, rank=rank, size=size, device=device, superseded=superseded)
        return TcpGroup(
            store, rank=rank, size=size, address=address, credentials=credentials, superseded=superseded
        )

    return make


def _device(slot: int, slots: int) -> torch.device:
    """This slot's GPU, shared by several slots if there are too few; the CPU if there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    number, is_shared = 0, False
    if visible.VIRTUAL not in os.environ:
        local_node = os.environ.get("HOLDFAST_LOCAL_NODE", "0/1")
        number, is_shared = gpu_of(slot, slots, local_node, torch.cuda.device_count())
    if is_shared:
        pose(os.environ.get("HOLDFAST_MEMBER", ""), os.environ.get("HOLDFAST_ADDRESS", LOOPBACK))
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device


def gpu_of(slot: int, slots: int, local_node: str, gpus: int) -> tuple[int, bool]:
    """The number of a slot's GPU on the machine, and whether members share GPUs there.

    local_node: `1/4` is the second of four nodes of this run that are on this machine.
    """
    node, _, nodes = local_node.partition("/")
    return (int(node) * slots + slot) % gpus, int(nodes) * slots > gpus


def _kind(device: torch.device) -> str:
    """The property of a device that its arithmetic depends on."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _own_recorder() -> Recorder:
    name = os.environ.get("HOLDFAST_RUN") or f"{Path(sys.argv[0]).stem or 'python'}-{secrets.token_hex(3)}"
    return Recorder(home(os.environ) / JOURNAL_DIRECTORY, run=name)


WARM_WIDTH = 256
WARM_HEADS = 4


def _warm_up() -> torch.device | None:
    """Do once, with dummy data, what the first step does, so that everything it needs of torch is loaded.

    Optimizers import the compiler's front end on first use, which alone takes longer than a recovery may. If
    the GPU that this process will have is already known, also start its context, load the usual kernels, and
    warm NCCL up. Returns the process's future device; None if it is not known yet.
    """
    slots = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    is_seated = os.environ.get(visible.VIRTUAL) != visible.UNSEATED  # else CUDA must not start yet
    is_clear = is_seated and torch.cuda.is_available() and (slots == 1 or torch.cuda.device_count() == 1)
    device = _device(0, slots) if is_clear else torch.device("cpu")
    layers = torch.nn.Sequential(
        torch.nn.Embedding(16, WARM_WIDTH),
        torch.nn.TransformerEncoderLayer(WARM_WIDTH, WARM_HEADS, activation="gelu", batch_first=True),
    )
    model = layers.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        loss = model(torch.zeros(2, 8, dtype=torch.int64, device=device)).float().log_softmax(-1).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    digest(optimizer.state_dict())
    if device.type == "cuda":
        warm_up(device)
        torch.cuda.empty_cache()
    return device if is_clear or not torch.cuda.is_available() else None


def _complaining(previous: Callable[..., Any]) -> Callable[..., Any]:
    """Make a user's mistake end the script with one sentence instead of a traceback."""

    def complain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error = determinism.mistake_in(error) or error
        if isinstance(error, HoldfastError):
            print(error.told, file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(2)
        previous(kind, error, trace)
        if device_failure(error) is not None and "HOLDFAST_COORDINATOR" in os.environ:
            # Exit handlers of other libraries may wait for the device for ever.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(wire.CODE_DEVICE_FAILED)
        if isinstance(error, Exception):
            # Skip the interpreter's shutdown, which takes seconds with torch: others wait for this exit.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    return complain
