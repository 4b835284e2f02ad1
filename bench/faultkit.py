"""`holdfast bench faultkit`: the fault kit of lm-resiliency, on it and on Holdfast, in turns on one machine.

Both train the same model on the same data with four workers, on processors and over TCP. The kit schedules
each fault on worker 2; for faults that it cannot make itself, both run the same code:
`bench/faultkit_cases.py`.

To damage a checkpoint, all processes are killed in the step that the kit names, the newest checkpoint is
damaged, and the same command is given again.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import click
import msgspec

from bench.commits import read_commits, whole_steps
from bench.contestants import OUTPUT, POLL_INTERVAL_S, SCRIPTS, Launch, Processes, Task, importable, torchrun
from bench.faultkit_cases import CASES, CHECKPOINT_EVERY, NEWEST, NOT_APPLIED, STRIKES_AT, UNDAMAGED, Case
from bench.faultkit_result import (
    Report,
    Row,
    Seen,
    Trial,
    gemini_reports,
    holdfast_checkpoint_reports,
    holdfast_reports,
    judged,
    judged_restart,
    mean_step_s,
    rows,
    scout_reports,
    table,
    torchrun_failure,
)
from bench.faultkit_storage import HOLDFAST_CHECKPOINTS, damage, gemini_file, holdfast_file
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json
from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent
from holdfast.record.journal import events_of

MEMBERS = 4
REPETITIONS = 3
STEPS = 30
HANG_AFTER_S = 6.0
"""The bound of a hang that both are given: by itself lm-resiliency has 30 s, and Holdfast 60 s or more."""
AUDIT = 0.25
"""The share of lanes that Holdfast audits, where it can: one of each member in every step."""
CHECKS_EVERY, CHECKS_EVERY_DEFAULT = CHECKPOINT_EVERY, 10
"""The steps from one check and checkpoint of lm-resiliency to the next: in the exam, and by itself."""
RUN_S_MAX = 240.0
"""A run that takes longer counts as one that does not go on."""
HELD = "held"
"""The file that a worker makes when all processes can be killed: see `faultkit_faults.py`."""
REPORTED = 75
"""The exit code of a worker of lm-resiliency that ends because of a report: see `faultkit_lmr.py`."""
PEER = "lm-resiliency"
KIT_MODULE = "lm_resiliency"


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """A step while nothing fails. ratio: by plain DDP's."""

    system: str
    step_s: float
    ratio: float
    false_alarms: int


class FaultkitBench(msgspec.Struct, frozen=True, kw_only=True):
    """trials have the kit's neutral results; not_applied: why the kit's other types are left out."""

    results: tuple[Row, ...]
    overhead: tuple[Overhead, ...]
    not_applied: dict[str, str]
    load: tuple[float, float]
    trials: tuple[Trial, ...]


