"""Results of `holdfast bench faultkit`: the ranks named, when all went on, and with which bits.

Pure. Each system's own messages become reports of one form, and those the neutral result of lm-resiliency's
kit, which is scored by the kit's rule: the ranks named must be the faulty ones and no others. For a damaged
checkpoint the kit requires the name of a resource instead: the checkpoint.
"""

import math
import re
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from bench.commits import Commit, Whole, steps_lost
from bench.faultkit_cases import CHECKPOINT_EVERY, NEWEST, STRIKES_AT, TARGET, Case, resource_of
from holdfast.record.events import AnyEvent, CheckpointFailed, FaultObserved, MemberLost

NODE = "n0."
"""The beginning of a member's name; those of the first members end with their rank."""
TORCHRUN_FAILURE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")
DETAIL_CHARS_MAX = 200
OBSERVER_ENDED = "oob_daemon_failure"
LOGGED_STEP = re.compile(r"\bstep (\d+)\b")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of a system. ranks, resources: those it names; empty if it names none."""

    at_ns: int
    ranks: tuple[int, ...] = ()
    resources: tuple[str, ...] = ()
    kind: str | None = None
    detail: str = ""


class Localization(msgspec.Struct, frozen=True, kw_only=True):
    """The kit's neutral result of a system, by the names of its format."""

    occurrence_id: str
    detected: bool
    failed_ranks: tuple[int, ...] = ()
    failed_resources: tuple[str, ...] = ()
    kind: str | None = None
    latency_ms: float | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run with one fault. bits_equal None: the run did not reach its end, so it has no bits.

    For a damaged checkpoint, seconds count from the restart, and lost steps from the newest whole checkpoint.
    """

    fault: str
    system: str
    localization: Localization
    localised: bool
    false_alarms: int
    detect_s: float | None
    recover_s: float | None
    steps_lost: int
    workers_restarted: int
    bits_equal: bool | None
    said: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """All trials of a fault with a system. localised, finished, bits_equal and false_alarms are counts; the
    rest are medians."""

    fault: str
    system: str
    repetitions: int
    localised: int
    false_alarms: int
    detect_s: float | None
    recover_s: float | None
    steps_lost: float
    workers_restarted: float
    finished: int
    bits_equal: int


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The traces of a run. injected_ns: when the struck step began, or the run was started again. digests: of
    all members at the end. damaged: the name of the file that was damaged.
    """

    injected_ns: int
    reports: Sequence[Report]
    commits: Sequence[Commit]
    digests: frozenset[str]
    damaged: str = ""


def holdfast_reports(events: Iterable[AnyEvent], offset_ns: int) -> list[Report]:
    """offset_ns: by how much the wall clock is ahead of the monotonic one."""
    found = []
    for event in events:
        if isinstance(event, FaultObserved):
            kind = "straggler" if "slow" in event.fault else "sdc"
            found.append(
                _report(event.subject, event.occurred_ns - offset_ns, kind, event.detail or event.fault)
            )
        elif isinstance(event, MemberLost):
            kind = "hang" if "no progress" in event.reason else "process_failure"
            found.append(_report(event.subject, event.occurred_ns - offset_ns, kind, event.reason))
    return sorted(found, key=lambda report: report.at_ns)


def holdfast_checkpoint_reports(events: Iterable[AnyEvent], offset_ns: int) -> list[Report]:
    """Its records of unusable checkpoints, and all its other findings."""
    unfit = [
        Report(
            at_ns=event.occurred_ns - offset_ns,
            resources=(resource_of(event.step),),
            kind="sdc",
            detail=f"{event.place}: {event.reason}",
        )
        for event in events
        if isinstance(event, CheckpointFailed)
    ]
    return sorted(unfit, key=lambda report: report.at_ns)


def _report(member: str, at_ns: int, kind: str, detail: str) -> Report:
    rank = member.removeprefix(NODE).partition("+")[0]
    ranks = (int(rank),) if rank.isdigit() else ()
    return Report(at_ns=at_ns, ranks=ranks, kind=kind, detail=detail[:DETAIL_CHARS_MAX])


class _Scout(msgspec.Struct, frozen=True):
    failed_ranks: tuple[int, ...] = ()
    kind: str | None = None
    scope: str = "rank"


