"""Faults made for real on one machine, each diagnosed from the live signals, and the diagnosis judged.

    python testbed/live.py                    # all of them, in a quarter of an hour; root, on Linux
    python testbed/live.py --fault link --json

A run of four nodes trains under `holdfast run`, each node in a network namespace of its own; Prometheus
scrapes it and its exporters every second. For each fault: a healthy while, the fault, a while with it, then
`holdfast diagnose`, and the fault is undone. Exits with 1 if any top cause is not the true one.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from cluster import Unable, cluster
from faults import FAULTS, Fault
from services import RUN, SCRAPE_S, Failed, Services

DIAGNOSE_WAIT_S = 60.0
EXIT_WRONG, EXIT_UNABLE = 1, 2


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long it is healthy before a fault, and how long that lasts.

    healthy_s: more than a minute, as diagnosis takes slow steps that are less apart for one incident
    usual_s    how much of it is in the window of the diagnosis: more than a third, which gives the baseline
    """

    healthy_s: float
    usual_s: float
    fault_s: float

    def lasts_s(self, fault: Fault) -> float:
        return max(self.fault_s, fault.least_s)


USUAL = Pace(healthy_s=65.0, usual_s=26.0, fault_s=20.0)
BRIEF = Pace(healthy_s=16.0, usual_s=14.0, fault_s=10.0)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One fault and what was found. noticed_s: after it was made, by the diagnosis's own account."""

    fault: str
    truth: str
    found: str
    confidence: float
    noticed_s: float | None
    slowdown: float
    is_right: bool


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--fault", action="append", choices=names, help="only this one; may be given again")
    parser.add_argument("--brief", action="store_true", help="half the time for each, and less to go by")
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # is cleaned up after like Ctrl-C
    chosen = [fault for fault in FAULTS if not given.fault or fault.name in given.fault]
    try:
        verdicts = play(chosen, BRIEF if given.brief else USUAL)
    except (Unable, Failed) as reason:
        print(f"testbed: {reason}", file=sys.stderr)
        return EXIT_UNABLE
    except KeyboardInterrupt:
        say("stopped; everything is removed")
        return 128 + signal.SIGINT
    print(
        json.dumps([asdict(verdict) for verdict in verdicts], indent=2) if given.as_json else table(verdicts)
    )
    return 0 if all(verdict.is_right for verdict in verdicts) else EXIT_WRONG


def play(faults: list[Fault], pace: Pace) -> list[Verdict]:
    with cluster() as nodes, Services(nodes) as services:
        say("four nodes, Prometheus, exporters and a mock-up CDU are started")
        services.wait_until(services.is_ready, "the run's first steps")
        say(f"the run {RUN} steps; faults follow: {', '.join(fault.name for fault in faults)}")
        return [judge(services, fault, pace) for fault in faults]


def judge(services: Services, fault: Fault, pace: Pace) -> Verdict:
    time.sleep(pace.healthy_s)
    say(f"{fault.name}: {fault.what}")
    made_s = time.time()
    fault.make(services)
    try:
        time.sleep(pace.lasts_s(fault))
        incidents = diagnosed(services, round(time.time() - made_s + pace.usual_s))
    finally:
        fault.undo(services)
    truth = f"{fault.domain}: {fault.subject} ({fault.mechanisms[0]})"
    if not incidents:
        return _nothing(fault, truth)
    top = incidents[0]
    cause = top["cause"]
    found = (cause["domain"], cause["subject"]) == (fault.domain, fault.subject)
    named = not fault.affected or set(top["affected"]) == set(fault.affected)
    verdict = Verdict(
        fault=fault.name,
        truth=truth,
        found=f"{cause['domain']}: {cause['subject']} ({cause['mechanism']})",
        confidence=round(top["confidence"], 2),
        noticed_s=round(top["noticed_ns"] / 1e9 - made_s, 1),
        slowdown=round(top["slowdown"], 2),
        is_right=found and named and cause["mechanism"] in fault.mechanisms,
    )
    say(f"{fault.name}: {'right' if verdict.is_right else 'WRONG'}: {verdict.found}, {top['what']}")
    if not verdict.is_right:
        for evidence in top["evidence"]:
            say(f"{fault.name}:   {evidence['weight']:+.1f} {evidence['text']}")
    return verdict


def _nothing(fault: Fault, truth: str) -> Verdict:
    say(f"{fault.name}: WRONG: nothing was found")
    return Verdict(
        fault=fault.name,
        truth=truth,
        found="nothing",
        confidence=0.0,
        noticed_s=None,
        slowdown=1.0,
        is_right=False,
    )


def diagnosed(services: Services, window_s: int) -> list[dict[str, Any]]:
    """The open incidents of `holdfast diagnose`: first the one by which the run is slowest."""
    command = [sys.executable, "-m", "holdfast", "diagnose", RUN, "--json"]
    command += ["--prometheus", services.prometheus, "--topology", str(services.topology)]
    command += ["--window", f"{window_s}s", "--step", f"{SCRAPE_S}s"]
    done = subprocess.run(
        command,
        env=services.environment,
        capture_output=True,
        text=True,
        timeout=DIAGNOSE_WAIT_S,
        check=False,
    )
    if done.returncode:
        raise Failed(f"holdfast diagnose ended with {done.returncode}:\n{done.stderr}")
    incidents: list[dict[str, Any]] = json.loads(done.stdout)["incidents"]
    is_open = [incident for incident in incidents if incident.get("ended_ns") is None]
    return sorted(is_open, key=lambda incident: -float(incident["slowdown"]))


def table(verdicts: list[Verdict]) -> str:
    rows = [("fault", "truth", "top cause", "confidence", "noticed", "slowdown", "")]
    for one in verdicts:
        noticed = "-" if one.noticed_s is None else f"{one.noticed_s:.0f} s"
        mark = "right" if one.is_right else "WRONG"
        rows.append(
            (one.fault, one.truth, one.found, f"{one.confidence:.2f}", noticed, f"{one.slowdown:.2f} x", mark)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def say(text: str) -> None:
    print(f"testbed: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