class System(msgspec.Struct, frozen=True, kw_only=True):
    """A system as it is run here. reports: its findings, read from its folder and the failures in its output.

    saving          the processes, if checkpoints are to be on disk
    of_checkpoints  its findings about checkpoints, and others, read from its folder
    checkpoint      a file of the checkpoint of a step, if that is in its folder
    """

    name: str
    launches: Callable[[Task], tuple[Launch, ...]]
    reports: Callable[[Path, Sequence[Report]], list[Report]]
    saving: Callable[[Task], tuple[Launch, ...]]
    of_checkpoints: Callable[[Path], list[Report]]
    checkpoint: Callable[[Path, int], Path | None]


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is over. digests: none if it did not reach its end."""

    seen: Seen
    step_s: float


@click.command("faultkit")
@click.option("--repetitions", type=click.IntRange(min=1), default=REPETITIONS, show_default=True)
@click.option(
    "--peers-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=Path(sys.executable),
    help="The interpreter that has lm-resiliency.  [default: this one]",
)
@click.option("--fault", "names", multiple=True, help="Make this fault only; may be given more than once.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep the runs' files here.")
@json_option
def command(
    repetitions: int, peers_python: Path, names: tuple[str, ...], keep: Path | None, as_json: bool
) -> None:
    """Sit a rival's exam: 19 kinds of faults, made by lm-resiliency's kit, on it and on Holdfast."""
    cases = cases_named(names)
    if not importable(str(peers_python), KIT_MODULE):
        raise InputError(
            f"{peers_python} cannot import {KIT_MODULE}, whose fault kit this benchmark runs.",
            hint="make build/peers/.installed, then --peers-python build/peers/bin/python.",
        )
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        bench = measure(cases, repetitions, str(peers_python), keep or Path(directory))
    if as_json:
        print_json(bench)
    else:
        click.echo("\n".join([*table(bench.results), "", *_overhead_lines(bench)]))


def cases_named(names: Sequence[str]) -> list[Case]:
    """The cases of these names; without names all. If a checkpoint is damaged, the undamaged restart comes
    last."""
    known = {case.fault: case for case in CASES}
    for name in names:
        if name not in known:
            why = f": {NOT_APPLIED[name]}" if name in NOT_APPLIED else ""
            raise InputError(
                f"{name} is not a fault of this benchmark{why}.", hint=f"Name one of {', '.join(known)}."
            )
    chosen = [case for name, case in known.items() if name in (names or known)]
    return [*chosen, UNDAMAGED] if any(case.damage for case in chosen) else chosen


def measure(cases: Sequence[Case], repetitions: int, python: str, directory: Path) -> FaultkitBench:
    """Run all cases and systems in turn, `repetitions` times."""
    ours, theirs = _holdfast(python), _lm_resiliency(CHECKS_EVERY)
    load_before = _load()
    calm: dict[str, list[Finished]] = {}
    undisturbed: dict[str, str] = {}
    trials = []
    for number in range(repetitions):
        for system in (_plain(), ours, theirs, _lm_resiliency(CHECKS_EVERY_DEFAULT)):
            finished = _run(system, None, _task(system, python, directory / f"calm-{system.name}-{number}"))
            calm.setdefault(system.name, []).append(finished)
            _tell(f"undisturbed, {system.name}: {1000 * finished.step_s:.0f} ms a step")
            undisturbed[system.name] = "".join(finished.seen.digests)
        for case in cases:
            for system in (ours, theirs):
                folder = directory / f"{case.fault}-{system.name}-{number}".replace(" ", "-")
                task = _task(system, python, folder)
                digest = undisturbed[system.name]
                if case.damage is None:
                    trial = judged(case, system.name, _run(system, case, task).seen, digest, MEMBERS)
                else:
                    seen = _run_twice(system, case, task)
                    trial = judged_restart(case, system.name, seen, digest, MEMBERS)
                trials.append(trial)
                _tell(f"{case.fault}, {system.name}: {_sentence(trial)}")
    return FaultkitBench(
        results=tuple(rows(trials)),
        overhead=tuple(_overhead(calm)),
        not_applied=NOT_APPLIED,
        load=(load_before, _load()),
        trials=tuple(trials),
    )


def _task(system: System, python: str, folder: Path) -> Task:
    folder.mkdir(parents=True)
    own = sys.executable if system.name.startswith("holdfast") else python
    return Task(python=own, folder=folder, steps=STEPS, members=MEMBERS)


def _load() -> float:
    return float(Path("/proc/loadavg").read_text().split()[0])


def _tell(sentence: str) -> None:
    click.echo(f"bench faultkit: {sentence}", err=True)


def _sentence(trial: Trial) -> str:
    found = trial.localization
    named = f"named {found.failed_ranks or found.failed_resources}" if found.detected else "nothing found"
    times = [
        f"{seconds:.2f} s" if seconds is not None else "-" for seconds in (trial.detect_s, trial.recover_s)
    ]
    bits = {True: "the same bits", False: "OTHER BITS", None: "did not end"}[trial.bits_equal]
    restarted = f"{trial.workers_restarted} started, {trial.steps_lost} steps lost"
    return f"{named} after {times[0]}, went on after {times[1]}, {restarted}, {bits}; {trial.said}"


def _run(system: System, case: Case | None, task: Task) -> Finished:
    """One run to its end, or to the bound."""
    if case is not None:
        (task.folder / "campaign.json").write_bytes(msgspec.json.encode(case.manifest()))
    failures: list[Report] = []
    deadline = time.monotonic() + RUN_S_MAX
    with Processes(system.launches(task), task.folder) as processes:
        while not processes.finished() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
            if not failures and (blamed := torchrun_failure(processes.output(), REPORTED)):
                failures.append(
                    Report(
                        at_ns=time.monotonic_ns(),
                        ranks=(blamed[0],),
                        kind="process_failure",
                        detail=blamed[1],
                    )
                )
        ended = processes.succeeded()
    commits = read_commits(task.folder)
    seen = Seen(
        injected_ns=_injected_ns(task.folder),
        reports=system.reports(task.folder, failures),
        commits=commits,
        digests=_digests(task.folder) if ended else frozenset(),
    )
    whole = whole_steps(commits, MEMBERS)[STRIKES_AT:]
    return Finished(seen=seen, step_s=mean_step_s([step.at_ns for step in whole]))


def _run_twice(system: System, case: Case, task: Task) -> Seen:
    """A run until all of it is killed; then its newest checkpoint is damaged, and it is started again, to its
    end or to the bound.
    """
    assert case.damage is not None
    file = _run_until_killed(system, case, task)
    damage(file, case.damage)
    (task.folder / OUTPUT).rename(task.folder / f"{OUTPUT}.first")
    restarted_ns = time.monotonic_ns()
    deadline = time.monotonic() + RUN_S_MAX
    with Processes(system.saving(task), task.folder) as processes:
        while not processes.finished() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        ended = processes.succeeded()
    return Seen(
        injected_ns=restarted_ns,
        reports=system.of_checkpoints(task.folder),
        commits=read_commits(task.folder),
        digests=_digests(task.folder) if ended else frozenset(),
        damaged=file.name,
    )


def _run_until_killed(system: System, case: Case, task: Task) -> Path:
    """Kill all processes while a worker waits for it. Return the file to damage."""
    campaign = task.folder / "campaign.json"
    campaign.write_bytes(msgspec.json.encode(case.manifest()))
    deadline = time.monotonic() + RUN_S_MAX
    with Processes(system.saving(task), task.folder) as processes:
        while (file := system.checkpoint(task.folder, NEWEST)) is None or not (task.folder / HELD).exists():
            if processes.finished() or time.monotonic() > deadline:
                raise RuntimeError(f"{system.name} did not come to a checkpoint:\n{processes.last_words()}")
            time.sleep(POLL_INTERVAL_S)
        processes.kill()
    campaign.unlink()
    return file


def _digests(folder: Path) -> frozenset[str]:
    """Of the state that each worker had at its end."""
    return frozenset(file.read_text(encoding="ascii") for file in folder.glob("*.digest"))


class _Injected(msgspec.Struct, frozen=True):
    at_ns: int


def _injected_ns(folder: Path) -> int:
    """When the struck step began, by the monotonic clock; for a run without a fault, the largest time."""
    file = folder / "injected.json"
    return msgspec.json.decode(file.read_bytes(), type=_Injected).at_ns if file.exists() else 1 << 62


def _plain() -> System:
    def launches(task: Task) -> tuple[Launch, ...]:
        return torchrun(task, script="faultkit_ddp.py")

    return System(
        name="DDP",
        launches=launches,
        reports=lambda _, failures: list(failures),
        saving=launches,
        of_checkpoints=lambda _: [],
        checkpoint=lambda *_: None,
    )


def _lm_resiliency(every: int) -> System:
    told = {"BENCH_FAULTKIT_EVERY": str(every), "BENCH_FAULTKIT_HANG_S": str(HANG_AFTER_S)}

    def launches(task: Task) -> tuple[Launch, ...]:
        (launch,) = torchrun(task, script="faultkit_lmr.py")
        return (msgspec.structs.replace(launch, environment={**launch.environment, **told}),)

    def reports(folder: Path, failures: Sequence[Report]) -> list[Report]:
        file = folder / "reports.jsonl"
        found = [*failures, *(scout_reports(file.read_text()) if file.exists() else [])]
        return sorted(found, key=lambda report: report.at_ns)

    def of_checkpoints(folder: Path) -> list[Report]:
        file = folder / "log.jsonl"
        said = gemini_reports(file.read_text()) if file.exists() else []
        return sorted([*said, *reports(folder, ())], key=lambda report: report.at_ns)

    name = PEER if every == CHECKS_EVERY else f"{PEER}, every {every} steps"
    return System(
        name=name,
        launches=launches,
        reports=reports,
        saving=launches,
        of_checkpoints=of_checkpoints,
        checkpoint=gemini_file,
    )


def _holdfast(peers_python: str) -> System:
    options = ["--nproc-per-node", str(MEMBERS), "--warm", "1", "--hang-after", f"{HANG_AFTER_S:g}"]
    help_text = subprocess.run(
        (sys.executable, "-m", "holdfast", "run", "--help"), capture_output=True, check=True, text=True
    ).stdout
    if "--audit" in help_text:
        options += ["--audit", f"{AUDIT:g}"]
    program = "import lm_resiliency, pathlib; print(pathlib.Path(lm_resiliency.__file__).parents[1])"
    kit = subprocess.run(
        (peers_python, "-c", program), capture_output=True, check=True, text=True
    ).stdout.strip()

    def launches(task: Task, places: tuple[str, ...] = ()) -> tuple[Launch, ...]:
        told = {"--steps": task.steps, "--members": task.members, "--spares": 0, "--folder": task.folder}
        script = (
            str(SCRIPTS / "faultkit_holdfast.py"),
            *(str(word) for pair in told.items() for word in pair),
        )
        return (
            Launch(
                arguments=(task.python, "-m", "holdfast", "run", *options, *places, *script),
                environment={"HOLDFAST_HOME": str(task.folder / "home"), "BENCH_FAULTKIT": kit},
            ),
        )

    def saving(task: Task) -> tuple[Launch, ...]:
        place = str(task.folder / HOLDFAST_CHECKPOINTS)
        every = str(CHECKPOINT_EVERY)
        return launches(task, ("--run", "faultkit", "--checkpoints", place, "--checkpoint-every", every))

    def read(folder: Path, *readers: Callable[[Iterable[AnyEvent], int], list[Report]]) -> list[Report]:
        found: list[Report] = []
        with suppress(InputError):  # a run that ended before it recorded anything
            for reader in readers:
                found += reader(events_of(folder / "home"), time.time_ns() - time.monotonic_ns())
        return sorted(found, key=lambda report: report.at_ns)

    return System(
        name="holdfast",
        launches=launches,
        reports=lambda folder, _: read(folder, holdfast_reports),
        saving=saving,
        of_checkpoints=lambda folder: read(folder, holdfast_reports, holdfast_checkpoint_reports),
        checkpoint=holdfast_file,
    )


def _overhead(calm: dict[str, list[Finished]]) -> list[Overhead]:
    steps = {name: median(run.step_s for run in runs) for name, runs in calm.items()}
    return [
        Overhead(
            system=name,
            step_s=steps[name],
            ratio=steps[name] / steps["DDP"],
            false_alarms=sum(len(run.seen.reports) for run in runs),
        )
        for name, runs in calm.items()
    ]


def _overhead_lines(bench: FaultkitBench) -> list[str]:
    lines = ["| undisturbed | a step | by plain DDP's | false alarms |", "|---|---|---|---|"]
    lines += [
        f"| {one.system} | {1000 * one.step_s:.0f} ms | {one.ratio:.2f} | {one.false_alarms} |"
        for one in bench.overhead
    ]
    left_out = [f"{fault}: {why}" for fault, why in bench.not_applied.items()]
    return [*lines, "", *left_out, f"load before and after: {bench.load[0]:g}, {bench.load[1]:g}"]
