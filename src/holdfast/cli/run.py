"""`holdfast run`: run a training script, in place of torchrun."""

import os
import re
import secrets
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import msgspec

from holdfast.cli import torchrun
from holdfast.cli.flags import FiniteRange, argument, option, takes
from holdfast.cli.record import home, open_record
from holdfast.cli.run_again import check_unchanged
from holdfast.cli.terminal import say
from holdfast.record.errors import InputError
from holdfast.record.files import require_directory
from holdfast.run.arbiter import arbiter_at
from holdfast.run.audits import RATE
from holdfast.run.chaos import read_plan
from holdfast.run.endpoint import lost_runs
from holdfast.run.launcher import SIGNALS, Order, launch
from holdfast.run.mesh import MeshShape
from holdfast.run.output import Stream, View
from holdfast.run.script import TrainingScript, checked_name
from holdfast.run.skipped import skipped_by
from holdfast.run.started_with import started_with
from holdfast.run.state import RunPolicy
from holdfast.run.visible import gpus_seen, too_few
from holdfast.run.wire import SLOTS_MAX, PlannedFault, SkippedLanes
from holdfast.wording.parsing import bytes_per_second, some_seconds

DEFAULT_PORT = 29400
"""torchrun's default, for an endpoint without a port."""
WAIT_S = 600.0
GRACE_S = 10.0


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    script: str = argument()
    arguments: tuple[str, ...] = argument(nargs=-1, type=click.UNPROCESSED)
    nproc_per_node: str = torchrun.option(
        "Members of a node: a number, gpu, cpu or auto.  [default: 1]", default="1", metavar="N"
    )
    nnodes: str | None = torchrun.option(
        "Nodes of the run; with a range it goes on with at least MIN.  [default: 1:NODES]",
        metavar="N|MIN:MAX",
    )
    shard: str | None = option(
        "Members of one replica of a sharded model, or the sizes of its mesh: shard=2,tp=2.",
        metavar="N|DIM=N,...",
    )
    nodes: int = option(
        "Nodes on this machine, each with an agent.  [default: 1]",
        type=click.IntRange(1, SLOTS_MAX),
        default=1,
        metavar="N",
    )
    coordinator: str | None = torchrun.option(
        "--coordinator",
        "--rdzv-endpoint",
        "Where the run's nodes meet; the same on all of them. It runs on HOST.",
        by="--rdzv-endpoint",
        metavar="HOST:PORT",
    )
    tls: bool = option(
        "Encrypt the connections to the coordinator, with the run's own key.  [env: HOLDFAST_TLS]",
        envvar="HOLDFAST_TLS",
    )
    arbiter: str = option(
        "A PostgreSQL database that decides which of two machines goes on, if they lose each other; the same "
        "on all nodes.  [env: HOLDFAST_ARBITER]",
        default="",
        envvar="HOLDFAST_ARBITER",
        metavar="URL",
    )
    run: str | None = torchrun.option(
        "--run",
        "--rdzv-id",
        "The run's name in the record.  [default: from the script's name]",
        by="--rdzv-id",
        metavar="NAME",
    )
    warm: int = option(
        "Processes a node keeps ready to step in.  [default: 1]",
        type=click.IntRange(0, SLOTS_MAX),
        default=1,
        metavar="N",
    )
    max_restarts: int = torchrun.option(
        "Restarts of a script that does not join, as a whole.  [default: 3]",
        type=click.IntRange(min=0),
        default=3,
        metavar="N",
    )
    wait_s: float | None = option(
        "--wait", "The longest to wait for nodes.  [default: 600]", type=FiniteRange(min=0), metavar="S"
    )
    hang_after_s: float | None = option(
        "--hang-after",
        "End a member that holds the others up for so long, from the run's first commit on; start a script "
        "that does not join again when it has stood for so long.  [default: from the run's own steps]",
        type=FiniteRange(min=0, min_open=True),
        metavar="S",
    )
    no_rebalance: bool = option("Deal lanes evenly, even if a member is slow.")
    audit: float | None = option(
        "Compute this share of lanes twice and compare, to find silent corruption; 0: never. "
        f"Not with --shard.  [default: {RATE:g}]",
        type=FiniteRange(min=0, max=1),
        metavar="SHARE",
    )
    is_module: bool = torchrun.option(
        "-m", "--module", "SCRIPT is a module, as with python -m.", by="--module"
    )
    no_python: bool = torchrun.option("SCRIPT is a program of its own.")
    checkpoints: tuple[str, ...] = option(
        "For durable checkpoints. Given again: where they go if that fails. A URL: as --checkpoints-also.  "
        "[default: $HOLDFAST_HOME/runs/RUN/checkpoints]",
        metavar="DIR|URL",
    )
    checkpoints_also: tuple[str, ...] = option(
        "A further place that checkpoints are copied to in the background, and fetched from if it has a "
        "newer one: a directory or s3://BUCKET/PREFIX; ,keep=N behind it: how many stay there.  [default: 2]",
        metavar="PLACE",
    )
    checkpoint_every: int | None = option(
        "How often.  [default: by cost, and at most every 10 s]", type=click.IntRange(min=1), metavar="STEPS"
    )
    checkpoint_rate: float | None = option(
        "What saving may take of storage, over all members: 500MB/s.  [default: as fast as it goes]",
        type=bytes_per_second,
        metavar="RATE",
    )
    prove_every: float | None = option(
        "How often a fresh process loads the newest checkpoint, computes a step and compares it with the "
        "run's: 6h. Not on GPUs.  [default: never]",
        type=some_seconds,
        metavar="TIME",
    )
    snapshot_every: int | None = option(
        "How often the state is copied into memory that outlives the members; 0: never.  "
        "[default: by cost, and at most every second]",
        type=click.IntRange(min=0),
        metavar="STEPS",
    )
    log_dir: Path | None = torchrun.option(
        "Also write each member's output to DIR/RUN/MEMBER/stdout.log.", metavar="DIR"
    )
    skip_lanes: str | None = option(
        "Skip the lanes that RUN skipped, to repeat it bit for bit.", metavar="RUN"
    )
    chaos: str | None = option("Inject faults: a plan (TOML), or a number per minute.", metavar="PLAN|RATE")
    seed: int | None = option(
        "Seed of the random faults.  [default: a new one]", type=click.IntRange(min=0), metavar="S"
    )
    changed: bool = option(
        "Go on from the run's checkpoint although the script or its arguments have changed."
    )
    team: str = option(
        "The team that owns the run, for the record and its metrics.", default="", metavar="NAME"
    )
    project: str = option("The run's project, for `holdfast finance`.", default="", metavar="NAME")
    cluster: str = option("The run's cluster, for prices by cluster.", default="", metavar="NAME")
    metrics_port: int | None = option(
        "Serve the run's metrics for Prometheus, on its coordinator's machine; 0: any free port.",
        type=click.IntRange(0, 65535),
        metavar="PORT",
    )
    metrics_host: str = option(
        "The address for --metrics-port.  [default: 127.0.0.1]", default="127.0.0.1", metavar="ADDRESS"
    )
    size: Path | None = option(
        "The model, its layout and its data loader (TOML), checked before anything starts."
    )
    detachable: bool = option(
        "The run outlives this command, Ctrl-C too: `holdfast attach RUN` shows it, `stop RUN` ends it."
    )
    live: bool = option(
        "--live/--no-live", "Show the run while it goes.  [default: --no-live]", default=False
    )
    node_rank: int | None = torchrun.option("Names this node nR.", type=click.IntRange(min=0), metavar="R")
    master_addr: str | None = torchrun.option(
        "The coordinator's host, if --coordinator is not given.", metavar="HOST"
    )
    master_port: int | None = torchrun.option("And its port.", type=click.IntRange(0, 65535), metavar="PORT")
    local_addr: str | None = torchrun.option(
        "This node's address for the other nodes, if it cannot be found out.", metavar="ADDRESS"
    )
    role: str = torchrun.option("ROLE_NAME in the members' environment.", default="default", metavar="NAME")
    tee: str = torchrun.option(
        "-t",
        "--tee",
        "Write streams to files and show them: 1 stdout, 2 stderr, 3 both; or by local rank, 0:3,1:2.",
        default="0",
        metavar="N|R:N,...",
    )
    redirects: str = torchrun.option(
        "-r",
        "--redirects",
        "Write streams to files and do not show them; as --tee.",
        default="0",
        metavar="N|R:N,...",
    )
    local_ranks_filter: str = torchrun.option(
        "Show only what these local ranks print.", default="", metavar="R,..."
    )
    duplicate_stdout_filters: str | None = torchrun.option(
        "Write shown lines with one of these words to filtered_stdout.log, too.", metavar="WORD,..."
    )
    duplicate_stderr_filters: str | None = torchrun.option("The same for stderr.", metavar="WORD,...")
    virtual_local_rank: bool = torchrun.option(
        "LOCAL_RANK is 0 in every member, and each sees only its own GPU."
    )
    shutdown_timeout: int | None = torchrun.option(
        "From SIGTERM to SIGKILL, for members that must end.  [default: 10]",
        type=click.IntRange(min=0),
        variables=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
        metavar="S",
    )
    signals_to_handle: str | None = torchrun.option(
        "Signals that end the run.  [default: SIGINT,SIGTERM,SIGHUP; detachable: SIGTERM]", metavar="NAME,..."
    )
    rdzv_conf: str = torchrun.option(
        "join_timeout is --wait; other keys have no effect.", default="", metavar="KEY=VALUE,..."
    )
    standalone: bool = torchrun.option("Run on this machine alone, whatever other flags say.")
    run_path: bool = torchrun.option("SCRIPT is a file for Python; overrides --no-python.")


