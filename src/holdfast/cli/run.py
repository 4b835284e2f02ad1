"""`holdfast run`: where torchrun stood."""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli import torchrun
from holdfast.cli.record import home
from holdfast.record.errors import InputError
from holdfast.run.chaos import read_plan
from holdfast.run.launcher import SIGNALS, Display, Order, launch
from holdfast.run.output import Stream, View
from holdfast.run.state import Policy
from holdfast.run.visible import too_few
from holdfast.run.wire import SLOTS_MAX, PlannedFault

DEFAULT_PORT = 29400
"""torchrun's, for an endpoint without one."""
WAIT_S = 600.0
GRACE_S = 10.0
RUN_CHARS_MAX = 100
SUFFIX_BYTES = 3
NVIDIA_SMI_WAIT_S = 30

_RUN_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.\-]{{0,{RUN_CHARS_MAX - 1}}}")


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, typed; None for what was not given."""

    script: str
    arguments: tuple[str, ...]
    nproc_per_node: str
    nnodes: str | None
    nodes: int
    coordinator: str | None
    tls: bool
    master_addr: str | None
    master_port: int | None
    node_rank: int | None
    local_addr: str | None
    run: str | None
    warm: int
    max_restarts: int
    wait_s: float | None
    hang_after_s: float | None
    rdzv_conf: str
    shutdown_timeout: int | None
    signals_to_handle: str | None
    standalone: bool
    is_module: bool
    no_python: bool
    run_path: bool
    checkpoints: Path | None
    checkpoint_every: int | None
    log_dir: Path | None
    role: str
    redirects: str
    tee: str
    local_ranks_filter: str
    duplicate_stdout_filters: str | None
    duplicate_stderr_filters: str | None
    virtual_local_rank: bool
    chaos: str | None
    seed: int | None
    team: str
    project: str
    cluster: str
    metrics_host: str
    metrics_port: int | None
    size: Path | None
    live: bool


@click.command(
    "run",
    context_settings={
        "allow_interspersed_args": False,
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@torchrun.option(
    "--nproc-per-node",
    default="1",
    metavar="N",
    help="Members of a node: a number, gpu, cpu or auto.  [default: 1]",
)
@torchrun.option(
    "--nnodes",
    metavar="N|MIN:MAX",
    help="Nodes of the run; with a range it goes on with as few as MIN.  [default: 1:NODES]",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Nodes to have on this machine, each with an agent.  [default: 1]",
)
@torchrun.option(
    "--coordinator",
    "--rdzv-endpoint",
    by="--rdzv-endpoint",
    metavar="HOST:PORT",
    help="Where the run's nodes meet; the same on all of them. The node that HOST is holds it.",
)
@click.option(
    "--tls",
    is_flag=True,
    envvar="HOLDFAST_TLS",
    help="Encrypt the connections to the coordinator, by a key of the run's own.  [env: HOLDFAST_TLS]",
)
@torchrun.option(
    "--run",
    "--rdzv-id",
    by="--rdzv-id",
    metavar="NAME",
    help="The run's name in the record.  [default: from the script's name]",
)
@click.option(
    "--warm",
    type=click.IntRange(min=0),
    default=1,
    metavar="N",
    help="Processes a node keeps ready to step in.  [default: 1]",
)
@torchrun.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=3,
    metavar="N",
    help="Of a script that does not join, as a whole.  [default: 3]",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    metavar="S",
    help="The longest to wait for nodes.  [default: 600]",
)
@click.option(
    "--hang-after",
    "hang_after_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="End a member that holds the others up for so long, from the run's first commit on.  "
    "[default: from the run's own steps]",
)
@torchrun.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is a module, as with python -m.")
@torchrun.option("--no-python", is_flag=True, help="SCRIPT is a program of its own.")
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="For durable checkpoints.  [default: $HOLDFAST_HOME/runs/RUN/checkpoints]",
)
@click.option(
    "--checkpoint-every",
    type=click.IntRange(min=1),
    metavar="STEPS",
    help="How often.  [default: by cost, and at most every 10 s]",
)
@torchrun.option(
    "--log-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write each member's output there, too: DIR/RUN/MEMBER/stdout.log.",
)
@click.option("--chaos", metavar="PLAN|RATE", help="Inject faults: a plan (TOML), or so many a minute.")
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="S", help="Of the faults at random.  [default: a new one]"
)
@click.option("--team", default="", metavar="NAME", help="Whose the run is, in the record and its metrics.")
@click.option("--project", default="", metavar="NAME", help="What it is for, for `holdfast finance`.")
@click.option("--cluster", default="", metavar="NAME", help="Where it runs, for prices by cluster.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve the run's metrics for Prometheus, where its coordinator is; 0 takes a free port.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="At which address of this machine.  [default: 127.0.0.1]",
)
@click.option(
    "--size",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The model, its layout and its data loader (TOML), to be checked before anything starts.",
)
@click.option("--live/--no-live", default=False, help="Show the run while it goes.  [default: --no-live]")
@torchrun.option("--node-rank", type=click.IntRange(min=0), metavar="R", help="Names this node nR.")
@torchrun.option(
    "--master-addr", metavar="HOST", help="The coordinator's host, if --coordinator is not given."
)
@torchrun.option("--master-port", type=click.IntRange(0, 65535), metavar="PORT", help="And its port.")
@torchrun.option(
    "--local-addr",
    metavar="ADDRESS",
    help="Where the other nodes reach this one, if that cannot be told from here.",
)
@torchrun.option("--role", default="default", metavar="NAME", help="ROLE_NAME in the members' environment.")
@torchrun.option(
    "-t",
    "--tee",
    default="0",
    metavar="N|R:N,...",
    help="Write streams to files and show them: 1 stdout, 2 stderr, 3 both; or by local rank, 0:3,1:2.",
)
@torchrun.option(
    "-r",
    "--redirects",
    default="0",
    metavar="N|R:N,...",
    help="Write streams to files and do not show them; as --tee.",
)
@torchrun.option(
    "--local-ranks-filter", default="", metavar="R,...", help="Show only what these local ranks print."
)
@torchrun.option(
    "--duplicate-stdout-filters",
    metavar="WORD,...",
    help="Write shown lines with one of these words to filtered_stdout.log, too.",
)
@torchrun.option("--duplicate-stderr-filters", metavar="WORD,...", help="The same of stderr.")
@torchrun.option(
    "--virtual-local-rank",
    is_flag=True,
    help="LOCAL_RANK is 0 in every member, and its GPU the only one that it sees.",
)
@torchrun.option(
    "--shutdown-timeout",
    type=click.IntRange(min=0),
    variables=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
    metavar="S",
    help="From SIGTERM to SIGKILL, for members that are to end.  [default: 10]",
)
@torchrun.option(
    "--signals-to-handle",
    metavar="NAME,...",
    help="Signals that end the run.  [default: SIGINT,SIGTERM,SIGHUP]",
)
@torchrun.option(
    "--rdzv-conf",
    default="",
    metavar="KEY=VALUE,...",
    help="join_timeout is --wait; other keys have no effect.",
)
@torchrun.option("--standalone", is_flag=True, help="On this machine alone, whatever else says where.")
@torchrun.option("--run-path", is_flag=True, help="SCRIPT is a file for Python; overrides --no-python.")
@torchrun.option(
    "--rdzv-backend",
    expose_value=False,
    type=click.Choice(["c10d", "static"]),
    default="c10d",
    help="Either means the same: the nodes meet at the coordinator.",
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
def command(**flags: Any) -> int:
    """Run SCRIPT with its ARGUMENTS on one or more nodes, as torchrun would, and keep it going.

    A script that calls holdfast.train.join() goes on through the loss of members and nodes with the same
    bits; any other is restarted as a whole. Several machines: the same command on each, with --nnodes,
    --coordinator and $HOLDFAST_TOKEN.
    """
    given = msgspec.convert(flags, _Flags)
    order = order_of(given)
    if order.log_directory is None and _wants_files(given):
        made = Path(tempfile.mkdtemp(prefix="holdfast_"))
        click.echo(f"holdfast: log files are in {made / order.policy.run}", err=True)
        order = msgspec.structs.replace(order, log_directory=made)
    for doubt in _doubts(given, order.policy):
        click.echo(f"holdfast: {doubt}", err=True)
    return launch(order, _display() if given.live else None)


def _doubts(given: _Flags, policy: Policy) -> Iterator[str]:
    """What will slow the run down and can be told before it starts; what cannot work is refused."""
    cpus = len(os.sched_getaffinity(0))
    threads, members = os.environ.get("OMP_NUM_THREADS", ""), given.nodes * policy.slots
    if threads.isascii() and threads.isdigit() and members * int(threads) > max(cpus, members):
        total = members * int(threads)
        yield f"OMP_NUM_THREADS={threads} makes {total} threads of {members} members on {cpus} CPUs."
    if given.size is not None:
        from holdfast.cli.sizing import Dimensions, run_doubts

        planned = Dimensions(
            nodes_min=policy.nodes_min,
            nodes_max=policy.nodes_max,
            slots=policy.slots,
            cpus_per_node=cpus // given.nodes,
        )
        yield from run_doubts(given.size, planned)


def _display() -> Display:
    from holdfast.cli.live import show

    return show


def order_of(given: _Flags) -> Order:
    """What the flags ask for."""
    command = _command(given)
    nodes_min, nodes_max = _node_range(given)
    slots = _slots(given.nproc_per_node)
    if given.virtual_local_rank and too_few(os.environ, given.nodes * slots):
        raise InputError(
            f"--virtual-local-rank gives a GPU to each of {given.nodes * slots} members; "
            f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']} has fewer.",
            hint="Start fewer members, or leave the flag out.",
        )
    plan, storm_per_min = _chaos(given.chaos)
    policy = Policy(
        run=_run_name(given),
        team=given.team,
        project=given.project,
        cluster=given.cluster,
        slots=slots,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        warm=given.warm,
        max_restarts=given.max_restarts,
        wait_s=_wait_s(given),
        grace_s=GRACE_S if given.shutdown_timeout is None else float(given.shutdown_timeout),
        hang_after_s=given.hang_after_s,
        faults=plan,
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
        checkpoints=given.checkpoints,
        checkpoint_every=given.checkpoint_every,
        address=given.local_addr or "",
        role=given.role,
        log_directory=None if _is_nowhere(given.log_dir) else given.log_dir,
        view=_view(given, slots),
        is_virtual=given.virtual_local_rank,
        signals=_signals(given.signals_to_handle),
        storm_per_min=storm_per_min,
        seed=secrets.randbits(32) if given.seed is None else given.seed,
        metrics=None if given.metrics_port is None else (given.metrics_host, given.metrics_port),
    )


def _view(given: _Flags, slots: int) -> View:
    """What of the members' output is shown."""
    redirects = torchrun.streams_of("--redirects", given.redirects, slots)
    tee = torchrun.streams_of("--tee", given.tee, slots)
    ranks = torchrun.ranks_of(given.local_ranks_filter)
    if _is_nowhere(given.log_dir):  # with torchrun that undoes whatever else is said about output
        return View()
    copied: dict[Stream, tuple[str, ...]] = {
        "stdout": torchrun.filters_of(given.duplicate_stdout_filters),
        "stderr": torchrun.filters_of(given.duplicate_stderr_filters),
    }
    shown = torchrun.view(slots, redirects=redirects, tee=tee, ranks=ranks)
    return msgspec.structs.replace(shown, copied={name: words for name, words in copied.items() if words})


