"""torchrun's flags: every one that the installed torchrun has is given to it and to `holdfast run`.

What both make of it is compared, or the flag is named here as one without effect or refused, as docs/run.md
says. A flag that a new torch adds fails the first test with its name.
"""

import re
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import Std, to_map

from holdfast.cli.run import _Flags, command, order_of
from holdfast.record.errors import InputError
from holdfast.run.launcher import Order
from holdfast.run.output import STREAMS

SCRIPT = "train.py"
SLOTS = 4
"""Members of a node where a flag is about local ranks."""

WITHOUT_EFFECT = {
    "--rdzv-backend": "static",
    "--monitor-interval": "0.5",
    "--start-method": "forkserver",
    "--event-log-handler": "console",
}
REFUSED = {"--logs-specs": "mine", "--numa-binding": "node"}


def shown(config: Any) -> list[set[str]]:
    """What torchrun shows of each local rank, as its DefaultLogsSpecs decides."""
    specs = config.logs_specs
    redirects, tee = to_map(specs._redirects, SLOTS), to_map(specs._tee, SLOTS)
    ranks = specs._local_ranks_filter
    return [
        {
            name
            for name, bit in (("stdout", Std.OUT), ("stderr", Std.ERR))
            if (not ranks or rank in ranks) and (tee[rank] & bit or not redirects[rank] & bit)
        }
        for rank in range(SLOTS)
    ]


def shown_here(order: Order) -> list[set[str]]:
    return [{name for name in STREAMS if order.view.shows(rank, name)} for rank in range(SLOTS)]


def endpoint(order: Order) -> str:
    assert order.coordinator is not None
    return "{}:{}".format(*order.coordinator)


Compared = tuple[str, Callable[[Any], Any], Callable[[Order], Any]]
"""A value, and what it comes to in torchrun's LaunchConfig and in our Order."""
MEANS: dict[str, list[Compared]] = {
    "--nnodes": [
        ("3", lambda it: (it.min_nodes, it.max_nodes), lambda it: (it.policy.nodes_min, it.policy.nodes_max)),
        (
            "2:4",
            lambda it: (it.min_nodes, it.max_nodes),
            lambda it: (it.policy.nodes_min, it.policy.nodes_max),
        ),
    ],
    "--nproc-per-node": [
        (value, lambda it: it.nproc_per_node, lambda it: it.policy.slots) for value in ("5", "cpu", "auto")
    ],
    "--rdzv-endpoint": [
        ("host:1234", lambda it: it.rdzv_endpoint, endpoint),
    ],
    "--rdzv-id": [("mine", lambda it: it.run_id, lambda it: it.policy.run)],
    "--rdzv-conf": [
        (
            "join_timeout=77,is_host=1",
            lambda it: float(it.rdzv_configs["join_timeout"]),
            lambda it: it.policy.wait_s,
        )
    ],
    "--max-restarts": [("7", lambda it: it.max_restarts, lambda it: it.policy.max_restarts)],
    "--role": [("trainer", lambda it: it.role, lambda it: it.role)],
    "--log-dir": [("logs", lambda it: it.logs_specs.root_log_dir, lambda it: str(it.log_directory))],
    "--redirects": [(value, shown, shown_here) for value in ("0", "1", "2", "3", "0:3,2:1")],
    "--tee": [
        (value, shown, shown_here) for value in ("3", "0:3,1:2 --redirects 3", "1 --redirects=0:1,1:3")
    ],
    "--local-ranks-filter": [(value, shown, shown_here) for value in ("0", "0,2", "1 --redirects 1")],
    "--duplicate-stdout-filters": [
        (
            "loss,a,,b",
            lambda it: it.duplicate_stdout_filters,
            lambda it: list(it.view.copied["stdout"]),
        )
    ],
    "--duplicate-stderr-filters": [
        ("error", lambda it: it.duplicate_stderr_filters, lambda it: list(it.view.copied["stderr"]))
    ],
    "--master-addr": [
        ("10.0.0.1 --nnodes 2", lambda it: it.rdzv_endpoint, endpoint),
    ],
    "--master-port": [
        ("1234", lambda it: it.rdzv_endpoint, endpoint),
    ],
    "--node-rank": [("3", lambda it: it.rdzv_configs["rank"], lambda it: it.node_rank)],
    "--local-addr": [("10.0.0.2", lambda it: it.local_addr, lambda it: it.address)],
    "--signals-to-handle": [
        (
            "SIGTERM,SIGUSR1",
            lambda it: [signal.Signals[name] for name in it.signals_to_handle.split(",")],
            lambda it: list(it.signals),
        )
    ],
    "--shutdown-timeout": [("33", lambda it: it.shutdown_timeout, lambda it: it.policy.grace_s)],
    "--virtual-local-rank": [("", lambda it: it.virtual_local_rank, lambda it: it.is_virtual)],
    # As run() of torchrun reads it: what else says where the nodes meet does not count.
    "--standalone": [("--rdzv-endpoint host:1", lambda it: None, lambda it: it.coordinator)],
}
COMMANDS = {"--module": "json.tool", "--no-python": "/bin/true", "--run-path": SCRIPT}
"""Flags by which the script is started, and one that can be."""


