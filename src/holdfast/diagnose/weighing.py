"""How much each possible cause explains: the evidence for it and against it, in bans.

A hypothesis is a mechanism at a subject. Evidence for it: signs at the subject, signs at its dependents and
nowhere else, exactly its dependents being late, an early beginning, fitting sizes. Evidence against it:
healthy members beneath it, late members elsewhere, signs of another cause. The weights are in `mechanisms`;
the rest is counting.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from statistics import fmean, median, pstdev

import msgspec

from holdfast import wording
from holdfast.detect.finding import Finding
from holdfast.detect.rules import SIGNS
from holdfast.detect.stages import part_of
from holdfast.diagnose.cooled import apart, cooling_of, shared_air
from holdfast.diagnose.incident import Evidence
from holdfast.diagnose.mechanisms import MECHANISMS, Mechanism, Origin
from holdfast.diagnose.own import ANSWERED, HOST_OWN, RESENT
from holdfast.diagnose.run_findings import (
    EVERYONE_SHARE,
    FELT,
    LATE,
    MACHINE_SIGNS,
    PORT_OWN,
    RunFindings,
    SignFit,
)
from holdfast.diagnose.wording import figure, regular
from holdfast.topology.graph import Shared

PRIOR = -1.0
"""For any one cause, against an unknown cause: one in ten."""
MOST_SHARE = 0.5
"""A sign at most of a run's machines may be a problem of the run; the fewer show it, the less it counts."""
FITS_MIN = 0.3
"""A sign that fits a subject worse is not attributed to it."""
FOLLOWS_RECALL = 0.4
"""Share of a cause's dependents that must show a consequence: the hottest come first."""
UNEVEN_SHARE = 0.5
"""For uneven signs: at most half of the dependents show them."""
SYMPTOM_WEIGHT, WAITED_WEIGHT, WAITS_WEIGHT = 1.2, 0.3, -1.0
EVERYONE_WEIGHT = 0.6
TOGETHER_WEIGHT, FIRST_WEIGHT, AFTER_WEIGHT = 0.8, 0.2, -0.6
TOGETHER_NS = 150 * 10**9
"""A beginning this close to that of the slowdown is hardly chance."""
AFTER_NS = 180 * 10**9
"""Observations may arrive out of order, and means take a while; a longer delay means that it began later."""
CHANCE_NS = 120 * 10**9
TURNS, TURNS_TIMES = "wandering", 1.5
"""Times the lateness of members that are late in turn: a member that is later has a reason of its own."""
ALWAYS_WEIGHT = 0.5
CREEPING_SHARE = 0.4
"""Share of the time since steps began to creep up."""
UNSEEN_NS = 30 * 10**9
GRAVE_WEIGHT = 1.0
DECIDED_WEIGHT = 0.8
DECIDED_NS = 300 * 10**9
REGULAR_WEIGHT = 0.8
SIZE_WEIGHT = 0.3
LITTLE_SHARE, LITTLE_WEIGHT = 1 / 3, -1.0
"""Share of the growth in step time: a member that is late by less does not explain the growth."""
ELSEWHERE = -0.5
"""Another subject of its kind shows the sign, and this one does not."""
SIGNLESS = -0.7
"""Its consequences show, but its own sign does not, although it is measured."""
NOTHING_SHOWS = -0.2
"""A late member with no sign beneath it: either sensors are missing, or it is not the machine."""
OWN_WORK, OWN_WORK_DATA = -1.0, -1.2
"""If all hosts are short of processors, it may be the run's own work; more so if members wait for data."""
ALL_SEEN, SINCE_WEIGHT = 0.2, 0.3
ALIKE_LATE_SHARE, ALIKE_WEIGHT = 0.15, 0.4
"""Deviation as a share of the members' lateness: more work of one kind delays all of them equally."""
GROWN = "Whether a step has had more work since then: a larger batch, or longer sequences."
SHOWN_MAX = 4
"""Subjects that evidence names."""
CLOCK_BOUND = (0.4, 1.1)
"""The share of computing time that grows as the clock falls, from memory-bound to more than compute-bound."""
WATER_WEIGHT, AIR_WEIGHT = -1.0, -2.0
WARM, WARM_AIR_WEIGHT = "warm-supply", 2.0
AIR_COOLED = frozenset({"air-cooling"})
HALL = frozenset({"cooling", "power"})
WATER_COOLED = frozenset({"coolant-flow", "coolant-supply"})
TOLD_BY = {
    "slow-step": ("the run's step time", "training"),
    "late-compute": ("the members' own times", "training"),
    "low-clock": ("dcgm-exporter", "hardware"),
    "thermal-throttle": ("DCGM's violation times", "hardware"),
    "cpu-pressure": ("node_exporter with pressure", "platform"),
    "symbol-errors": ("node_exporter's InfiniBand counters", "network"),
    "uplink-waits": ("the switches' counters", "network"),
    "slow-reads": ("node_exporter's mountstats", "storage"),
    "low-flow": ("the cooling units", "facilities"),
    "failed-supply": ("the power supplies", "facilities"),
}
"""By a sign that it would give: the telemetry, and the team that has it."""
COLLECTING_BY = ("the members' time in the garbage collector", "training")
"""What tells uneven sequences from garbage collection if members are late in turn."""


