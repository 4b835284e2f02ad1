"""`holdfast bench faults`: every fault in live runs of four members, at random moments, many times over.

Each repetition is a run of its own, to its end. Its record is judged: whether it has the fault under its
right name and with the right subjects, when all members committed again, whether a step was computed twice;
and whether the weights are those of a run with one member. Then comes one healthy run in which lanes take
very different times: every fault in its record is a false alarm.
"""

import random
import tempfile
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import click
import msgspec

from bench.kills import Failed
from bench.live_faults import FAULTS, LiveFault, LiveRun, Struck, alone
from bench.losses import steps_redone
from bench.machines import can_make_machines
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json
from holdfast.record.errors import InputError
from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    FaultObserved,
    GenerationOpened,
    MemberLost,
    StepCommitted,
)

REPETITIONS = 10
UNDISTURBED_STEPS = 1000
WARM_UP_STEPS = 10
"""The first steps take longer, and are not pauses."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, once. pause_steps: the longest time without a commit from then on, in usual steps;
    calm_pause_steps: before. recorded: the faults in the record. failure: why the run did not get through, if
    it did not.
    """

    detect_s: float | None = None
    recover_s: float | None = None
    pause_steps: float | None = None
    calm_pause_steps: float | None = None
    right_culprit: bool = False
    steps_lost: int = 0
    bits_equal: bool = False
    recorded: tuple[str, ...] = ()
    failure: str = ""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    median: float
    max: float


