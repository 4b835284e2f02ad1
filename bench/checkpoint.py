"""`holdfast bench checkpoint`: the cost of writing and reading a checkpoint, on one machine and its disk.

Each figure is a ratio against a reference that is measured beside it: a plain file of the same bytes, written
from one end to the other and synced, or read after it left the page cache; `torch.save`; and
`torch.distributed.checkpoint`. They take turns, and a ratio is the median over the turns, so that other load
on the machine affects all of them.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import click
import msgspec

from bench.contestants import SCRIPTS
from holdfast.cli.record import json_option

STATE_BYTES = 512 << 20
TURNS = 5
RATIO_MIN = 0.8
RUN_S_MAX = 1_800.0


class CheckpointBench(msgspec.Struct, frozen=True, kw_only=True):
    """write_ratio, read_ratio      bandwidth of a save until it is durable and read back, and of a load that
                                 compares every byte, by that of a plain file with fsync, and from the disk
    checked_write_ratio          the same save by a plain file that is written, synced and then read from the
                                 disk, as a save reads what it has written
    hash_ratio                   bandwidth of the hash on one core, by that of writing the file
    incremental_ratio_lora, _dense
                                 bytes that a save writes where 1 % of the state has changed, and where all
                                 has, by the bytes of the state
    torch_save_ratio, dcp_ratio  time of a save by that of torch.save with fsync, and of DCP's save
    state_bytes                  of the state; seconds are medians
    """

    write_ratio: float
    read_ratio: float
    checked_write_ratio: float
    hash_ratio: float
    incremental_ratio_lora: float
    incremental_ratio_dense: float
    torch_save_ratio: float
    dcp_ratio: float
    state_bytes: int
    save_s: float
    load_s: float
    file_write_s: float
    file_read_s: float
    torch_save_s: float
    dcp_save_s: float


class CheckpointTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one turn."""

    save_s: float
    load_s: float
    file_write_s: float
    file_read_s: float
    torch_save_s: float
    dcp_save_s: float
    hash_s: float


class CheckpointTurns(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements. lora, dense: the share of the state that a save wrote after that much had changed."""

    turns: tuple[CheckpointTurn, ...]
    lora: float
    dense: float


@click.command("checkpoint")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="On the disk to measure.  [default: that of temporary files]",
)
@click.option(
    "--state-mb", type=click.IntRange(min=1), default=STATE_BYTES >> 20, show_default=True, help="In MiB."
)
@json_option
def command(directory: Path | None, state_mb: int, as_json: bool) -> None:
    """Write and read checkpoints: against a plain file, torch.save and DCP; what a small change writes."""
    bench = measure(directory, state_mb << 20)
    click.echo(msgspec.json.format(msgspec.json.encode(bench)).decode() if as_json else table(bench))


def measure(
    directory: Path | None = None, state_bytes: int = STATE_BYTES, turns: int = TURNS
) -> CheckpointBench:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=directory) as folder:
        told = {"--directory": folder, "--state-bytes": state_bytes, "--turns": turns}
        words = [str(word) for pair in told.items() for word in pair]
        result = Path(folder) / "result.json"
        subprocess.run(
            (sys.executable, str(SCRIPTS / "checkpoints.py"), *words, "--result", str(result)),
            check=True,
            timeout=RUN_S_MAX,
        )
        measured = msgspec.json.decode(result.read_bytes(), type=CheckpointTurns)
    return summary(measured, state_bytes)


def summary(measured: CheckpointTurns, state_bytes: int) -> CheckpointBench:
    def ratio(of: Callable[[CheckpointTurn], float]) -> float:
        return median(map(of, measured.turns))

    return CheckpointBench(
        write_ratio=ratio(lambda one: one.file_write_s / one.save_s),
        read_ratio=ratio(lambda one: one.file_read_s / one.load_s),
        checked_write_ratio=ratio(lambda one: (one.file_write_s + one.file_read_s) / one.save_s),
        hash_ratio=ratio(lambda one: one.file_write_s / one.hash_s),
        incremental_ratio_lora=measured.lora,
        incremental_ratio_dense=measured.dense,
        torch_save_ratio=ratio(lambda one: one.save_s / one.torch_save_s),
        dcp_ratio=ratio(lambda one: one.save_s / one.dcp_save_s),
        state_bytes=state_bytes,
        save_s=ratio(lambda one: one.save_s),
        load_s=ratio(lambda one: one.load_s),
        file_write_s=ratio(lambda one: one.file_write_s),
        file_read_s=ratio(lambda one: one.file_read_s),
        torch_save_s=ratio(lambda one: one.torch_save_s),
        dcp_save_s=ratio(lambda one: one.dcp_save_s),
    )


def table(bench: CheckpointBench) -> str:
    """The result for people, a ratio a line."""
    wanted = f"at least {RATIO_MIN} wanted"
    rows = (
        ("write : plain file's", bench.write_ratio, f"until durable and read back; {wanted}"),
        ("read : plain file's", bench.read_ratio, f"every byte compared; {wanted}"),
        ("write : file's and read", bench.checked_write_ratio, "against a plain file that is read back, too"),
        ("hash : plain write's", bench.hash_ratio, "bandwidth on one core"),
        ("written, 1 % changed", bench.incremental_ratio_lora, "of the state"),
        ("written, all changed", bench.incremental_ratio_dense, "of the state"),
        ("time : torch.save's", bench.torch_save_ratio, "with fsync, which torch.save does not do"),
        ("time : DCP's", bench.dcp_ratio, "in one process"),
    )
    lines = [f"{name:<24}{ratio:>8.3f}   {note}" for name, ratio, note in rows]
    return "\n".join([f"a state of {bench.state_bytes / 1e6:,.0f} MB", *lines])