class Hypothesis(msgspec.Struct, frozen=True, kw_only=True):
    """A mechanism at a subject, with the evidence for and against it."""

    mechanism: Mechanism
    subject: str
    evidence: tuple[Evidence, ...]
    explains: tuple[Finding, ...]

    @property
    def bans(self) -> float:
        return PRIOR + sum(one.weight for one in self.evidence)

    @property
    def is_grave(self) -> bool:
        """Whether it is a hardware fault, even if no run feels it."""
        return any(finding.grave and finding.sign in self.mechanism.shows for finding in self.explains)


UNKNOWN = Mechanism(
    name="unknown",
    title="no known cause explains it",
    origin=Origin("none", ("run",), seam="none"),
    suspect="node",
    verdict="unknown",
    reach="everyone",
    slows=(),
    decides="What the late members have in common, and what changed when it began.",
    is_owned=False,
    action="Look at what the late members have in common, and at what changed when it began.",
)


def hypotheses(case: RunFindings) -> Iterator[Hypothesis]:
    """Every mechanism at every subject that a sign points to."""
    return _Weighing(case).hypotheses()


class _Weighing:
    """The evidence for and against each cause of one case."""

    def __init__(self, case: RunFindings) -> None:
        self.case = case

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Every mechanism at every subject that a sign points to."""
        for mechanism in MECHANISMS:
            for subject in self._candidates(mechanism):
                evidence = tuple(self._evidence(mechanism, subject))
                yield Hypothesis(
                    mechanism=mechanism,
                    subject=subject,
                    evidence=evidence,
                    explains=tuple(self._explained(mechanism, subject)),
                )

    def _candidates(self, mechanism: Mechanism) -> list[str]:
        needs = mechanism.pointers
        if mechanism.origin.kinds == ("run",):
            return [self.case.scene.run] if any(self.case.has(sign) for sign in needs) else []
        found: dict[str, None] = {}
        if "run" in mechanism.origin.kinds:
            fits = (self.case.over_run(sign) for sign in needs if self.case.has(sign))
            if any(fit is not None and fit.recall >= MOST_SHARE for fit in fits):
                found[self.case.scene.run] = None
        for sign in needs:
            for kind in mechanism.origin.kinds:
                for subject, fit in self.case.fits_by_kind.get(sign, {}).get(kind, {}).items():
                    if "run" in mechanism.origin.kinds and not self.case.stands_out(sign, fit):
                        continue
                    is_its_own = sign in mechanism.shows and self.case.is_own(sign, subject)
                    if is_its_own or _share(mechanism, sign, fit) >= FITS_MIN:
                        found[subject] = None
        if mechanism.name in AIR_COOLED:
            return shared_air(self.case, list(found))
        if mechanism.name in WATER_COOLED:
            return apart(self.case, found, needs)
        if "member" in mechanism.origin.kinds:
            return self._nodes_first(found)
        if PORT_OWN.isdisjoint(needs):
            return list(found)
        found.update(dict.fromkeys(name for sign in needs for name in self.case.unplaced_switches(sign)))
        return [subject for subject in found if not self.case.has_one_bad_link(subject)]

    def _nodes_first(self, found: Collection[str]) -> list[str]:
        """Leave out members that are alone on their node: name the node instead."""
        members = set(self.case.members)
        alone = [self.case.beneath_of(name) & members for name in found if name not in members]
        same = {name for on_it in alone if len(on_it) == 1 for name in on_it}
        return [name for name in found if name not in same]

    def _evidence(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        yield from self._signs(mechanism, subject)
        yield from self._contrary(mechanism, subject)
        yield from self._absent(mechanism, subject)
        yield from self._symptoms(mechanism, subject)
        yield from self._order(mechanism, subject)
        yield from self._gravity(mechanism, subject)
        yield from self._decisions(mechanism)
        yield from self._sizes(mechanism, subject)
        if mechanism.name == "slow-node":
            yield from self._bare(subject)
        if mechanism.name in AIR_COOLED | WATER_COOLED:
            yield from self._medium(mechanism, subject)
        if mechanism.name == "cpu-contention" and subject == self.case.scene.run:
            text = "all of the run's hosts show it at once: it may be the run's own work"
            yield Evidence(text=text, weight=OWN_WORK_DATA if self.case.has("late-data") else OWN_WORK)

    def _signs(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        for sign, weight in (*mechanism.shows.items(), *mechanism.follows.items()):
            fit = self.case.fit_at(sign, subject)
            if fit is None:
                continue
            share = _share(mechanism, sign, fit)
            seen = self.case.at(sign, subject)
            sure = max(finding.confidence for finding in seen)
            yield _seen(seen, weight * share * sure, fit)

    def _contrary(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        is_of_members = mechanism.reach == "beneath" and mechanism.origin.kinds == ("run",)
        is_elsewhere = is_of_members and not self.case.have_signs(self.case.late["late-compute"])
        for sign, weight in mechanism.against.items():
            if (
                sign == WARM
                and mechanism.name in AIR_COOLED
                and cooling_of(self.case.topology, subject).is_air
            ):
                continue  # Its supply is air.
            at = self.case.by_sign.get(sign, {})
            near = self.case.near(subject) if at else set()
            if is_elsewhere:
                # Signs at others, or at one of many, do not make these members late.
                near &= {subject}
            # An ended sign is no evidence against a lasting cause.
            if seen := [one for name, one in at.items() if name in near and not one.until_ns]:
                weight *= self._reach_of(sign, mechanism, subject)
                yield _seen(seen, -weight * max(finding.confidence for finding in seen), None)

    def _reach_of(self, sign: str, mechanism: Mechanism, subject: str) -> float:
        """How widespread contrary evidence is, for a cause of the whole run or of a part of the hall: one
        short host or one slow GPU among many does not explain what all of them show.
        """
        fit = None
        if subject == self.case.scene.run:
            fit = self.case.over_run(sign)
        elif mechanism.origin.domain in HALL:
            fit = self.case.fit(sign, subject)
        is_wide = sign in HOST_OWN or len(mechanism.origin.kinds) > 1
        return 1.0 if fit is None or not is_wide else min(1.0, fit.recall / FOLLOWS_RECALL)

    def _absent(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        """Signs that are measured and absent: they rule out other causes, or this one lacks its own sign."""
        for sign, weight in mechanism.clears.items():
            if self.case.can_show(sign, subject) and not self.case.has(sign) and self.case.sees_pools:
                yield Evidence(text=f"not found, though it is measured: {SIGNS[sign]}", weight=weight)
        for sign in mechanism.shows:
            other = self.case.first_like(sign, subject)
            is_seen = sign not in self.case.measured or self.case.can_show(sign, subject)
            if other and is_seen and not self.case.at(sign, subject):
                yield Evidence(text=f"at {other} and not here: {SIGNS[sign]}", weight=ELSEWHERE)
        shows = [sign for sign in mechanism.shows if self.case.can_show(sign, subject)]
        if shows and mechanism.follows and not any(self.case.at(sign, subject) for sign in mechanism.shows):
            text = f"not found at {subject}, though it is measured: {SIGNS[shows[0]]}"
            yield Evidence(text=text, weight=SIGNLESS)

    def _bare(self, node: str) -> Iterator[Evidence]:
        """Whether a node shows nothing unusual besides its late member, although it is measured."""
        near = self.case.near(node) - {self.case.scene.run}
        seen = [one for one in self.case.findings if one.subject in near and one.sign not in LATE]
        if "late-compute" in self.case.measured and not self.case.at("late-compute", node):
            yield Evidence(text="it computes as fast as ever, and waits for others", weight=WAITS_WEIGHT)
        if seen:
            yield _seen(seen, 2 * NOTHING_SHOWS, None)
        elif self.case.is_dark(node):
            yield Evidence(text="no exporter shows this node: it may be anything", weight=0.0)
        elif all(self.case.can_show(sign, node) for sign in MACHINE_SIGNS):
            text = "no reading of the node is unusual, and its processors, memory and GPUs are measured"
            yield Evidence(text=text, weight=ALL_SEEN)
        else:
            text = "no reading of the node, or of what it depends on, is unusual"
            yield Evidence(text=text, weight=NOTHING_SHOWS)
        slow = self.case.of("slow-step")
        late = [one for sign in LATE for one in self.case.at(sign, node)]
        if not slow or not late:
            return
        began_ns = min(one.since_ns for one in slow)
        if min(abs(one.since_ns - began_ns) for one in late) <= TOGETHER_NS:
            yield Evidence(text="it has been late since the run became slower", weight=SINCE_WEIGHT)
        own_s = max((one.value - one.usual for one in late if one.sign != "late-data"), default=0.0)
        steps_s = max(one.value - one.usual for one in slow)
        if own_s < LITTLE_SHARE * steps_s:
            behind, longer = (wording.seconds(one_s, 2) for one_s in (own_s, steps_s))
            text = f"it is late by {behind}, and steps take {longer} longer"
            yield Evidence(text=text, weight=LITTLE_WEIGHT)

    def _medium(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        """Whether it is cooled by air or by coolant, and whether the mechanism fits that."""
        is_air, loops = cooling_of(self.case.topology, subject)
        if mechanism.name in WATER_COOLED:
            if is_air and not self.case.at("low-flow", subject):
                yield Evidence(text="it is cooled by air, not by a coolant loop", weight=AIR_WEIGHT)
        elif is_air and (warm := self.case.at(WARM, subject)):
            yield _seen(warm, WARM_AIR_WEIGHT * max(finding.confidence for finding in warm), None)
        elif loops and not is_air:
            yield Evidence(text="it is cooled by a coolant loop", weight=WATER_WEIGHT)

    def _symptoms(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        """Compare the members that are late with those that the mechanism would make late."""
        signs = [sign for sign in mechanism.slows if sign in LATE]
        if len(signs) > 1 and self.case.is_waited_for:
            signs = [sign for sign in signs if sign != "late-exchange"]
        late = set().union(*(self.case.late[sign] for sign in signs)) if signs else set()
        others = [sign for sign in LATE if sign not in signs and self.case.late[sign]]
        is_felt = mechanism.reach == "beneath" or (mechanism.reach == "stall" and late)
        if is_felt and subject != self.case.scene.run:
            yield from self._beneath(subject, late, others, signs)
        elif mechanism.reach == "beneath" and mechanism.origin.kinds == ("run",):
            yield from self._scattered(late)
        elif mechanism.reach in ("beneath", "everyone") and signs:
            yield from self._everyone(late, by_turns=TURNS in mechanism.slows and self.case.has(TURNS))

    def _beneath(
        self, subject: str, late: set[str], others: list[str], signs: Sequence[str]
    ) -> Iterator[Evidence]:
        beneath = {subject, *self.case.beneath_of(subject)} & set(self.case.members)
        is_reached = bool(beneath) or subject not in self.case.topology
        if "late-exchange" in signs and self.case.is_everywhere("late-exchange") and is_reached:
            # A collective ends for all at once, and does not say whose link it waited for.
            text = "the exchange of all members is late: whichever link is slow, all wait for it"
            yield Evidence(text=text, weight=0.0)
            return
        # Members that wait for a late one may show that as a longer exchange.
        others = [sign for sign in others if sign != "late-exchange"]
        if not late:
            if others:
                text = f"members are late, but not in the way this would make them ({others[0]})"
                yield Evidence(text=text, weight=-SYMPTOM_WEIGHT / 2)
            return
        hit = len(late & beneath)
        fit = 2 * hit / (len(late) + len(beneath)) if beneath else 0.0
        healthy, elsewhere = len(beneath) - hit, len(late) - hit
        text = f"{hit} of the {len(late)} late members depend on it"
        if subject in late:
            text = "it is the late member" if len(late) == 1 else f"it is one of {len(late)} late members"
        elif healthy:
            text += f"; {healthy} that depend on it are not late"
        elif hit and not elsewhere:
            text += ", and no member that depends on it is on time"
        yield Evidence(text=text, weight=SYMPTOM_WEIGHT * (2 * fit - 1), subjects=_some(late & beneath))
        if "late-compute" in signs and hit and not elsewhere and self.case.is_waited_for:
            yield Evidence(text="all others wait for it in their exchange", weight=WAITED_WEIGHT)

    def _scattered(self, late: set[str]) -> Iterator[Evidence]:
        """Late members without a machine in common, or without one that shows a sign, that form a regular
        part of the run.
        """
        if len(late) < 2:
            yield Evidence(text="a single late member is not a stage", weight=-SYMPTOM_WEIGHT)
            return
        best = self._in_common(late)
        # The members of a node always form a regular part of the run, whatever is wrong with the node.
        is_node = best is not None and best.kind == "node" and best.likeness > 1 / 2
        part = None if is_node else part_of(late, self.case.members)
        is_told = part is not None or (self.case.has("late-stage") and not is_node)
        yield self._machine(late, best, is_told)
        if part is not None:
            yield Evidence(text=regular(part, len(self.case.members)), weight=REGULAR_WEIGHT)
        if is_told:
            yield from self._alike()

    def _in_common(self, late: set[str]) -> Shared | None:
        """The machine or switch that most late members depend on; for a node and its parts, the node. A
        dependency that all members share says nothing.
        """
        shared = self.case.topology.common_causes(late & set(self.case.members), self.case.members)
        told = [
            one for one in shared if one.kind not in ("run", "pool") and one.reached < len(self.case.members)
        ]
        return max(told, key=lambda one: (one.likeness, one.kind == "node"), default=None)

    def _machine(self, late: set[str], best: Shared | None, is_told: bool) -> Evidence:
        """Whether the late members are those of one machine or switch. is_told: other evidence says that they
        are a stage.
        """
        likeness = 0.0 if best is None else best.likeness
        weight = SYMPTOM_WEIGHT * (1 - 2 * likeness)
        text = f"the {len(late)} late members share no machine that the others do not use"
        if best is not None and weight < 0:
            text = f"the late members are {best.hit} of the {best.reached} that depend on {best.subject}"
            if is_told and self.case.is_clear(late):
                text += ", of which no reading is unusual, though it is measured"
                weight = 0.0
        return Evidence(text=text, weight=weight, subjects=_some(late))

    def _alike(self) -> Iterator[Evidence]:
        """Whether they are late by the same time, and since the slowdown began."""
        late = self.case.of("late-compute")
        more = [one.value - one.usual for one in late]
        if len(more) > 2 and pstdev(more) <= ALIKE_LATE_SHARE * fmean(more):
            yield Evidence(text="they are late by the same time", weight=ALIKE_WEIGHT)
        slow = [one.since_ns for one in self.case.of("slow-step")]
        if not slow or not late:
            return
        apart_ns = median(one.since_ns for one in late) - min(slow)
        if abs(apart_ns) <= TOGETHER_NS:
            yield Evidence(text="they have been late since the run became slower", weight=SINCE_WEIGHT)
        elif apart_ns < -AFTER_NS:
            yield Evidence(text="they were late before the run became slower", weight=AFTER_WEIGHT)

    def _everyone(self, late: set[str], *, by_turns: bool) -> Iterator[Evidence]:
        """by_turns: it may hold up another member each time, and that is observed. Then the members that are
        late now say nothing.
        """
        count = len(self.case.members) or len(self.case.scene.members)
        share = len(late) / count if count else 0.0
        if by_turns and share < EVERYONE_SHARE:
            yield Evidence(text="another member is late each time, as expected", weight=EVERYONE_WEIGHT)
            return
        if not late or not count:
            return
        # From half of them, which is evidence against it, to nearly all, which is evidence for it.
        above = (share - MOST_SHARE) / (EVERYONE_SHARE - MOST_SHARE)
        weight = EVERYONE_WEIGHT * (2 * min(max(above, 0.0), 1.0) - 1)
        yield Evidence(text=f"{len(late)} of {count} members wait", weight=weight, subjects=_some(late))

    def _order(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        """Whether it began when the run became slower. If the cause is not seen, its consequences count."""
        signs = mechanism.shows if self._onsets(mechanism.shows, subject) else mechanism.follows
        causes = self._onsets(signs, subject)
        # Some member is late now and then: the longer steps say when it began.
        is_slow = "slow-step" in mechanism.slows and self.case.has("slow-step")
        slow = ("slow-step",) if is_slow else mechanism.slows
        effects = [one.since_ns for sign in slow for one in self.case.of(sign)]
        if not causes or not effects:
            return
        first_ns = min(effects)
        nearest_ns = min(causes, key=lambda at_ns: abs(at_ns - first_ns))
        if nearest_ns <= self.case.from_ns + UNSEEN_NS:
            if self.case.from_ns and first_ns <= self.case.from_ns + UNSEEN_NS:
                weight = ALWAYS_WEIGHT * self._best_share(mechanism, signs, subject)
                yield Evidence(text="it has been so for as long as the run has been slower", weight=weight)
            return
        lead_ns = first_ns - nearest_ns
        # Sensors notice a slow change at very different times.
        loose_ns = (
            round(CREEPING_SHARE * (self.case.latest_ns - first_ns)) if self.case.has("creeping") else 0
        )
        early_ns = round(mechanism.leads_s * 1e9)
        if -max(TOGETHER_NS, loose_ns) <= lead_ns <= max(TOGETHER_NS, loose_ns, early_ns):
            # One of a hundred GPUs that began together is no likelier than the others.
            weight = TOGETHER_WEIGHT * self._best_share(mechanism, signs, subject)
            yield Evidence(text="it began when the run became slower", weight=weight)
        elif lead_ns < -max(AFTER_NS, loose_ns) and not mechanism.grows:
            text = f"it began {-lead_ns / 1e9:.0f} s after the first symptom"
            yield Evidence(text=text, weight=AFTER_WEIGHT)
        elif lead_ns > 0:
            text = f"it began {lead_ns / 1e9:.0f} s before the first symptom"
            yield Evidence(text=text, weight=FIRST_WEIGHT)

    def _best_share(self, mechanism: Mechanism, signs: Iterable[str], subject: str) -> float:
        fits = ((sign, self.case.fit_at(sign, subject)) for sign in signs if sign not in FELT)
        return max((_share(mechanism, sign, fit) for sign, fit in fits if fit is not None), default=0.0)

    def _onsets(self, signs: Iterable[str], subject: str) -> list[int]:
        return [one.since_ns for sign in signs if sign not in FELT for one in self.case.at(sign, subject)]

    def _gravity(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        at = [
            one
            for sign in mechanism.shows
            if (one := self.case.by_sign.get(sign, {}).get(subject)) and one.grave
        ]
        if at:
            text = "that is a hardware fault by itself, whatever the run shows"
            yield Evidence(text=text, weight=GRAVE_WEIGHT * max(one.confidence for one in at))

    def _decisions(self, mechanism: Mechanism) -> Iterator[Evidence]:
        since = [one.since_ns for sign in mechanism.slows for one in self.case.of(sign)]
        for decided in self.case.scene.decisions:
            if decided.action not in mechanism.decisions or not since:
                continue
            if abs(min(since) - decided.at_ns) < DECIDED_NS:
                text = f"{decided.action} was decided then: {decided.reason}"
                yield Evidence(text=text, weight=DECIDED_WEIGHT, since_ns=decided.at_ns)

    def _sizes(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        """Whether the effect is as large as the cause would make it."""
        is_gpu = mechanism.origin.kinds == ("gpu",) and "low-clock" in mechanism.shows
        if (is_gpu or "low-clock" in mechanism.follows) and (clocks := self.case.at("low-clock", subject)):
            # If members' own times are missing, all wait for one GPU.
            late = self.case.of("late-compute") or (self.case.of("slow-step") if is_gpu else ())
            if late:
                slower = max((one.usual / one.value for one in clocks if one.value > 0), default=1.0) - 1
                longer = max((one.value / one.usual for one in late if one.usual > 0), default=1.0) - 1
                low, high = (bound * slower for bound in CLOCK_BOUND)
                fits = low <= longer <= high
                text = f"clocks so low make computing {100 * low:.0f} to {100 * high:.0f} % longer;"
                text += f" {100 * longer:.0f} % is seen"
                yield Evidence(text=text, weight=SIZE_WEIGHT if fits else -SIZE_WEIGHT)
        if "slow-writes" in mechanism.shows and (writes := self.case.at("slow-writes", subject)):
            for stall in self.case.of("slow-checkpoint"):
                if not (writes[0].usual > 0 and stall.usual > 0):
                    continue
                writes_x, stall_x = writes[0].value / writes[0].usual, stall.value / stall.usual
                fits = 0.5 <= stall_x / writes_x <= 2.0
                text = f"writes take {writes_x:.1f} times as long, and checkpoints {stall_x:.1f} times"
                yield Evidence(text=text, weight=SIZE_WEIGHT if fits else -SIZE_WEIGHT)

    def _explained(self, mechanism: Mechanism, subject: str) -> Iterator[Finding]:
        for sign in (*mechanism.shows, *mechanism.follows):
            yield from self.case.at(sign, subject)
        is_run = subject == self.case.scene.run
        for sign in mechanism.slows:
            if sign == TURNS and not is_run:
                continue
            for name, finding in self.case.by_sign.get(sign, {}).items():
                everywhere = mechanism.reach != "beneath" or sign not in LATE or is_run
                if everywhere or name in self.case.beneath_of(subject) or self.case.is_everywhere(sign):
                    yield finding
        waiting = self.case.late["late-exchange"] if "slow-step" in mechanism.slows else set()
        if "late-exchange" not in mechanism.slows and len(waiting) >= len(self.case.members) / 2 > 0:
            # The others wait for it in their exchange.
            yield from self.case.by_sign["late-exchange"].values()
        if mechanism.reach == TURNS:
            yield from self._by_turns()
        if RESENT in mechanism.shows:
            yield from self.case.of(ANSWERED)

    def _by_turns(self) -> Iterator[Finding]:
        """Late members that belong to the lateness in turn: by chance one may be late for a while."""
        most = max((one.effect_s or 0.0 for one in self.case.of(TURNS)), default=0.0)
        for one in self.case.of("late-compute"):
            is_brief = one.until_ns is not None or self.case.latest_ns - one.since_ns < CHANCE_NS
            if is_brief or (one.effect_s or 0.0) <= TURNS_TIMES * most:
                yield one


def not_measured(measured: Collection[str]) -> list[tuple[str, str]]:
    """Missing telemetry that might show a cause, and the team that has it, given the measured signs."""
    return [told for sign, told in TOLD_BY.items() if sign not in measured]


def unknown(case: RunFindings) -> Hypothesis:
    """The hypothesis that no known cause explains the run's problem."""
    symptoms = tuple(finding for finding in case.findings if finding.sign in FELT)
    late = set().union(*case.late.values()) & set(case.members)
    evidence = []
    if late and (shared := case.topology.common_causes(late, case.members)):
        best = shared[0]
        text = (
            f"{best.hit} of {len(late)} late members depend on {best.subject}, {best.reached} members in all"
        )
        evidence.append(Evidence(text=text, weight=0.0, subjects=_some(late)))
    if case.has_grown:
        text = "all members compute longer by the same factor, and clocks and power are as before"
        evidence.append(Evidence(text=f"{text}: a step may have more to do", weight=0.0))
    missing = not_measured(case.measured)
    if case.has(TURNS) and "collecting" not in case.measured:
        missing.insert(0, COLLECTING_BY)
    decides = [GROWN] if case.may_have_grown else []
    if missing:
        listed = ", ".join(f"{what} ({team})" for what, team in missing)
        decides.append(f"Not measured here, but might tell: {listed}.")
    mechanism = UNKNOWN
    if decides:
        mechanism = msgspec.structs.replace(UNKNOWN, decides=" ".join(decides))
    return Hypothesis(
        mechanism=mechanism, subject=case.scene.run, evidence=tuple(evidence), explains=symptoms
    )