def _wants_files(given: _Flags) -> bool:
    """Whether output is to be in files, though nothing says where."""
    asked = (given.redirects, given.tee) != ("0", "0")
    return given.log_dir is None and (
        asked or bool(given.duplicate_stdout_filters or given.duplicate_stderr_filters)
    )


def _is_nowhere(directory: Path | None) -> bool:
    return directory == Path(os.devnull)


def _signals(text: str | None) -> tuple[signal.Signals, ...]:
    return SIGNALS if text is None else torchrun.signals_of(text)


def _wait_s(given: _Flags) -> float:
    conf_s = torchrun.wait_s_of(given.rdzv_conf)
    return next((wait_s for wait_s in (given.wait_s, conf_s) if wait_s is not None), WAIT_S)


def _command(given: _Flags) -> tuple[str, ...]:
    python = (sys.executable, "-u")
    if given.is_module and given.no_python and not given.run_path:
        raise InputError("--module and --no-python exclude each other.", hint="Leave one of them out.")
    if given.is_module and not given.run_path:
        _check_module(given.script)
        return (*python, "-m", given.script, *given.arguments)
    if given.no_python and not given.run_path:
        if shutil.which(given.script) is None:
            raise InputError(
                f"There is no program {given.script}.", hint="It must be executable, and named by its path."
            )
        return (given.script, *given.arguments)
    _check_script(Path(given.script))
    return (*python, given.script, *given.arguments)


