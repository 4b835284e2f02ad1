"""`holdfast bench audits`: silent corruption in live runs: how much audits find, and what they cost.

Three runs of four members, each a process, and one of them by itself:

- every lane is audited, and bits are flipped in gradients, activations, weights and optimizer state, one
  after the other: each must be found in the step in which it strikes, and the weights be a clean run's;
- a share of lanes is audited, and single wrong gradients strike: as many must be found as that share says;
- every lane is audited and nothing strikes: nothing may be found.

The cost of audits beside the lanes computed twice is measured in processor time, by its parts, on a model of
a few million parameters: times of whole steps vary by more than that from one run to the next.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import click
import msgspec

from bench.contestants import SCRIPTS, holdfast_run, script_words
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json

MEMBERS, LANES = 4, 16
LANE_S = 0.01
WHAT = ("gradient", "activation", "weight", "optimizer")
BITS = (1, 2, 7)
SPACING = 40
"""Steps between two faults that are found: a new process has to take the place of each ended member."""
CAMPAIGN, CAMPAIGN_RATE, CAMPAIGN_SPACING = 60, 0.25, 8
CLEAN_STEPS = 64
"""So 1,024 lanes are audited."""
RUN_S_MAX = 1800.0
OVERHEAD_MAX = 0.01
DEVIATIONS_MAX = 3.0
"""The most by which the counted share may differ from the probability, in standard deviations."""


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    """Faults of one kind. found: in the step in which they struck, with the right member named."""

    what: str
    bits: int
    struck: int
    found: int


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """Single wrong lanes. deviations: of the share found from the rate, in standard deviations."""

    rate: float
    struck: int
    found: int
    share: float
    deviations: float


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """By processor time. states, prints, plans: as shares of a step, at the default rate; audits beside the
    lanes that are computed twice cost their sum. state_s, lane_s: one state's print, one lane.
    """

    parameters: int
    lane_s: float
    state_s: float
    every: int
    states: float
    prints: float
    plans: float
    total: float


class AuditBench(msgspec.Struct, frozen=True, kw_only=True):
    """innocent: members that were ended though nothing struck them, in all runs. clean_audits: lanes that
    were compared without any fault; false_alarms: among them.
    """

    members: int
    lanes: int
    struck: tuple[Struck, ...]
    bits_equal: bool
    innocent: int
    campaign: Campaign
    clean_audits: int
    false_alarms: int
    overhead: Overhead

    @property
    def is_good(self) -> bool:
        return (
            self.bits_equal
            and all(one.found == one.struck for one in self.struck)
            and not self.innocent
            and not self.false_alarms
            and abs(self.campaign.deviations) <= DEVIATIONS_MAX
            and self.overhead.total <= OVERHEAD_MAX
        )


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault as in a plan of faults."""

    step: int
    rank: int
    what: str
    bits: int


@click.command("audits")
@json_option
def command(as_json: bool) -> None:
    """Flip bits in live runs: what audits find, how often, false alarms, cost."""
    bench = measure()
    if as_json:
        print_json(bench)
    else:
        click.echo(table(bench))
    if not bench.is_good:
        raise SystemExit(1)


def measure() -> AuditBench:
    kinds = list(product(WHAT, BITS))
    faults = [
        Fault(step=SPACING * number + 5, rank=number % MEMBERS, what=what, bits=bits)
        for number, (what, bits) in enumerate(kinds)
    ]
    steps = SPACING * len(faults) + 10
    clean = train(steps, 0.0, [], lane_s=0.0)
    audited = train(steps, 1.0, faults)
    single = [
        Fault(step=CAMPAIGN_SPACING * number + 2, rank=number % MEMBERS, what="gradient", bits=1)
        for number in range(CAMPAIGN)
    ]
    campaign = train(CAMPAIGN_SPACING * CAMPAIGN + 10, CAMPAIGN_RATE, single)
    quiet = train(CLEAN_STEPS, 1.0, [], lane_s=0.0)
    outcomes = found_in(audited, faults)
    return AuditBench(
        members=MEMBERS,
        lanes=LANES,
        struck=tuple(_struck(what, bits, faults, outcomes) for what, bits in product(WHAT, BITS)),
        bits_equal=digest_of(audited) == digest_of(clean),
        innocent=sum(map(innocent_in, (audited, campaign, quiet))),
        campaign=campaign_of(found_in(campaign, single), CAMPAIGN_RATE),
        clean_audits=CLEAN_STEPS * LANES,
        false_alarms=quiet.count("silent corruption on node"),
        overhead=overhead(),
    )