@pytest.fixture(autouse=True)
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # torchrun makes a directory there
    for name in ("OMP_NUM_THREADS", "HOLDFAST_HOME"):
        monkeypatch.setenv(name, "1")  # torchrun sets the first where it is missing
    (tmp_path / SCRIPT).write_text("", encoding="utf-8")


def ours(arguments: Sequence[str]) -> Order:
    with command.make_context("run", list(arguments)) as context:
        return order_of(msgspec.convert(context.params, _Flags))


def parsed(arguments: Sequence[str]) -> Any:
    return torchrun.get_args_parser().parse_args(list(arguments))


def theirs(arguments: Sequence[str]) -> Any:
    """torchrun's LaunchConfig, after what its run() does first where no rendezvous is named."""
    args = parsed(arguments)
    if args.master_port is None:
        args.master_port = 29500
    return torchrun.config_from_args(args)[0]


def flags() -> list[str]:
    """torchrun's, each in its first long spelling."""
    spellings = [action.option_strings for action in torchrun.get_args_parser()._actions]
    return [
        next(one for one in names if one.startswith("--"))
        for names in spellings
        if "-h" not in names and names
    ]


def test_every_flag_of_torchrun_is_known_here() -> None:
    known = {*MEANS, *WITHOUT_EFFECT, *REFUSED, *COMMANDS}
    missing = [flag for flag in flags() if flag not in known]
    assert not missing, f"torchrun has flags that `holdfast run` does not speak of: {', '.join(missing)}"
    accepted = {name for parameter in command.params for name in parameter.opts}
    assert {*flags()} <= accepted


@pytest.mark.parametrize("spelling", ["dash", "underscore", "equals", "variable"])
@pytest.mark.parametrize("flag", MEANS)
def test_a_flag_means_what_it_means_to_torchrun(
    flag: str, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, their_value, our_value in MEANS[flag]:
        is_switch = flag in ("--virtual-local-rank", "--standalone")
        value, *rest = ["", *given.split()] if is_switch else given.split()
        before = [f"--nproc-per-node={SLOTS}"] if their_value is shown else []
        name = flag if spelling in ("dash", "variable") else flag[:2] + flag[2:].replace("-", "_")
        words = [name] if is_switch else [f"{name}={value}"] if spelling == "equals" else [name, value]
        if spelling == "variable":
            monkeypatch.setenv("PET_" + flag[2:].replace("-", "_").upper(), "1" if is_switch else value)
            words = []
        arguments = [*before, *words, *rest, SCRIPT]
        assert our_value(ours(arguments)) == their_value(theirs(arguments)), arguments


@pytest.mark.parametrize("flag", WITHOUT_EFFECT)
def test_a_flag_without_effect_changes_nothing(flag: str) -> None:
    theirs([flag, WITHOUT_EFFECT[flag], SCRIPT])
    base = ["--run", "same", "--seed", "1"]
    assert ours([*base, flag, WITHOUT_EFFECT[flag], SCRIPT]) == ours([*base, SCRIPT])


@pytest.mark.parametrize("flag", REFUSED)
def test_a_flag_that_is_refused_says_why(flag: str) -> None:
    parsed([flag, REFUSED[flag], SCRIPT])
    with pytest.raises(InputError, match=re.escape(f"{flag} {REFUSED[flag]} is not supported: ")) as told:
        ours([flag, REFUSED[flag], SCRIPT])
    assert told.value.hint


@pytest.mark.parametrize("flag", COMMANDS)
def test_a_way_to_start_the_script_is_torchruns(flag: str, tmp_path: Path) -> None:
    arguments = [flag, COMMANDS[flag], "--lr", "1"]
    _, program, given = torchrun.config_from_args(parsed(arguments))
    command = ours(arguments).command
    if flag == "--run-path":  # there in the interpreter of torchrun's child, here in one of its own
        assert command[-3:] == (*given[:1], "--lr", "1")
        assert ours(["--no-python", *arguments]).command == command
    else:
        assert command == (program, *given)


@pytest.mark.parametrize("words", ["-m json.tool", "-r 3 train.py", "-t 3 train.py", "-r3 train.py"])
def test_short_forms(words: str) -> None:
    parsed(words.split())
    assert ours(words.split())


def test_lanes_are_dealt_by_pace_unless_told_otherwise() -> None:
    assert ours([SCRIPT]).policy.rebalances
    assert not ours(["--no-rebalance", SCRIPT]).policy.rebalances


def test_the_flags_of_the_table_are_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "run.md").read_text(encoding="utf-8")
    assert [flag for flag in flags() if f"`{flag}" not in page] == []