class _Told(msgspec.Struct, frozen=True):
    at_ns: int
    report: _Scout


def scout_reports(lines: str) -> list[Report]:
    """lm-resiliency's reports, a JSON object a line.

    A report about a whole group names no rank. Its observers also report that they end when torchrun ends the
    workers; that is not a finding about a rank.
    """
    found = []
    for line in lines.splitlines():
        told = msgspec.json.decode(line, type=_Told)
        if told.report.kind == OBSERVER_ENDED:
            continue
        named = () if told.report.scope == "peer_group" else tuple(sorted(told.report.failed_ranks))
        found.append(Report(at_ns=told.at_ns, ranks=named, kind=told.report.kind, detail=told.report.scope))
    return sorted(found, key=lambda report: report.at_ns)


class _Logged(msgspec.Struct, frozen=True):
    at_ns: int
    said: str


def gemini_reports(lines: str) -> list[Report]:
    """lm-resiliency's log messages about checkpoints, a JSON object a line."""
    found = []
    for line in lines.splitlines():
        logged = msgspec.json.decode(line, type=_Logged)
        steps = tuple(resource_of(int(step)) for step in LOGGED_STEP.findall(logged.said))
        found.append(
            Report(at_ns=logged.at_ns, resources=tuple(dict.fromkeys(steps)), kind="sdc", detail=logged.said)
        )
    return sorted(found, key=lambda report: report.at_ns)


def torchrun_failure(output: str, code_ignored: int) -> tuple[int, str] | None:
    """The rank that torchrun blames, and its message. Not a rank that ended because of a report."""
    for match in TORCHRUN_FAILURE.finditer(output):
        if int(match[1]) != code_ignored:
            return int(match[2]), match[0].strip()
    return None


def judged(case: Case, system: str, seen: Seen, undisturbed: str, members: int) -> Trial:
    """The result of a run with a fault. undisturbed: the digest of a run without one."""
    after = [report for report in seen.reports if report.at_ns >= seen.injected_ns]
    first = next((report for report in after if report.ranks), after[0] if after else None)
    ranks = first.ranks if first else ()
    bits_equal = seen.digests == {undisturbed} if seen.digests else None
    found_ns = first.at_ns if first else seen.injected_ns
    resumed = went_on(seen.commits, members, found_ns)
    if first is None and not bits_equal:
        resumed = None  # they went on with the fault
    return Trial(
        fault=case.fault,
        system=system,
        localization=_localization(case, seen, first, ranks=ranks),
        localised=ranks == (TARGET,),
        false_alarms=false_alarms(seen),
        detect_s=(found_ns - seen.injected_ns) / 1e9 if first else None,
        recover_s=(resumed.at_ns - seen.injected_ns) / 1e9 if resumed else None,
        steps_lost=steps_lost(seen.commits, resumed, found_ns) if resumed else 0,
        workers_restarted=max(0, len({commit.process for commit in seen.commits}) - members),
        bits_equal=bits_equal,
        said=first.detail if first else "",
    )


def judged_restart(case: Case, system: str, seen: Seen, undisturbed: str, members: int) -> Trial:
    """The result of a run whose processes were all killed, and whose newest checkpoint was damaged.

    Only reports before the first new step count: afterwards the damage has been used. A report about anything
    but the damaged checkpoint is a false alarm.
    """
    resumed = went_on(seen.commits, members, seen.injected_ns)
    used_ns = resumed.at_ns if resumed else math.inf
    is_damaged = case.damage != "none"
    expected = {resource_of(NEWEST)} if is_damaged else set[str]()
    said = [report for report in seen.reports if report.at_ns >= seen.injected_ns]
    right = [each for each in said if is_damaged and set(each.resources) == expected and each.at_ns < used_ns]
    first = right[0] if right else None
    with_file = [report for report in right if seen.damaged in report.detail]
    whole = NEWEST - CHECKPOINT_EVERY if is_damaged else NEWEST
    return Trial(
        fault=case.fault,
        system=system,
        localization=_localization(case, seen, first, resources=first.resources if first else ()),
        localised=first is not None,
        false_alarms=sum(not is_damaged or bool({*each.resources, *each.ranks} - expected) for each in said),
        detect_s=(first.at_ns - seen.injected_ns) / 1e9 if first else None,
        recover_s=(resumed.at_ns - seen.injected_ns) / 1e9 if resumed else None,
        steps_lost=max(0, whole + 1 - resumed.step) if resumed else 0,
        workers_restarted=max(0, len({commit.process for commit in seen.commits}) - members),
        bits_equal=seen.digests == {undisturbed} if seen.digests else None,
        said=[*with_file, *right][0].detail if right else "",
    )


