"""`holdfast bench snapshot`: the cost of a snapshot in memory for a training step, and of restoring one.

On a GPU a GPT with 1.3 billion parameters is trained, and its state (weights and AdamW's two moments) copied
as `holdfast run` does it; without one, a small GPT, so that the benchmark itself can be tried. Each figure is
compared with the copy of pinned memory of the same process, or with the same steps without snapshots;
torch.save and async_save of torch.distributed.checkpoint have the same state.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import click
import msgspec

from bench.contestants import SCRIPTS
from holdfast.cli.record import json_option

RUN_S_MAX = 1_800.0
STALL_MS_MAX, RATIO_MIN, RESTORE_RATIO_MIN, OVERHEAD_MAX = 20.0, 0.95, 0.85, 0.02


class SnapshotBench(msgspec.Struct, frozen=True, kw_only=True):
    """stall_ms            what a snapshot added to the steps, beyond what its copy forces: on a GPU, the time
                        by which the copy alone exceeds forward and backward; on a CPU, a plain copy
    d2h_ratio, h2d_ratio
                        bandwidth of the copy into a snapshot, and from one in a fresh process, by that of a
                        plain copy to and from pinned memory; on a CPU the latter has the hashes in it
    overhead_ratio      time of steps with a snapshot every tenth, by that of steps without, less one
    torch_save_stall_s, dcp_async_stall_s
                        how long training would wait for these, with the same state, to a file
    host_bytes          of main memory that snapshots take
    restore_s           of the fresh process, in all: until the state is on the device, compared
    restore_*_s         its parts: comparing all hashes; meanwhile registering memory with CUDA and copying it
                        to the device; after them, putting it into model and optimizer
    """

    stall_ms: float
    d2h_ratio: float
    h2d_ratio: float
    overhead_ratio: float
    torch_save_stall_s: float
    dcp_async_stall_s: float
    host_bytes: int
    state_bytes: int
    device: str
    step_s: float
    copy_s: float
    forced_s: float
    whole_s: float
    restore_s: float
    restore_compare_s: float
    restore_pin_s: float
    restore_copy_s: float
    restore_put_back_s: float


@click.command("snapshot")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where torch.save and DCP write.  [default: that of temporary files]",
)
@json_option
def command(directory: Path | None, as_json: bool) -> None:
    """Copy a model's state beside its steps: stall, bandwidth, restore; against torch.save and DCP."""
    bench = measure(directory)
    click.echo(msgspec.json.format(msgspec.json.encode(bench)).decode() if as_json else table(bench))


def measure(directory: Path | None = None, *, size: str = "", rounds: int = 4) -> SnapshotBench:
    """size: of the model, see bench/workers/gpu_model.py; by the device if empty. rounds: ten steps each."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=directory) as folder:
        result = Path(folder) / "result.json"
        told = {"--directory": folder, "--size": size, "--rounds": rounds, "--result": result}
        words = [str(word) for pair in told.items() for word in pair]
        subprocess.run((sys.executable, str(SCRIPTS / "snapshots.py"), *words), check=True, timeout=RUN_S_MAX)
        return msgspec.json.decode(result.read_bytes(), type=SnapshotBench)


def table(bench: SnapshotBench) -> str:
    """The result for people, a figure a line."""
    rows = (
        ("stall", f"{bench.stall_ms:.1f} ms", f"beyond the copy; at most {STALL_MS_MAX:g} wanted on a GPU"),
        ("copy : pinned copy", f"{bench.d2h_ratio:.3f}", f"at least {RATIO_MIN} wanted on a GPU"),
        ("restore : pinned copy", f"{bench.h2d_ratio:.3f}", f"at least {RESTORE_RATIO_MIN} wanted on a GPU"),
        ("overhead, 1 in 10 steps", f"{bench.overhead_ratio:.3f}", f"at most {OVERHEAD_MAX} wanted on a GPU"),
        ("torch.save", f"{bench.torch_save_stall_s:.2f} s", "training waits for all of it"),
        ("DCP async_save", f"{bench.dcp_async_stall_s:.2f} s", "until it returns"),
        ("main memory", f"{bench.host_bytes / 1e9:.2f} GB", "two versions"),
    )
    lines = [f"{name:<26}{value:>12}   {note}" for name, value, note in rows]
    head = f"a state of {bench.state_bytes / 1e9:,.2f} GB on {bench.device}, a step of {bench.step_s:.3f} s"
    return "\n".join([head, *lines])
