"""`holdfast bench recovery`: from the SIGKILL of a worker to the next step that the whole membership commits.

Every worker appends each of its commits to a file of its own. The harness kills one worker at a random moment
of a step, by its id, and reads from the files when all members have committed a step again. The contestants
take turns on the same machine, with the same model and the same number of members; each peer is in the
configuration in which it recovered fastest, with a standby process if it can use one, as Holdfast has.
"""

import random
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import msgspec

from bench.contestants import PEERS, Contestant, Task, importable, torch_version
from bench.kills import (
    PHASES,
    Failed,
    Recovery,
    Survival,
    Undisturbed,
    peer_recovery,
    survival,
    undisturbed,
)
from holdfast.cli.record import json_option
from holdfast.record.errors import InputError

MEMBERS = 4
MEMBERS_CHOICE = ("2", "4", "8")
"""How many have equal shares of the lanes, also when one of two nodes is lost."""
REPETITIONS = 5
SEED = 1
FLOOR = "a step: what the killed worker had computed is gone, and its replacement computes it again"


class RecoveryBench(msgspec.Struct, frozen=True, kw_only=True):
    """Medians, in seconds. None: the contestant is not installed, or did not recover.

    shrink_s             from the SIGKILL of a whole node to the others' next step
    torchft_s            a killed replica group is started again
    torchft_spare_s      a spare replica group runs along and takes its part
    torchft_shrink_s     until torchft's other groups commit a step without the killed one
    steps_lost           in all Holdfast runs together: committed steps that had to be done again
    bits_equal           every disturbed run ended with the bits of the undisturbed one
    phases               where Holdfast's time goes, one after the other
    floor_s              the lower bound of any recovery of a killed worker: see floor
    """

    holdfast_s: float
    shrink_s: float
    torchrun_s: float | None
    nvrx_s: float | None
    torchft_s: float | None
    torchft_spare_s: float | None
    torchft_shrink_s: float | None
    steps_lost: int
    bits_equal: bool
    phases: dict[str, float]
    floor_s: float
    floor: str
    ratio_torchrun: float | None
    ratio_best_peer: float | None
    members: int
    survivals: tuple[Survival, ...]
    peers: dict[str, tuple[Recovery, ...]]


@click.command("recovery")
@click.option("--repetitions", type=click.IntRange(min=1), default=REPETITIONS, show_default=True)
@click.option(
    "--peers-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=Path(sys.executable),
    help="The interpreter that has torchrun, nvidia-resiliency-ext and torchft.  [default: this one]",
)
@click.option(
    "--members",
    type=click.Choice(MEMBERS_CHOICE),
    default=str(MEMBERS),
    show_default=True,
    help="On two nodes; fewer for a quick look.",
)
@click.option("--peer", "names", multiple=True, help="Measure this peer only; may be given more than once.")
@json_option
def command(
    repetitions: int, peers_python: Path, members: str, names: tuple[str, ...], as_json: bool
) -> None:
    """Kill a worker: seconds until the whole membership commits again, beside three peers."""
    python = str(peers_python)
    bench = measure(repetitions, int(members), present(_named(names), python), python)
    click.echo(msgspec.json.format(msgspec.json.encode(bench)).decode() if as_json else table(bench))


def _named(names: Sequence[str]) -> list[Contestant]:
    known = {peer.name: peer for peer in PEERS}
    if unknown := set(names) - known.keys():
        raise InputError(
            f"{unknown.pop()} is not a peer of this benchmark.", hint=f"Name one of {', '.join(known)}."
        )
    return [peer for name, peer in known.items() if name in (names or known)]


def present(peers: Iterable[Contestant], python: str) -> list[Contestant]:
    """The peers that can take part; prints why the others cannot."""
    found = []
    for peer in peers:
        if importable(python, peer.needs):
            found.append(peer)
        else:
            _tell(f"{peer.name} is left out: {python} cannot import {peer.needs}.")
    if found and (theirs := torch_version(python)) != (ours := torch_version(sys.executable)):
        _tell(f"the peers run torch {theirs}, Holdfast runs {ours}.")
    return found


