"""How alerts and runbooks write amounts, times and names: few digits, UTC, no locale."""

from collections.abc import Sequence

from holdfast import wording
from holdfast.detect.finding import Finding
from holdfast.detect.stages import StagePart
from holdfast.topology.hostlist import fold

HOSTS_CHARS_MAX = 80
RUNS_SHOWN_MAX = 5
BLIND = (
    "The signals have no metric of any machine, so only steps are judged. "
    "`holdfast doctor` says what is missing and how to switch it on."
)
_NO_STEP = "no step of it in the window"


def share(ratio: float) -> str:
    """`34 %`. A share above 0 is never written as 0 %, and one below 1 never as 100 %."""
    written = f"{100 * ratio:.0f} %"
    if ratio > 0 and written == "0 %":
        return "< 1 %"
    return "> 99 %" if ratio < 1 and written == "100 %" else written


def moment(at_ns: int) -> str:
    """To the second, in a form that every tool accepts: `2026-03-02T09:11:40Z`."""
    return wording.stamp(at_ns).replace(" ", "T")


def members(names: Sequence[str]) -> str:
    """`16 members, n[00000-00015]`: without the run, which stands beside it, and no longer than a line."""
    hosts = fold(name.rpartition("/")[2] for name in names)
    count = wording.many(len(names), "member")
    return f"{count}, {hosts}" if len(hosts) <= HOSTS_CHARS_MAX else f"{count}, {hosts[:HOSTS_CHARS_MAX]}…"


def stepless(last_ns: int | None, since_ns: int, asked: str = "signals") -> str:
    """Half a sentence about a run whose pace the window does not show.

    last_ns: when its last step was made, if known. since_ns: when the window begins. asked: what was read.
    """
    have = f"the {asked} {'have' if asked == 'signals' else 'has'}"
    if last_ns is None:
        return f"{have} {_NO_STEP}."
    is_within = last_ns >= since_ns
    lack = "too few steps of it in the window: two do not tell its pace" if is_within else _NO_STEP
    return f"{have} {lack}; its last step was at {wording.stamp(last_ns)}."


def known_runs(runs: Sequence[str]) -> str:
    """A sentence for a user who asked for another run than these; empty if there are none."""
    return f"The signals know {wording.listed(runs, RUNS_SHOWN_MAX)}." if runs else ""


def figure(finding: Finding) -> str:
    """`1,690 MHz (usual 1,980)`."""
    unit = f" {finding.unit}" if finding.unit else ""
    if finding.method == "event":
        return wording.number(finding.value)
    against = "limit" if finding.method == "limit" else "usual"
    value, other = (wording.number(one, 3) for one in (finding.value, finding.usual))
    return f"{value}{unit} ({against} {other})"


def regular(part: StagePart, count: int) -> str:
    """The regularity of the late members, in words."""
    as_stages = "as the stages of a pipeline are"
    if not part.is_repeated:
        return f"they are one of {count // part.size} equal parts of the {count} members, {as_stages}"
    if part.size == 1:
        return f"they are one in {part.period} members, evenly spaced, {as_stages}"
    return f"they are {part.size} neighbours of every {part.period} members, {as_stages}"