def lost_because(best: Hypothesis, other: Hypothesis) -> str:
    """The strongest evidence against it; or evidence that the better hypothesis explains and it does not."""
    against = min(other.evidence, key=lambda one: one.weight, default=None)
    if against is not None and against.weight < 0:
        return against.text
    mine = {one.metric for one in other.evidence}
    more = [one for one in best.evidence if one.weight > 0 and one.metric not in mine]
    if more:
        return f"it does not explain this: {max(more, key=lambda one: one.weight).text}"
    return "it explains the same findings less well"


def _share(mechanism: Mechanism, sign: str, fit: SignFit) -> float:
    """How well the spread of a sign fits this mechanism, between 0 and 1."""
    if sign in mechanism.uneven:
        return fit.precision * (1.0 if fit.recall <= UNEVEN_SHARE else 0.0)
    if sign in mechanism.shows:
        return fit.f1
    return fit.precision * min(1.0, fit.recall / FOLLOWS_RECALL)


def _seen(findings: Sequence[Finding], weight: float, fit: SignFit | None) -> Evidence:
    first = min(findings, key=lambda finding: finding.since_ns)
    strongest = max(findings, key=lambda finding: finding.confidence)
    where = strongest.subject if len(findings) == 1 else f"{len(findings)} subjects"
    text = f"{strongest.note}: {figure(strongest)} at {where}"
    if fit is not None and fit.total > fit.hit:
        text += f", and at {fit.total - fit.hit} elsewhere"
    return Evidence(
        text=text,
        weight=weight,
        metric=strongest.metric,
        subjects=_some([finding.subject for finding in findings]),
        since_ns=first.since_ns,
    )


def _some(subjects: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(subjects)[:SHOWN_MAX])