class FaultResult(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, `times` times; the counts of each outcome. steps_lost: in all of them."""

    fault: str
    repetitions: int
    detected: int
    recovered: int
    right_culprit: int
    detect_s: Times | None
    recover_s: Times | None
    pause_steps: Times | None
    calm_pause_steps: Times | None
    steps_lost: int
    bits_equal: int


class FaultsBench(msgspec.Struct, frozen=True, kw_only=True):
    """false_alarms: faults in the record of undisturbed steps, and the number of these steps. left_out: the
    faults that need machines in network namespaces, which this user cannot make.
    """

    seed: int
    faults: tuple[FaultResult, ...]
    left_out: tuple[str, ...]
    undisturbed_steps: int
    false_alarms: tuple[str, ...]


@click.command("faults")
@click.option("--only", multiple=True, metavar="NAME", help="This fault; may be repeated.")
@click.option("--repetitions", type=click.IntRange(min=1), default=REPETITIONS, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses members and moments.")
@json_option
def command(only: tuple[str, ...], repetitions: int, seed: int, as_json: bool) -> int:
    """Strike live runs: what is found, how soon they go on, what is lost. Exit code 1: a result is wrong."""
    chosen = _chosen(only)
    possible = [fault for fault in chosen if not fault.machines or can_make_machines()]
    left_out = [fault.name for fault in chosen if fault not in possible]
    if only and left_out:
        raise InputError(
            f"{left_out[0]} needs machines in network namespaces, which this user cannot make.",
            hint="Run it as root, with iproute2 and util-linux installed.",
        )
    bench = measure(possible, repetitions, seed, left_out)
    if as_json:
        print_json(bench)
    else:
        click.echo(table(bench))
    return 0 if is_right(bench) else 1


def _chosen(only: Sequence[str]) -> list[LiveFault]:
    known = {fault.name: fault for fault in FAULTS}
    if unknown := [name for name in only if name not in known]:
        raise InputError(f"No fault is called {unknown[0]!r}.", hint=f"There are {', '.join(known)}.")
    return [known[name] for name in only] or list(FAULTS)


def measure(
    faults: Sequence[LiveFault], repetitions: int, seed: int, left_out: Sequence[str] = ()
) -> FaultsBench:
    with tempfile.TemporaryDirectory(prefix="holdfast-faults-") as directory:
        folder = Path(directory)
        click.echo("a run of one member, to compare the weights with", err=True)
        lengths = {fault.steps for fault in faults}
        digests = {steps: alone(_made(folder / f"alone-{steps}"), steps) for steps in lengths}
        results = []
        for fault in faults:
            samples = []
            for number in range(repetitions):
                generator = random.Random(f"{seed} {fault.name} {number}")
                place = _made(folder / f"{fault.name}-{number}")
                samples.append(sampled(fault, place, generator, digests[fault.steps]))
                click.echo(f"{fault.name} {number + 1} of {repetitions}: {samples[-1]}", err=True)
            results.append(summary(fault.name, samples))
        alarms = undisturbed(_made(folder / "undisturbed"))
    return FaultsBench(
        seed=seed,
        faults=tuple(results),
        left_out=tuple(left_out),
        undisturbed_steps=UNDISTURBED_STEPS,
        false_alarms=alarms,
    )


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def sampled(fault: LiveFault, folder: Path, generator: random.Random, reference: str) -> Sample:
    try:
        with fault.run(folder) as run:
            run.await_moment(generator)
            struck = fault.strike(run, generator)
            digest = run.digest()
            return judged(fault, run.events(), struck, is_same=digest == reference)
    except Failed as failure:
        return Sample(failure=str(failure))


def judged(fault: LiveFault, events: Sequence[AnyEvent], struck: Struck, *, is_same: bool) -> Sample:
    """Judge one fault by the record."""
    found_ns, is_right = fault.found(events, struck)
    calm_pause, pause = pauses_steps(events, struck.at_ns)
    went_on_ns = None if found_ns is None else went_on(events, found_ns)
    return Sample(
        detect_s=None if found_ns is None else max(0.0, (found_ns - struck.at_ns) / 1e9),
        recover_s=None if went_on_ns is None else (went_on_ns - struck.at_ns) / 1e9,
        pause_steps=pause,
        calm_pause_steps=calm_pause,
        right_culprit=is_right,
        steps_lost=steps_redone(events),
        bits_equal=is_same,
        recorded=tuple(f"{one.fault} {one.subject}" for one in events if isinstance(one, FaultObserved)),
    )


def pauses_steps(events: Iterable[AnyEvent], struck_ns: int) -> tuple[float | None, float | None]:
    """The longest gap between commits before the strike, and since, by the usual one before it."""
    commits = sorted(one.occurred_ns for one in events if isinstance(one, StepCommitted))
    gaps = [(after, after - before) for before, after in pairwise(commits[WARM_UP_STEPS:])]
    earlier = [gap for after, gap in gaps if after < struck_ns]
    later = [gap for after, gap in gaps if after >= struck_ns]
    if not earlier:
        return None, None
    usual = median(earlier)
    return max(earlier) / usual, max(later) / usual if later else None


def went_on(events: Iterable[AnyEvent], found_ns: int) -> int | None:
    """When all members committed a step, after the generation that followed, if one did at once."""
    lost_ns = [
        one.occurred_ns for one in events if isinstance(one, MemberLost) and one.occurred_ns >= found_ns
    ]
    opened = [one.recorded_ns for one in events if isinstance(one, GenerationOpened)]
    since_ns = found_ns
    if lost_ns:
        since_ns = min((at_ns for at_ns in opened if at_ns >= min(lost_ns)), default=found_ns)
    commits = [one.occurred_ns for one in events if isinstance(one, StepCommitted)]
    return min((at_ns for at_ns in commits if at_ns > since_ns), default=None)


def undisturbed(folder: Path) -> tuple[str, ...]:
    """Its false alarms. If it does not end, that is one, and the other results are kept."""
    with LiveRun(folder, steps=UNDISTURBED_STEPS, noise=True) as run:
        try:
            run.digest()
        except Failed as failure:
            return (str(failure),)
        return tuple(alarms(run.events()))


def alarms(events: Iterable[AnyEvent]) -> list[str]:
    found = [one for one in events if isinstance(one, FaultObserved | MemberLost | ActionTaken)]
    return [f"{type(one).__name__} {one.subject}" for one in found]


def summary(name: str, samples: Sequence[Sample]) -> FaultResult:
    return FaultResult(
        fault=name,
        repetitions=len(samples),
        detected=sum(one.detect_s is not None for one in samples),
        recovered=sum(one.recover_s is not None and not one.failure for one in samples),
        right_culprit=sum(one.right_culprit for one in samples),
        detect_s=_times([one.detect_s for one in samples]),
        recover_s=_times([one.recover_s for one in samples]),
        pause_steps=_times([one.pause_steps for one in samples]),
        calm_pause_steps=_times([one.calm_pause_steps for one in samples]),
        steps_lost=sum(one.steps_lost for one in samples),
        bits_equal=sum(one.bits_equal for one in samples),
    )


def _times(values: Iterable[float | None]) -> Times | None:
    known = [value for value in values if value is not None]
    return Times(median=median(known), max=max(known)) if known else None


def is_right(bench: FaultsBench) -> bool:
    wanted = [
        count == one.repetitions
        for one in bench.faults
        for count in (one.detected, one.recovered, one.right_culprit, one.bits_equal)
    ]
    return all(wanted) and not bench.false_alarms and not any(one.steps_lost for one in bench.faults)


def table(bench: FaultsBench) -> str:
    """The result for people."""
    head = (
        f"{'fault':<20}{'times':>6}{'found':>7}{'right':>7}{'went on':>9}{'same bits':>11}{'steps lost':>12}"
    )
    lines = [f"{head}{'found after':>18}{'went on after':>18}{'pause in steps':>18}{'before it':>18}"]
    for one in bench.faults:
        counts = f"{one.repetitions:>6}{one.detected:>7}{one.right_culprit:>7}{one.recovered:>9}"
        lines.append(
            f"{one.fault:<20}{counts}{one.bits_equal:>11}{one.steps_lost:>12}"
            f"{_seconds(one.detect_s):>18}{_seconds(one.recover_s):>18}{_steps(one.pause_steps):>18}"
            f"{_steps(one.calm_pause_steps):>18}"
        )
    if bench.left_out:
        lines.append(f"left out, because they need root: {', '.join(bench.left_out)}")
    false = ", ".join(bench.false_alarms) or "none"
    return "\n".join([*lines, f"false alarms in {bench.undisturbed_steps} undisturbed steps: {false}"])


def _seconds(times: Times | None) -> str:
    return "-" if times is None else f"{times.median:.2f} ({times.max:.2f}) s"


def _steps(times: Times | None) -> str:
    return "-" if times is None else f"{times.median:.1f} ({times.max:.1f})"