def _localization(
    case: Case,
    seen: Seen,
    first: Report | None,
    *,
    ranks: tuple[int, ...] = (),
    resources: tuple[str, ...] = (),
) -> Localization:
    """The kit's result. first: the first report that counts, if there is one."""
    return Localization(
        occurrence_id=f"{case.fault}@{STRIKES_AT}",
        detected=first is not None,
        failed_ranks=ranks,
        failed_resources=resources,
        kind=first.kind if first else None,
        latency_ms=(first.at_ns - seen.injected_ns) / 1e6 if first else None,
    )


def went_on(commits: Sequence[Commit], members: int, after_ns: int) -> Whole | None:
    """The first step that all have committed after that moment: all members, or all but the lost one."""
    by_step: dict[int, list[Commit]] = {}
    for commit in commits:
        if commit.at_ns > after_ns:
            by_step.setdefault(commit.step, []).append(commit)
    whole = [
        Whole(step=step, at_ns=max(each.at_ns for each in made), processes=frozenset(processes))
        for step, made in by_step.items()
        if len(processes := {each.process for each in made}) >= members - 1
    ]
    return min(whole, key=lambda step: step.at_ns, default=None)


def false_alarms(seen: Seen) -> int:
    """Reports before the fault, and the first one after it if it names a healthy rank; later ranks may
    differ."""
    before = sum(report.at_ns < seen.injected_ns for report in seen.reports)
    after = [report for report in seen.reports if report.at_ns >= seen.injected_ns and report.ranks]
    return before + bool(after and set(after[0].ranks) - {TARGET})


def mean_step_s(ends_ns: Sequence[int]) -> float:
    """From one step to the next. The mean: a check every few steps does not show in the median."""
    return (ends_ns[-1] - ends_ns[0]) / (len(ends_ns) - 1) / 1e9 if len(ends_ns) > 1 else math.nan


def rows(trials: Sequence[Trial]) -> list[Row]:
    """In the order in which faults and systems came first."""
    pairs = dict.fromkeys((trial.fault, trial.system) for trial in trials)
    return [_row([each for each in trials if (each.fault, each.system) == pair]) for pair in pairs]


def _row(trials: Sequence[Trial]) -> Row:
    return Row(
        fault=trials[0].fault,
        system=trials[0].system,
        repetitions=len(trials),
        localised=sum(trial.localised for trial in trials),
        false_alarms=sum(trial.false_alarms for trial in trials),
        detect_s=_median([trial.detect_s for trial in trials]),
        recover_s=_median([trial.recover_s for trial in trials]),
        steps_lost=median(trial.steps_lost for trial in trials),
        workers_restarted=median(trial.workers_restarted for trial in trials),
        finished=sum(trial.bits_equal is not None for trial in trials),
        bits_equal=sum(trial.bits_equal is True for trial in trials),
    )


def _median(samples: Sequence[float | None]) -> float | None:
    known = [sample for sample in samples if sample is not None]
    return median(known) if known else None


def table(found: Sequence[Row]) -> list[str]:
    """The rows for people, as Markdown."""
    head = (
        "fault|system|localised|false alarms|found after|all go on after|steps lost|workers started|same bits"
    )
    lines = [f"| {' | '.join(head.split('|'))} |", f"|{'---|' * len(head.split('|'))}"]
    for row in found:
        bits = f"{row.bits_equal} of {row.repetitions}"
        ended = "" if row.finished == row.repetitions else f" ({row.finished} ended)"
        cells = (
            *(row.fault, row.system, f"{row.localised} of {row.repetitions}", row.false_alarms),
            *(_seconds(row.detect_s), _seconds(row.recover_s)),
            *(f"{row.steps_lost:g}", f"{row.workers_restarted:g}", bits + ended),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"