def _check_script(path: Path) -> None:
    """Python runs a file, or a directory or archive with a __main__ in it."""
    try:
        if path.is_dir():
            if not (path / "__main__.py").is_file():
                raise InputError(f"The script {path} is a directory.", hint="Name the file to be run.")
            return
        with path.open("rb"):
            return
    except OSError as error:
        is_gone = isinstance(error, FileNotFoundError)
        hint = "A module is run with --module, a program with --no-python." if is_gone else ""
        raise InputError(f"The script {path} cannot be read: {error.strerror}.", hint=hint) from None


def _check_module(name: str) -> None:
    """Find it as `python -m` will, but import nothing: importing may have effects."""
    places: Any = ["", *sys.path]
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), places)
        if spec is None:
            raise InputError(
                f"There is no module {'.'.join(parts[:count])!r}.",
                hint="Modules are looked for in the working directory and in this Python's packages.",
            )
        places = spec.submodule_search_locations or []
    if places and PathFinder.find_spec(f"{name}.__main__", places) is None:
        raise InputError(f"{name!r} is a package without a __main__.", hint="Name the module to be run.")


def _run_name(given: _Flags) -> str:
    if given.run is None:
        name = given.script.rpartition(".")[2] if given.is_module else Path(given.script).stem
        stem = re.sub(r"[^A-Za-z0-9_.\-]", "-", name).lstrip(".-") or "run"
        return f"{stem[: RUN_CHARS_MAX // 2]}-{secrets.token_hex(SUFFIX_BYTES)}"
    if not _RUN_NAME.fullmatch(given.run):
        raise InputError(
            f"{given.run!r} cannot be the name of a run.",
            hint=f"Use up to {RUN_CHARS_MAX} letters, digits, dots, dashes and underscores.",
        )
    return given.run