@click.command(
    "run",
    context_settings={
        "allow_interspersed_args": False,
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)
@takes(_Flags)
@torchrun.accepted(
    "--rdzv-backend",
    "Either means the same: the nodes meet at the coordinator.",
    type=click.Choice(["c10d", "static"]),
    default="c10d",
)
@torchrun.without_effect("--monitor-interval", "an exit is seen at once.", type=float, metavar="S")
@torchrun.without_effect(
    "--start-method",
    "every member is a program of its own.",
    type=click.Choice(["spawn", "fork", "forkserver"]),
)
@torchrun.without_effect("--event-log-handler", "what happens is in the record.", metavar="NAME")
@torchrun.refused(
    "--logs-specs", "members' output is read by their agent", "Use --tee, --redirects and --log-dir."
)
@torchrun.refused(
    "--numa-binding",
    "members are not bound to CPUs",
    "Start the script with --no-python and numactl, or let it bind itself.",
)
def command(given: _Flags) -> int:
    """Run SCRIPT with its ARGUMENTS on one or more nodes, as torchrun would, and keep it going.

    A script that calls holdfast.train.join() goes on through the loss of members and nodes with the same
    bits; any other is restarted as a whole. Several machines: the same command on each, with --nnodes,
    --coordinator and $HOLDFAST_TOKEN.
    """
    order = order_of(given)
    if order.policy.run in {lost.run for lost in lost_runs(order.home)}:
        with open_record(os.environ.get("HOLDFAST_STORE")):
            pass  # which writes down that the attempt before this one is over
    if order.log_directory is None and _wants_files(given):
        made = Path(tempfile.mkdtemp(prefix="holdfast_"))
        say(f"log files are in {made / order.policy.run}")
        order = msgspec.structs.replace(order, log_directory=made)
    for doubt in _doubts(given, order.policy):
        say(doubt)
    display = None
    if given.live:
        from holdfast.cli.live import show

        display = show
    from holdfast.train.left_copies import remove_left_copies

    remove_left_copies(order.own_checkpoints)
    check = partial(check_unchanged, goes_on=given.changed)
    if not (further := _further(given)):
        return launch(order, display, check)
    from holdfast.train.further_places import filled, further_place

    with filled(order, [further_place(text) for text in further], say):
        return launch(order, display, check)


def _further(given: _Flags) -> list[str]:
    """The places to which checkpoints are copied."""
    return [*(text for text in given.checkpoints if "://" in text), *given.checkpoints_also]


def _doubts(given: _Flags, policy: RunPolicy) -> Iterator[str]:
    """Warn of settings that will slow the run down, before it starts. Raises `InputError` for wrong ones."""
    cpus = len(os.sched_getaffinity(0))
    threads, members = os.environ.get("OMP_NUM_THREADS", ""), given.nodes * policy.slots
    if threads.isascii() and threads.isdigit() and members * int(threads) > max(cpus, members):
        total = members * int(threads)
        yield f"OMP_NUM_THREADS={threads} makes {total} threads of {members} members on {cpus} CPUs."
    if given.size is not None:
        from holdfast.cli.plan.size import layout_of
        from holdfast.economics.sizing.starting import Dimensions, run_doubts

        planned = Dimensions(
            nodes_min=policy.nodes_min,
            nodes_max=policy.nodes_max,
            slots=policy.slots,
            cpus_per_node=cpus // given.nodes,
            layout=layout_of(policy.mesh),
        )
        yield from run_doubts(given.size, planned)


def order_of(given: _Flags) -> Order:
    """What the flags ask for."""
    script = TrainingScript(
        name=given.script,
        arguments=given.arguments,
        is_module=given.is_module and not given.run_path,
        is_program=given.no_python and not given.run_path,
    )
    command = script.command
    slots = _slots(given.nproc_per_node)
    mesh = MeshShape() if given.shard is None else MeshShape.parse(given.shard)
    nodes_min, nodes_max = _node_range(given, -(-mesh.ranks // slots))
    mesh.check_fits(slots=slots, nodes_min=nodes_min)
    if given.virtual_local_rank and too_few(os.environ, given.nodes * slots):
        raise InputError(
            f"--virtual-local-rank gives a GPU to each of {given.nodes * slots} members; "
            f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']} has fewer.",
            hint="Start fewer members, or leave the flag out.",
        )
    checkpoints = tuple(Path(text) for text in given.checkpoints if "://" not in text)
    for flag, place in (*(("--checkpoints", one) for one in checkpoints), ("--log-dir", given.log_dir)):
        require_directory(flag, place)
    plan, storm_per_min = _chaos(given.chaos)
    skipped, skipped_of = _skipped(given.skip_lanes)
    policy = RunPolicy(
        run=script.run_name if given.run is None else checked_name(given.run),
        team=given.team,
        project=given.project,
        cluster=given.cluster,
        started_with=started_with(script.name, script.file, script.arguments),
        slots=slots,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        nodes_own=given.nodes,
        warm=given.warm,
        max_restarts=given.max_restarts,
        wait_s=_wait_s(given),
        grace_s=GRACE_S if given.shutdown_timeout is None else float(given.shutdown_timeout),
        hang_after_s=given.hang_after_s,
        may_join=script.may_join,
        rebalances=not given.no_rebalance,
        faults=plan,
        mesh=mesh,
        skipped=skipped,
        skipped_of=skipped_of,
        audit_rate=_audit_rate(given.audit, mesh),
    )
    return Order(
        policy=policy,
        is_named=given.run is not None,
        command=command,
        home=home().absolute(),
        nodes=given.nodes,
        node_rank=given.node_rank,
        coordinator=_place(given, nodes_max),
        token=os.environ.get("HOLDFAST_TOKEN", ""),
        is_encrypted=given.tls,
        is_detachable=given.detachable,
        checkpoints=checkpoints,
        checkpoint_every=given.checkpoint_every,
        checkpoint_rate=given.checkpoint_rate,
        snapshot_every=given.snapshot_every,
        prove_every_s=given.prove_every,
        proof_words=() if given.prove_every is None else _proof_words(given),
        address=given.local_addr or "",
        role=given.role,
        log_directory=None if _is_nowhere(given.log_dir) else given.log_dir,
        view=_view(given, slots),
        is_virtual=given.virtual_local_rank,
        signals=_signals(given.signals_to_handle, is_detachable=given.detachable),
        storm_per_min=storm_per_min,
        seed=secrets.randbits(32) if given.seed is None else given.seed,
        metrics=None if given.metrics_port is None else (given.metrics_host, given.metrics_port),
        arbiter=_arbiter(given.arbiter),
    )


def _arbiter(url: str) -> str:
    """The URL. Raises `InputError` if it is not one of a PostgreSQL database."""
    arbiter_at(url, "", 0)
    return url


def _audit_rate(wanted: float | None, mesh: MeshShape) -> float:
    if not mesh.sizes:
        return RATE if wanted is None else wanted
    if wanted:
        raise InputError(
            "--audit cannot be used with --shard: a replica of several members is not audited.",
            hint="Leave one of them out.",
        )
    return 0.0


def _skipped(run: str | None) -> tuple[tuple[SkippedLanes, ...], int | None]:
    if run is None:
        return (), None
    with open_record(os.environ.get("HOLDFAST_STORE")) as store:
        return skipped_by(store, run)


def _view(given: _Flags, slots: int) -> View:
    """Which of the members' output is shown."""
    redirects = torchrun.streams_of("--redirects", given.redirects, slots)
    tee = torchrun.streams_of("--tee", given.tee, slots)
    ranks = torchrun.ranks_of(given.local_ranks_filter)
    if _is_nowhere(given.log_dir):  # torchrun then ignores all other flags about output
        return View()
    copied: dict[Stream, tuple[str, ...]] = {
        "stdout": torchrun.filters_of(given.duplicate_stdout_filters),
        "stderr": torchrun.filters_of(given.duplicate_stderr_filters),
    }
    shown = torchrun.view(slots, redirects=redirects, tee=tee, ranks=ranks)
    return msgspec.structs.replace(shown, copied={name: words for name, words in copied.items() if words})


def _wants_files(given: _Flags) -> bool:
    """Whether output goes to files, but no directory is given."""
    asked = (given.redirects, given.tee) != ("0", "0")
    return given.log_dir is None and (
        asked or bool(given.duplicate_stdout_filters or given.duplicate_stderr_filters)
    )


def _is_nowhere(directory: Path | None) -> bool:
    return directory == Path(os.devnull)


def _signals(text: str | None, *, is_detachable: bool) -> tuple[signal.Signals, ...]:
    if text is not None:
        return torchrun.signals_of(text)
    return (signal.SIGTERM,) if is_detachable else SIGNALS


def _wait_s(given: _Flags) -> float:
    conf_s = torchrun.wait_s_of(given.rdzv_conf)
    return next((wait_s for wait_s in (given.wait_s, conf_s) if wait_s is not None), WAIT_S)


def _proof_words(given: _Flags) -> tuple[str, ...]:
    """The script and its arguments for `checkpoint prove`. Raises `InputError` if it cannot prove them."""
    if gpus_seen(os.environ):
        raise InputError(
            "--prove-every needs a GPU that no member uses, and this machine's are the members'.",
            hint="On a machine with such a GPU: holdfast checkpoint prove DIR SCRIPT ARGUMENTS. For a run on "
            "CPUs set CUDA_VISIBLE_DEVICES to nothing.",
        )
    if given.shard is not None:
        raise InputError(
            "--prove-every cannot prove checkpoints of sharded models.",
            hint="Leave it out; `holdfast checkpoint verify` compares all bytes with their hashes.",
        )
    if (given.is_module or given.no_python) and not given.run_path:
        raise InputError("--prove-every needs a Python script.", hint="Name the script's file as SCRIPT.")
    return (given.script, *given.arguments)


def _node_range(given: _Flags, nodes_needed: int) -> tuple[int, int]:
    """The fewest and the most nodes of the run. nodes_needed: for one replica of the model."""
    if given.nnodes is None:
        return min(given.nodes, nodes_needed), given.nodes
    numbers = re.fullmatch(r"(\d+)(?::(\d+))?", given.nnodes)
    least, most = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, 0)
    if not 1 <= least <= most:
        raise InputError(f"--nnodes {given.nnodes} is not a number of nodes.", hint="Write 4, or 2:4.")
    if given.nodes > most:
        raise InputError(
            f"--nodes {given.nodes} brings more nodes than --nnodes {given.nnodes} has.",
            hint="--nodes counts those on this machine, --nnodes all of them.",
        )
    return least, most


def _place(given: _Flags, nodes_max: int) -> tuple[str, int] | None:
    """The coordinator's address; None: on this machine, at any free port."""
    if given.standalone:
        return None
    if given.coordinator is None:
        if given.master_port is None and (given.master_addr is None or nodes_max == 1):
            return None
        return (
            given.master_addr or "127.0.0.1",
            torchrun.MASTER_PORT if given.master_port is None else given.master_port,
        )
    numbers = re.fullmatch(r"\[(.+)\](?::(\d{1,5}))?|([^:]+)(?::(\d{1,5}))?", given.coordinator)
    port = int(numbers[2] or numbers[4] or DEFAULT_PORT) if numbers else -1
    if numbers is None or port > 65535:
        raise InputError(
            f"--coordinator {given.coordinator} is not in the form HOST:PORT.",
            hint="Write it as host:29400, or [::1]:29400.",
        )
    return numbers[1] or numbers[3], port


def _slots(text: str) -> int:
    """How many members a node has; torchrun's words mean the same as there."""
    if re.fullmatch(r"[0-9]{1,9}", text) and 0 < int(text) <= SLOTS_MAX:
        return int(text)
    cpus = len(os.sched_getaffinity(0))
    if text == "cpu":
        return cpus
    if text in ("gpu", "auto"):
        gpus = gpus_seen(os.environ)
        if text == "gpu" and not gpus:
            raise InputError("This node has no GPU that nvidia-smi lists.", hint="Give a number.")
        return gpus or cpus
    raise InputError(
        f"--nproc-per-node {text} is not a number of members from 1 to {SLOTS_MAX}.",
        hint="Write 8, gpu, cpu or auto.",
    )


def _chaos(text: str | None) -> tuple[tuple[PlannedFault, ...], float]:
    """A plan's faults, or their number per minute."""
    if text is None:
        return (), 0.0
    try:
        rate_per_min = float(text)
    except ValueError:
        return read_plan(Path(text)), 0.0
    if not 0 < rate_per_min < float("inf"):
        raise InputError(f"--chaos {text} is not a rate of faults.", hint="Write 2 for two a minute.")
    return (), rate_per_min