def _struck(what: str, bits: int, faults: Sequence[Fault], outcomes: Sequence[bool]) -> Struck:
    own = [
        is_found
        for fault, is_found in zip(faults, outcomes, strict=True)
        if (fault.what, fault.bits) == (what, bits)
    ]
    return Struck(what=what, bits=bits, struck=len(own), found=sum(own))


def campaign_of(outcomes: Sequence[bool], rate: float) -> Campaign:
    struck, found = len(outcomes), sum(outcomes)
    spread = (rate * (1 - rate) * struck) ** 0.5
    return Campaign(
        rate=rate,
        struck=struck,
        found=found,
        share=found / struck,
        deviations=(found - rate * struck) / spread,
    )


# ---- what a run says -------------------------------------------------------------------------------------


def found_in(output: str, faults: Sequence[Fault]) -> list[bool]:
    """For each fault, whether the struck member was ended in the step in which the fault struck."""
    found = [False] * len(faults)
    struck: dict[str, tuple[int, int]] = {}
    for line in output.splitlines():
        if strike := re.search(r"planned corrupt strikes (\S+) at step (\d+)", line):
            number = next(number for number, fault in enumerate(faults) if fault.step == int(strike[2]))
            struck[strike[1]] = (number, int(strike[2]))
        elif loss := re.search(r"(\S+) lost \(silent corruption: .*step (\d+)\)", line):
            number, step = struck.get(loss[1], (-1, 0))
            if number >= 0 and step <= int(loss[2]) <= step + 1:  # of a step that was being done again
                found[number] = True
    return found


def innocent_in(output: str) -> int:
    """The number of members that were ended although no fault struck them."""
    struck = set(re.findall(r"planned corrupt strikes (\S+) at", output))
    return sum(name not in struck for name in re.findall(r"(\S+) lost \(silent corruption", output))


def digest_of(output: str) -> str:
    found = re.search(r"completed: step \d+, digest (\w+)", output)
    if found is None:
        raise RuntimeError(f"the run did not complete:\n{output}")
    return found[1]


def train(steps: int, rate: float, faults: Sequence[Fault], lane_s: float = LANE_S) -> str:
    """Train one run, and return its output."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        plan = Path(directory) / "plan.toml"
        plan.write_text("".join(map(_table_of, faults)))
        chaos = ("--chaos", str(plan)) if faults else ()
        options = ("--nproc-per-node", str(MEMBERS), "--warm", "2", "--audit", str(rate), *chaos)
        told = {"--steps": steps, "--lanes": LANES, "--lane-s": lane_s, "--members": MEMBERS}
        return holdfast_run(directory, options, script_words("audited.py", told), RUN_S_MAX)


def _table_of(fault: Fault) -> str:
    return (
        f'[[fault]]\nfault = "corrupt"\nstep = {fault.step}\nrank = {fault.rank}\nwhat = "{fault.what}"\n'
        f"bits = {fault.bits}\n"
    )


def overhead() -> Overhead:
    told = ("--lanes", str(LANES), "--members", str(MEMBERS))
    script = (sys.executable, str(SCRIPTS / "audit_costs.py"), *told)
    return msgspec.json.decode(subprocess.run(script, capture_output=True, check=True).stdout, type=Overhead)


def table(bench: AuditBench) -> str:
    """The result for people."""
    campaign, cost = bench.campaign, bench.overhead
    lines = [f"{bench.members} members, {bench.lanes} lanes; bits flipped in one member, all lanes audited"]
    lines += [
        f"  {one.what:<12}{one.bits} bit{'s' if one.bits > 1 else ' '}  {one.found} of {one.struck} found "
        "before the commit"
        for one in bench.struck
    ]
    bits = "the same bits as a clean run" if bench.bits_equal else "OTHER BITS than a clean run"
    return "\n".join(
        [
            *lines,
            f"  {bits}; {bench.innocent} members ended for nothing",
            f"single wrong lanes, {campaign.rate:.0%} audited: {campaign.found} of {campaign.struck} found "
            f"({campaign.share:.1%}, {campaign.deviations:+.1f} standard deviations)",
            f"no faults: {bench.false_alarms} false alarms in {bench.clean_audits} audits",
            f"cost beside the lanes computed twice, {cost.parameters / 1e6:.1f} M parameters: "
            f"{cost.total:.2%} (states every {cost.every} steps {cost.states:.2%}, prints "
            f"{cost.prints:.3%}, plans {cost.plans:.3%}); at most {OVERHEAD_MAX:.0%} is wanted",
        ]
    )