# ---- what is shown -----------------------------------------------------------------------------------


PRINTS = (
    "import os, sys; rank = os.environ['RANK']\n"
    "print('out', rank); print('err', rank, file=sys.stderr)\n"
    "print(os.environ['LOCAL_RANK'], os.environ.get('CUDA_VISIBLE_DEVICES'), file=open(f'seen{rank}', 'w'))\n"
)


FAILS = """
import pathlib, time
while rank == "1":
    time.sleep(0.01)
    if pathlib.Path("seen0").exists():
        raise ValueError("told whatever the flags")
"""


def members_lines(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("[n0."))


def test_torchtitans_flags_show_one_rank_and_keep_all(holdfast: Any, tmp_path: Path) -> None:
    """As in its run_train.sh."""
    (tmp_path / SCRIPT).write_text(PRINTS, encoding="utf-8")
    flags = "--nproc_per_node=2 --rdzv_backend c10d --rdzv_endpoint=localhost:0 --local-ranks-filter 1"
    done = holdfast("run", *flags.split(), "--role", "rank", "--tee", "3", SCRIPT, TMPDIR=str(tmp_path))
    assert done.code == 0, done.err
    assert members_lines(done.out) == ["[n0.1] out 1"]
    assert members_lines(done.err) == ["[n0.1] err 1"]
    directory = Path(next(line for line in done.err.splitlines() if "log files are in" in line).split()[-1])
    assert directory.parent.parent == tmp_path
    kept = {
        path.relative_to(directory): path.read_text(encoding="utf-8") for path in directory.rglob("*.log")
    }
    assert kept == {
        Path(f"n0.{rank}/std{stream}.log"): f"{stream} {rank}\n"
        for rank in (0, 1)
        for stream in ("out", "err")
    }


def test_what_is_redirected_is_in_files_alone_but_a_failure_is_told(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / SCRIPT).write_text(PRINTS + FAILS, encoding="utf-8")
    flags = "--nproc-per-node 2 --max-restarts 0 --redirects 0:1,1:3 --log-dir logs --run r"
    words = ("--duplicate-stderr-filters", "nothing,err")
    done = holdfast("run", *flags.split(), *words, SCRIPT)
    assert done.code == 1, done
    assert members_lines(done.out) == []
    assert members_lines(done.err) == ["[n0.0] err 0"]
    assert "\nValueError: told whatever the flags\n" in done.err
    assert (tmp_path / "logs/r/filtered_stderr.log").read_text(encoding="utf-8") == "[n0.0] err 0\n"
    assert (tmp_path / "logs/r/n0.1/stdout.log").read_text(encoding="utf-8") == "out 1\n"


def test_a_virtual_local_rank_sees_one_gpu(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / SCRIPT).write_text(PRINTS, encoding="utf-8")
    flags = "--nproc-per-node 2 --virtual-local-rank"
    assert holdfast("run", *flags.split(), SCRIPT, CUDA_VISIBLE_DEVICES="5, 3").code == 0
    assert [(tmp_path / f"seen{rank}").read_text(encoding="utf-8") for rank in (0, 1)] == ["0 5\n", "0 3\n"]