def measure(repetitions: int, members: int, peers: Sequence[Contestant], python: str) -> RecoveryBench:
    """Run all contestants in turn, `repetitions` times."""
    generator = random.Random(SEED)
    survivals = []
    recoveries: dict[str, list[Recovery]] = {peer.name: [] for peer in peers}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        calm = undisturbed(_folder(directory, "undisturbed"), members)
        for number in range(repetitions):
            survivals.append(survival(_folder(directory, f"holdfast-{number}"), members, generator))
            for peer in peers:
                folder = _folder(directory, f"{peer.name}-{number}")
                task = Task(python=python, folder=folder, members=members)
                try:
                    recoveries[peer.name].append(peer_recovery(peer, task, generator))
                except Failed as failure:
                    _tell(f"{peer.name} {failure}")
    return summary(members, calm, survivals, {name: tuple(found) for name, found in recoveries.items()})


def _folder(directory: str, name: str) -> Path:
    folder = Path(directory) / name
    folder.mkdir()
    return folder


def _tell(sentence: str) -> None:
    click.echo(f"bench recovery: {sentence}", err=True)


def summary(
    members: int,
    calm: Undisturbed,
    survivals: Sequence[Survival],
    peers: dict[str, tuple[Recovery, ...]],
) -> RecoveryBench:
    """The medians of all samples."""
    holdfast_s = statistics.median(run.worker.recovered_s for run in survivals)
    medians = {name: _median(sample.recovered_s for sample in found) for name, found in peers.items()}
    known = [seconds for seconds in medians.values() if seconds is not None]
    torchrun_s = medians.get("torchrun")
    return RecoveryBench(
        holdfast_s=holdfast_s,
        shrink_s=statistics.median(run.node.recovered_s for run in survivals),
        torchrun_s=torchrun_s,
        nvrx_s=medians.get("nvrx"),
        torchft_s=medians.get("torchft"),
        torchft_spare_s=medians.get("torchft_spare"),
        torchft_shrink_s=_median(sample.shrunk_s for sample in peers.get("torchft", ())),
        steps_lost=sum(run.worker.steps_lost + run.node.steps_lost for run in survivals),
        bits_equal=all(run.digest == calm.digest for run in survivals),
        phases={phase: statistics.median(run.phases_s[phase] for run in survivals) for phase in PHASES},
        floor_s=calm.step_s,
        floor=FLOOR,
        ratio_torchrun=holdfast_s / torchrun_s if torchrun_s else None,
        ratio_best_peer=holdfast_s / min(known) if known else None,
        members=members,
        survivals=tuple(survivals),
        peers=peers,
    )


def _median(samples: Iterable[float | None]) -> float | None:
    known = [sample for sample in samples if sample is not None]
    return statistics.median(known) if known else None


def table(bench: RecoveryBench) -> str:
    """The result for people, a figure a line."""
    rows = (
        ("holdfast", bench.holdfast_s, f"SIGKILL of 1 of {bench.members} to the next step of all"),
        *((f"  {phase.replace('_', ' ')}", seconds, "") for phase, seconds in bench.phases.items()),
        ("  floor", bench.floor_s, bench.floor),
        ("holdfast, a node lost", bench.shrink_s, "to the next step of the members that are left"),
        ("torchrun", bench.torchrun_s, "--max-restarts, DDP, a checkpoint every step"),
        ("nvrx", bench.nvrx_s, "in-process restart, a reserve rank, a checkpoint every step"),
        ("torchft", bench.torchft_s, "the killed replica group is started again"),
        ("  the others go on", bench.torchft_shrink_s, ""),
        ("torchft, a spare", bench.torchft_spare_s, "a fifth replica group runs along"),
    )
    lines = [f"{name:<24}{_seconds(seconds):>10}   {note}".rstrip() for name, seconds, note in rows]
    lines.append(f"{'steps lost':<24}{bench.steps_lost:>10}")
    lines.append(f"{'the same bits':<24}{'yes' if bench.bits_equal else 'no':>10}")
    if bench.ratio_best_peer is not None:
        lines.append(f"{'of the best peer':<24}{bench.ratio_best_peer:>10.2f}")
    return "\n".join(lines)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f} s"