def _node_range(given: _Flags) -> tuple[int, int]:
    """The fewest and the most nodes of the run."""
    if given.nnodes is None:
        return 1, given.nodes
    numbers = re.fullmatch(r"(\d+)(?::(\d+))?", given.nnodes)
    least, most = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, 0)
    if not 1 <= least <= most:
        raise InputError(f"--nnodes {given.nnodes} is no number of nodes.", hint="Write 4, or 2:4.")
    if given.nodes > most:
        raise InputError(
            f"--nodes {given.nodes} brings more nodes than --nnodes {given.nnodes} has.",
            hint="--nodes counts those on this machine, --nnodes all of them.",
        )
    return least, most


def _place(given: _Flags, nodes_max: int) -> tuple[str, int] | None:
    """Where the coordinator should be; None: on this machine, at a port of its choice."""
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
            f"--coordinator {given.coordinator} is no HOST:PORT.",
            hint="Write it as host:29400, or [::1]:29400.",
        )
    return numbers[1] or numbers[3], port


def _slots(text: str) -> int:
    """How many members a node has; torchrun's words for it mean the same."""
    if re.fullmatch(r"[0-9]{1,9}", text) and 0 < int(text) <= SLOTS_MAX:
        return int(text)
    cpus = len(os.sched_getaffinity(0))
    if text == "cpu":
        return cpus
    if text in ("gpu", "auto"):
        gpus = _gpus()
        if text == "gpu" and not gpus:
            raise InputError("This node has no GPU that nvidia-smi lists.", hint="Give a number.")
        return gpus or cpus
    raise InputError(
        f"--nproc-per-node {text} is no number of members from 1 to {SLOTS_MAX}.",
        hint="Write 8, gpu, cpu or auto.",
    )


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def _chaos(text: str | None) -> tuple[tuple[PlannedFault, ...], float]:
    """A plan's faults, or how many a minute."""
    if text is None:
        return (), 0.0
    try:
        rate_per_min = float(text)
    except ValueError:
        return read_plan(Path(text)), 0.0
    if not 0 < rate_per_min < float("inf"):
        raise InputError(f"--chaos {text} is no rate of faults.", hint="Write 2 for two a minute.")
    return (), rate_per_min
