"""How much each possible cause explains: the evidence for it and against it, in bans.

A hypothesis is a mechanism at a subject. What speaks for it: signs at the subject, signs at what depends on
it and nowhere else, exactly its dependents being late, its having come first, sizes that fit. What speaks
against it: healthy members beneath it, late ones that are not, signs of something else. The weights are in
`mechanisms`; the rest is counting.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import msgspec

from holdfast.detect.finding import Finding
from holdfast.detect.rules import SIGNS
from holdfast.detect.scene import Scene
from holdfast.diagnose.incident import Evidence
from holdfast.diagnose.mechanisms import MECHANISMS, Mechanism
from holdfast.topology.graph import Kind, Topology

PRIOR = -1.0
"""Of any one cause, against there being none that is known: one in ten."""
FITS_MIN = 0.3
"""A sign that fits a subject worse is not thought of as coming from there."""
FOLLOWS_RECALL = 0.4
"""Of what depends on a cause so much need show a consequence: the hottest first."""
UNEVEN_SHARE = 0.5
"""Where some have more than their share, it is at most half of them."""
SYMPTOM_WEIGHT = 1.2
EVERYONE_WEIGHT = 0.6
EVERYONE_SHARE = 0.8
TOGETHER_WEIGHT, FIRST_WEIGHT, AFTER_WEIGHT = 0.8, 0.2, -0.6
TOGETHER_NS = 150 * 10**9
"""What began so close to when the run became slower hardly did by chance."""
AFTER_NS = 180 * 10**9
"""Observations need not arrive in the order of events, and means take a while; later than this is later."""
CHANCE_NS = 120 * 10**9
TURNS_TIMES = 1.5
"""Of what members are late by, by turns: one that is late by more has a reason of its own."""
ALWAYS_WEIGHT = 0.5
CREEPING_SHARE = 0.4
"""Of the time since steps began to creep up."""
UNSEEN_NS = 30 * 10**9
GRAVE_WEIGHT = 1.0
DECIDED_WEIGHT = 0.8
DECIDED_NS = 300 * 10**9
REGULAR_WEIGHT = 0.8
SIZE_WEIGHT = 0.3
ELSEWHERE = -0.5
"""One of its kind shows the sign, and it is not this one."""
SIGNLESS = -0.7
"""Its consequences are there, but the cause itself, which is measured, is not."""
NOTHING_SHOWS = -0.2
"""A member that is late with no sign beneath it: either sensors are missing, or it is not the machine."""
OWN_WORK = -1.2
ALL_SEEN, SINCE_WEIGHT = 0.2, 0.3
MACHINE_SIGNS = frozenset({"low-clock", "cpu-pressure", "memory-pressure", "io-pressure"})
"""Where these are measured and not found, it is nothing of what usually makes one node late."""
GPU_SIGNS = frozenset({"low-clock", "low-power"})
ALIKE_SHARE = 0.03
GROWN = "Whether a step has more to do since then: a larger batch, or longer sequences."
OWN_MAX = 16
SHOWN_MAX = 4
"""Subjects that evidence names."""
CLOCK_BOUND = (0.4, 1.1)
"""Of the time computed, the share that grows as the clock falls, between memory-bound and more than bound."""
WATER_WEIGHT = -1.0
AIR_WORDS = ("air", "crac", "crah", "ahu")
"""In the name of what cools: it blows."""
RESENT, ANSWERED = "resent-packets", "answered-packets"
PORT_OWN = frozenset({"symbol-errors", "link-recoveries", "link-down", "slow-link", "damaged-packets"})
"""Signs that a port shows of its own link, whoever talks over it."""
HOST_OWN = frozenset({"swapping", "memory-pressure", "thrashing", "slow-disk", "cpu-pressure", "io-pressure"})
"""Signs of which one host may have far more than others."""
DOMINATES = 3.0
"""Of two rates of packets that are sent again: the link with the larger one loses them."""
LATE = ("late-compute", "late-exchange", "late-data")
POOL_SIGN = "slow-transfer"
STALLS = ("slow-checkpoint", "frequent-checkpoints")
STOPPED = "no-step"
SYMPTOMS = (STOPPED, "slow-step", *LATE, "wandering", *STALLS)
FELT = frozenset({*SYMPTOMS, "creeping", "stopped-first"})
"""What is seen of the run itself, and so is no cause of it."""
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
"""By a sign that it would give: which telemetry, and who has it."""
COLLECTING_BY = ("the members' time in the garbage collector", "training")
"""What tells uneven sequences from members that collect garbage, where members are late by turns."""


class SignFit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a sign lies around a subject: hit of the `total` that show it, of the `reached` that could."""

    hit: int
    reached: int
    total: int

    @property
    def precision(self) -> float:
        return self.hit / self.total

    @property
    def recall(self) -> float:
        return self.hit / self.reached

    @property
    def f1(self) -> float:
        return 2 * self.hit / (self.total + self.reached)


class Hypothesis(msgspec.Struct, frozen=True, kw_only=True):
    """A mechanism at a subject, with what speaks for it and against it."""

    mechanism: Mechanism
    subject: str
    evidence: tuple[Evidence, ...]
    explains: tuple[Finding, ...]

    @property
    def bans(self) -> float:
        return PRIOR + sum(one.weight for one in self.evidence)

    @property
    def is_grave(self) -> bool:
        """Whether it is a fault of hardware, also where no run feels it."""
        return any(finding.grave and finding.sign in self.mechanism.shows for finding in self.explains)


UNKNOWN = Mechanism(
    name="unknown",
    title="nothing that is known explains it",
    domain="none",
    seam="none",
    kinds=("run",),
    verdict="unknown",
    reach="everyone",
    slows=(),
    decides="What the late members have in common, and what changed when it began.",
    is_owned=False,
    action="Look at what the late members have in common, and at what changed when it began.",
)


class RunFindings:
    """The findings around one run, by sign, and how each sign lies in the graph."""

    def __init__(
        self,
        findings: Sequence[Finding],
        topology: Topology,
        scene: Scene,
        measured: Collection[str] = frozenset(),
        from_ns: int = 0,
    ) -> None:
        """measured: the signs that would have been found if they had been there. from_ns: what was so then
        had begun before anybody looked, and nobody knows when.
        """
        self.findings, self.topology, self.scene, self.measured = findings, topology, scene, measured
        self.from_ns = from_ns
        self.by_sign: dict[str, dict[str, Finding]] = {}
        for finding in findings:
            at = self.by_sign.setdefault(finding.sign, {})
            if finding.subject not in at or finding.confidence > at[finding.subject].confidence:
                at[finding.subject] = finding
        self._shown_by: dict[str, dict[str, list[str]]] = {}
        self._radius: dict[str, frozenset[str]] = {}
        self._found: dict[tuple[str, str], list[Finding]] = {}
        self._fits_by_kind = {sign: self._around(set(at)) for sign, at in self.by_sign.items()}

    @cached_property
    def members(self) -> tuple[str, ...]:
        """The run's members that are in the graph."""
        topology = self.topology
        if self.scene.run not in topology:
            return ()
        return tuple(
            name for name in topology.dependencies(self.scene.run) if topology.kind(name) == "member"
        )

    @cached_property
    def _latest_ns(self) -> int:
        return max(max(finding.noticed_ns, finding.until_ns or 0) for finding in self.findings)

    @cached_property
    def late(self) -> dict[str, set[str]]:
        return {sign: set(self.by_sign.get(sign, ())) for sign in LATE}

    @property
    def stopped_first(self) -> tuple[str, ...]:
        """Members that stopped before the others, and those on broken hardware."""
        broken = {
            name for finding in self.findings if finding.grave for name in self._beneath_of(finding.subject)
        }
        first = {*self.by_sign.get("stopped-first", ()), *(broken & set(self.members))}
        return tuple(name for name in self.members if name in first) or tuple(sorted(first))

    def has(self, sign: str) -> bool:
        return sign in self.by_sign

    def fit(self, sign: str, subject: str) -> SignFit | None:
        kind = self.topology.kind(subject) if subject in self.topology else None
        return self._fits_by_kind.get(sign, {}).get(kind, {}).get(subject)

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

    # -- where a sign points ---------------------------------------------------------------------------

    def _around(self, subjects: set[str]) -> dict[Kind | None, dict[str, SignFit]]:
        """By kind, for every mechanism asks for a few kinds only; None: what the graph does not know."""
        total = len(subjects)
        alone = SignFit(hit=1, reached=1, total=total)
        by_kind: dict[Kind | None, list[str]] = {}
        for subject in subjects:
            kind = self.topology.kind(subject) if subject in self.topology else None
            by_kind.setdefault(kind, []).append(subject)
        fits = {kind: dict.fromkeys(of_kind, alone) for kind, of_kind in by_kind.items()}
        for kind, of_kind in by_kind.items():
            if kind is None:
                continue
            among = self.members if kind == "member" and self.members else self.topology.names(kind)
            found = self.topology.common_causes(of_kind, among)
            if kind == "node" and (on_them := self._members_on(of_kind)):
                # A mount is its clients' members', not their nodes'.
                over = self.topology.common_causes(on_them, self.members)
                found = (*found, *(shared for shared in over if shared.kind == "mount"))
            for shared in found:
                fit = SignFit(hit=shared.hit, reached=shared.reached, total=total)
                fits.setdefault(shared.kind, {})[shared.subject] = fit
        return fits

    @cached_property
    def _nodes_of(self) -> dict[str, tuple[str, ...]]:
        return self.topology.causes_of_each(self.members, "node")

    def _members_on(self, nodes: Collection[str]) -> list[str]:
        wanted = set(nodes)
        return [member for member, on in self._nodes_of.items() if wanted.intersection(on)]

    def _candidates(self, mechanism: Mechanism) -> list[str]:
        needs = mechanism.needs or tuple(mechanism.shows)
        if mechanism.kinds == ("run",):
            return [self.scene.run] if any(self.has(sign) for sign in needs) else []
        found: dict[str, None] = {}
        if "run" in mechanism.kinds:
            fits = (self._over_run(sign) for sign in needs if self.has(sign))
            if any(fit is not None and fit.recall >= EVERYONE_SHARE for fit in fits):
                found[self.scene.run] = None
        for sign in needs:
            for kind in mechanism.kinds:
                for subject, fit in self._fits_by_kind.get(sign, {}).get(kind, {}).items():
                    is_its_own = sign in mechanism.shows and self._is_own(sign, subject)
                    if is_its_own or _share(mechanism, sign, fit) >= FITS_MIN:
                        found[subject] = None
        bad = {port for sign in PORT_OWN.intersection(needs) for port in self.by_sign.get(sign, ())}
        bad_ports = Counter(port.partition("/")[0] for port in bad)
        return [subject for subject in found if bad_ports[subject] != 1]  # of one bad port, not its host

    def _is_own(self, sign: str, subject: str) -> bool:
        """Whether a sign at the subject may be its own. What many show at once has a cause beneath them."""
        at = self.by_sign[sign]
        return subject in at and (len(at) <= OWN_MAX or at[subject].grave)

    # -- what speaks for and against -------------------------------------------------------------------

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
        if mechanism.name == "air-cooling":
            yield from self._medium(subject)
        if mechanism.name == "cpu-contention" and subject == self.scene.run:
            text = "all of the run's hosts have it at once: it may be the run's own work"
            yield Evidence(text=text, weight=OWN_WORK)

    def _signs(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        for sign, weight in (*mechanism.shows.items(), *mechanism.follows.items()):
            fit = self._fit_at(sign, subject)
            if fit is None:
                continue
            share = _share(mechanism, sign, fit)
            seen = self._at(sign, subject)
            sure = max(finding.confidence for finding in seen)
            yield _seen(seen, weight * share * sure, fit)

    def _over_run(self, sign: str) -> SignFit | None:
        """How many of the run's members, or of what of their kind it has, show a sign."""
        shown = self.by_sign[sign]
        total = len(shown)
        kinds = {self.topology.kind(name) for name in shown if name in self.topology}
        if not kinds and self.scene.run in self.topology:
            # What the graph does not know, such as a name server, everybody may depend on.
            return SignFit(hit=total, reached=total, total=total)
        count = len(self.members) or len(self.scene.members)
        if kinds and self.scene.run in self.topology and not kinds & {"run", "member"}:
            count = max(len(self.topology.causes(self.scene.run, kind)) for kind in kinds)
        return SignFit(hit=min(total, count), reached=max(count, total), total=total) if count else None

    def _contrary(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        for sign, weight in mechanism.against.items():
            at = self.by_sign.get(sign, {})
            near = self._near(subject) if at else ()
            if seen := [finding for name, finding in at.items() if name in near]:
                yield _seen(seen, -weight * max(finding.confidence for finding in seen), None)

    def _absent(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        """What is measured and is not there: it clears others, or leaves this without its own sign."""
        for sign, weight in mechanism.clears.items():
            if sign in self.measured and not self.has(sign) and self._sees_pools:
                yield Evidence(text=f"not found, though it is measured: {SIGNS[sign]}", weight=weight)
        for sign in mechanism.shows:
            other = self._first_like(sign, subject)
            if other and not self._at(sign, subject):
                yield Evidence(text=f"at {other} and not here: {SIGNS[sign]}", weight=ELSEWHERE)
        shows = [sign for sign in mechanism.shows if sign in self.measured]
        if shows and mechanism.follows and not any(self._at(sign, subject) for sign in mechanism.shows):
            text = f"not found at {subject}, though it is measured: {SIGNS[shows[0]]}"
            yield Evidence(text=text, weight=SIGNLESS)

    def _first_like(self, sign: str, subject: str) -> str | None:
        """Another subject of its kind that shows the sign."""
        if subject not in self.topology:
            return None
        if sign not in self._shown_by:
            kinds: dict[str, list[str]] = {}
            for name in self.by_sign.get(sign, ()):
                if name in self.topology and len(of := kinds.setdefault(self.topology.kind(name), [])) < 2:
                    of.append(name)
            self._shown_by[sign] = kinds
        alike = self._shown_by[sign].get(self.topology.kind(subject), ())
        return next((name for name in alike if name != subject), None)

    @cached_property
    def _sees_pools(self) -> bool:
        """Whether what comes from inference pools is measured, if the run takes anything from any."""
        known = self.scene.run in self.topology
        needs = self.topology.dependencies(self.scene.run) if known else ()
        return POOL_SIGN in self.measured or not any(self.topology.kind(name) == "pool" for name in needs)

    def _bare(self, node: str) -> Iterator[Evidence]:
        """Whether nothing but its member's lateness is unusual about a node, where that would be seen."""
        near = self._near(node) - {self.scene.run}
        seen = [one for one in self.findings if one.subject in near and one.sign not in LATE]
        if seen:
            yield _seen(seen, 2 * NOTHING_SHOWS, None)
        elif set(self.measured) >= MACHINE_SIGNS:
            text = "no reading of the node is unusual, and its processors, memory and GPUs are measured"
            yield Evidence(text=text, weight=ALL_SEEN)
        else:
            text = "no reading of the node, or of what it depends on, is unusual"
            yield Evidence(text=text, weight=NOTHING_SHOWS)
        slow = [one.since_ns for one in self.by_sign.get("slow-step", {}).values()]
        late = [one.since_ns for sign in LATE for one in self._at(sign, node)]
        if slow and late and min(abs(one - min(slow)) for one in late) <= TOGETHER_NS:
            yield Evidence(text="it has been late since the run became slower", weight=SINCE_WEIGHT)

    def _medium(self, subject: str) -> Iterator[Evidence]:
        """Whether it is cooled by water: then it is hardly the air."""
        topology = self.topology
        around = (*topology.causes(subject), *topology.dependents(subject), subject)
        loops = [name for name in around if topology.kind(name) in ("loop", "circuit")]
        named_air = any(word in name.casefold() for name in loops for word in AIR_WORDS)
        if any(topology.kind(name) == "loop" for name in loops) and not named_air:
            yield Evidence(text="it is cooled by a loop of coolant", weight=WATER_WEIGHT)

    def _near(self, subject: str) -> set[str]:
        """The subject, what depends on it and what it depends on; for a run all that anything is found at."""
        if subject == self.scene.run or subject not in self.topology:
            return {finding.subject for finding in self.findings}
        return {subject, *self._beneath_of(subject), *self.topology.causes(subject)}

    def _symptoms(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        """Who is late and who is not, against who would be."""
        signs = [sign for sign in mechanism.slows if sign in LATE]
        late = set().union(*(self.late[sign] for sign in signs)) if signs else set()
        others = [sign for sign in LATE if sign not in signs and self.late[sign]]
        is_felt = mechanism.reach == "beneath" or (mechanism.reach == "stall" and late)
        if is_felt and subject != self.scene.run:
            yield from self._beneath(subject, late, others, signs)
        elif mechanism.reach == "beneath" and mechanism.kinds == ("run",):
            yield from self._scattered(late)
        elif mechanism.reach in ("beneath", "everyone") and signs:
            yield from self._everyone(late)

    def is_everywhere(self, sign: str) -> bool:
        """Whether nearly all members are late in one way: then who is late does not say where it is."""
        return len(self.members) > 1 and len(self.late[sign]) >= EVERYONE_SHARE * len(self.members)

    @cached_property
    def has_grown(self) -> bool:
        """Whether all members compute longer by the same factor while their GPUs do as ever: then a step may
        have more to do than before.
        """
        if not self.is_everywhere("late-compute") or not set(self.measured) >= GPU_SIGNS:
            return False
        if any(self.has(sign) for sign in GPU_SIGNS):
            return False
        times = [one.value / one.usual for one in self.by_sign["late-compute"].values() if one.usual > 0]
        return bool(times) and max(times) - min(times) <= ALIKE_SHARE * min(times)

    def _beneath(
        self, subject: str, late: set[str], others: list[str], signs: Sequence[str]
    ) -> Iterator[Evidence]:
        beneath = {subject, *self._beneath_of(subject)} & set(self.members)
        if "late-exchange" in signs and self.is_everywhere("late-exchange") and beneath:
            # A collective ends for all at once, and does not say whose link it waited for.
            text = "everybody's exchange is late: whichever link is slow, all wait for it"
            yield Evidence(text=text, weight=0.0)
            return
        # Whoever waits for a late member may show that as a longer exchange.
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

    def _scattered(self, late: set[str]) -> Iterator[Evidence]:
        """Late members that have no machine in common, but something regular about them."""
        if len(late) < 2:
            yield Evidence(text="a single late member is not a stage", weight=-SYMPTOM_WEIGHT)
            return
        shared = self.topology.common_causes(late & set(self.members), self.members)
        best = max((one.likeness for one in shared if one.kind not in ("run", "pool")), default=0.0)
        yield Evidence(
            text=f"the {len(late)} late members have no machine in common that the others have not"
            if best < EVERYONE_SHARE
            else "the late members are exactly those of one machine or switch",
            weight=SYMPTOM_WEIGHT * (1 - 2 * best),
            subjects=_some(late),
        )
        if (every := _every(late, self.members)) is not None:
            text = f"they are one in {every} members, evenly spaced, as the stages of a pipeline are"
            yield Evidence(text=text, weight=REGULAR_WEIGHT)

    def _everyone(self, late: set[str]) -> Iterator[Evidence]:
        count = len(self.members) or len(self.scene.members)
        if not late or not count:
            return
        share = len(late) / count
        weight = EVERYONE_WEIGHT if share >= EVERYONE_SHARE else -EVERYONE_WEIGHT
        yield Evidence(text=f"{len(late)} of {count} members wait", weight=weight, subjects=_some(late))

    def _order(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        """Whether it began when the run became slower. What follows counts where the cause is not seen."""
        signs = mechanism.shows if self._onsets(mechanism.shows, subject) else mechanism.follows
        causes = self._onsets(signs, subject)
        effects = [one.since_ns for sign in mechanism.slows for one in self.by_sign.get(sign, {}).values()]
        if not causes or not effects:
            return
        if max(causes) <= self.from_ns + UNSEEN_NS:
            if self.from_ns and min(effects) <= self.from_ns + UNSEEN_NS:
                weight = ALWAYS_WEIGHT * self._best_share(mechanism, signs, subject)
                yield Evidence(text="it has been so for as long as the run has been slower", weight=weight)
            return
        first_ns = min(effects)
        lead_ns = first_ns - min(causes, key=lambda at_ns: abs(at_ns - first_ns))
        # What creeps is seen by one sensor long before another.
        loose_ns = round(CREEPING_SHARE * (self._latest_ns - first_ns)) if self.has("creeping") else 0
        early_ns = round(mechanism.leads_s * 1e9)
        if -max(TOGETHER_NS, loose_ns) <= lead_ns <= max(TOGETHER_NS, loose_ns, early_ns):
            # One of a hundred GPUs that began together is no likelier than the others.
            weight = TOGETHER_WEIGHT * self._best_share(mechanism, signs, subject)
            yield Evidence(text="it began when the run became slower", weight=weight)
        elif lead_ns < -max(AFTER_NS, loose_ns):
            text = f"it began {-lead_ns / 1e9:.0f} s after the first symptom"
            yield Evidence(text=text, weight=AFTER_WEIGHT)
        elif lead_ns > 0:
            text = f"it began {lead_ns / 1e9:.0f} s before the first symptom"
            yield Evidence(text=text, weight=FIRST_WEIGHT)

    def _best_share(self, mechanism: Mechanism, signs: Iterable[str], subject: str) -> float:
        fits = ((sign, self._fit_at(sign, subject)) for sign in signs if sign not in FELT)
        return max((_share(mechanism, sign, fit) for sign, fit in fits if fit is not None), default=0.0)

    def _fit_at(self, sign: str, subject: str) -> SignFit | None:
        """How the sign lies around the subject; of a run, how much of it shows it."""
        fit = self.fit(sign, subject)
        if fit is None and subject == self.scene.run and self.has(sign):
            return self._over_run(sign)
        return fit

    def _onsets(self, signs: Iterable[str], subject: str) -> list[int]:
        return [one.since_ns for sign in signs if sign not in FELT for one in self._at(sign, subject)]

    def _gravity(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        at = [
            one for sign in mechanism.shows if (one := self.by_sign.get(sign, {}).get(subject)) and one.grave
        ]
        if at:
            text = "that is a fault of the hardware by itself, whatever the run shows"
            yield Evidence(text=text, weight=GRAVE_WEIGHT * max(one.confidence for one in at))

    def _decisions(self, mechanism: Mechanism) -> Iterator[Evidence]:
        since = [one.since_ns for sign in mechanism.slows for one in self.by_sign.get(sign, {}).values()]
        for decided in self.scene.decisions:
            if decided.action not in mechanism.decisions or not since:
                continue
            if abs(min(since) - decided.at_ns) < DECIDED_NS:
                text = f"{decided.action} was decided then: {decided.reason}"
                yield Evidence(text=text, weight=DECIDED_WEIGHT, since_ns=decided.at_ns)

    def _sizes(self, mechanism: Mechanism, subject: str) -> Iterator[Evidence]:
        """Whether an effect is as large as its cause would make it."""
        if "low-clock" in mechanism.follows and (clocks := self._at("low-clock", subject)):
            late = self.by_sign.get("late-compute", {}).values()
            if late:
                slower = max((one.usual / one.value for one in clocks if one.value > 0), default=1.0) - 1
                longer = max((one.value / one.usual for one in late if one.usual > 0), default=1.0) - 1
                low, high = (bound * slower for bound in CLOCK_BOUND)
                fits = low <= longer <= high
                text = f"clocks so low make computing {100 * low:.0f} to {100 * high:.0f} % longer;"
                text += f" {100 * longer:.0f} % is seen"
                yield Evidence(text=text, weight=SIZE_WEIGHT if fits else -SIZE_WEIGHT)
        if "slow-writes" in mechanism.shows and (writes := self._at("slow-writes", subject)):
            for stall in self.by_sign.get("slow-checkpoint", {}).values():
                if not (writes[0].usual > 0 and stall.usual > 0):
                    continue
                writes_x, stall_x = writes[0].value / writes[0].usual, stall.value / stall.usual
                fits = 0.5 <= stall_x / writes_x <= 2.0
                text = f"writes take {writes_x:.1f} times as long, and checkpoints {stall_x:.1f} times"
                yield Evidence(text=text, weight=SIZE_WEIGHT if fits else -SIZE_WEIGHT)

    # -- what it would account for ---------------------------------------------------------------------

    def _at(self, sign: str, subject: str) -> list[Finding]:
        """The findings of a sign at the subject or at what depends on it."""
        if (sign, subject) not in self._found:
            self._found[sign, subject] = self._look(self.by_sign.get(sign, {}), subject)
        return self._found[sign, subject]

    def _look(self, at: Mapping[str, Finding], subject: str) -> list[Finding]:
        if not at or subject in at:
            return [at[subject]] if at else []
        if subject == self.scene.run:
            return list(at.values())
        near = self._beneath_of(subject)
        return [finding for name, finding in at.items() if name in near]

    def _beneath_of(self, subject: str) -> frozenset[str]:
        if subject not in self._radius:
            inside = self.topology.blast_radius(subject) if subject in self.topology else ()
            if inside and self.topology.kind(subject) == "mount":
                inside = (*inside, *(node for name in inside for node in self._nodes_of.get(name, ())))
            self._radius[subject] = frozenset(inside)
        return self._radius[subject]

    def _explained(self, mechanism: Mechanism, subject: str) -> Iterator[Finding]:
        for sign in (*mechanism.shows, *mechanism.follows):
            yield from self._at(sign, subject)
        for sign in mechanism.slows:
            for name, finding in self.by_sign.get(sign, {}).items():
                everywhere = mechanism.reach != "beneath" or sign not in LATE or subject == self.scene.run
                if everywhere or name in self._beneath_of(subject) or self.is_everywhere(sign):
                    yield finding
        waiting = self.late["late-exchange"] if "slow-step" in mechanism.slows else set()
        if "late-exchange" not in mechanism.slows and len(waiting) >= len(self.members) / 2 > 0:
            # The others wait for it in their exchange.
            yield from self.by_sign["late-exchange"].values()
        if mechanism.reach == "wandering":
            yield from self._by_turns()
        if RESENT in mechanism.shows:
            yield from self.by_sign.get(ANSWERED, {}).values()

    def _by_turns(self) -> Iterator[Finding]:
        """Members that are late while they all are by turns: by chance it is the same one for a while."""
        most = max((one.effect_s or 0.0 for one in self.by_sign.get("wandering", {}).values()), default=0.0)
        for one in self.by_sign.get("late-compute", {}).values():
            is_brief = one.until_ns is not None or self._latest_ns - one.since_ns < CHANCE_NS
            if is_brief or (one.effect_s or 0.0) <= TURNS_TIMES * most:
                yield one


def own_signs(findings: Sequence[Finding]) -> list[Finding]:
    """Without the signs that others show for the sake of one: where one host has by far the most of what
    hosts have of their own, it is that host, and the rest have what they always have or what comes of it.
    """
    by_metric: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        if one.sign in HOST_OWN and one.until_ns is None:
            by_metric.setdefault((one.sign, one.metric), []).append(one)
    dropped: set[tuple[str, str, str]] = set()
    for (sign, metric), shown in by_metric.items():
        more = sorted((one.value - one.usual for one in shown), reverse=True)
        if len(shown) > 1 and more[0] >= DOMINATES * more[1]:
            dropped |= {(sign, metric, one.subject) for one in shown if one.value - one.usual < more[0]}
    kept = [one for one in findings if (one.sign, one.metric, one.subject) not in dropped]
    if any(one.sign == "slow-step" and one.until_ns is None for one in kept):
        # Who is no longer late is not why the run still is.
        kept = [one for one in kept if one.sign not in LATE or one.until_ns is None]
    return list(own_resends(kept))


def own_resends(findings: Sequence[Finding]) -> Iterator[Finding]:
    """What is lost on one link is sent again by all that talk over it. Of several that send again, the one
    with errors of its own, or with by far the most, is where packets are lost; its peers answer. A host sends
    again over its bad port.
    """
    broken = {one.subject.partition("/")[0]: one.subject for one in findings if one.sign in PORT_OWN}
    by_metric: dict[str, list[Finding]] = {}
    for one in findings:
        if one.sign == RESENT:
            by_metric.setdefault(one.metric, []).append(one)
    worst: set[tuple[str, str]] = set()
    for metric, resends in by_metric.items():
        resends.sort(key=lambda one: -one.value)
        own = [one for one in resends if not broken.keys().isdisjoint(one.subject.split("/"))]
        if not own and (len(resends) == 1 or resends[0].value < DOMINATES * resends[1].value):
            own = resends
        worst |= {(metric, one.subject) for one in own or resends[:1]}
    for one in findings:
        if one.sign != RESENT:
            yield one
        elif (one.metric, one.subject) in worst:
            yield msgspec.structs.replace(one, subject=broken.get(one.subject, one.subject))
        else:
            yield msgspec.structs.replace(one, sign=ANSWERED)


def not_measured(measured: Collection[str]) -> list[tuple[str, str]]:
    """What might tell of a cause, and whose it is, where these signs are all that is measured."""
    return [told for sign, told in TOLD_BY.items() if sign not in measured]


def unknown(case: RunFindings) -> Hypothesis:
    """Nothing explains what is wrong with the run."""
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
    if case.has("wandering") and "collecting" not in case.measured:
        missing.insert(0, COLLECTING_BY)
    decides = [GROWN] if case.has_grown else []
    if missing:
        listed = ", ".join(f"{what} ({team})" for what, team in missing)
        decides.append(f"Not measured here, and might tell: {listed}.")
    mechanism = UNKNOWN
    if decides:
        mechanism = msgspec.structs.replace(UNKNOWN, decides=" ".join(decides))
    return Hypothesis(
        mechanism=mechanism, subject=case.scene.run, evidence=tuple(evidence), explains=symptoms
    )


def lost_because(best: Hypothesis, other: Hypothesis) -> str:
    """What speaks most against it; or what the better one has and it has not."""
    against = min(other.evidence, key=lambda one: one.weight, default=None)
    if against is not None and against.weight < 0:
        return against.text
    mine = {one.metric for one in other.evidence}
    more = [one for one in best.evidence if one.weight > 0 and one.metric not in mine]
    if more:
        return f"it does not explain this: {max(more, key=lambda one: one.weight).text}"
    return "it explains the same, less well"


def _share(mechanism: Mechanism, sign: str, fit: SignFit) -> float:
    """How well a sign lies where this mechanism would put it, between 0 and 1."""
    if sign in mechanism.uneven:
        return fit.precision * (1.0 if fit.recall <= UNEVEN_SHARE else 0.0)
    if sign in mechanism.shows:
        return fit.f1
    return fit.precision * min(1.0, fit.recall / FOLLOWS_RECALL)


def _seen(findings: Sequence[Finding], weight: float, fit: SignFit | None) -> Evidence:
    first = min(findings, key=lambda finding: finding.since_ns)
    strongest = max(findings, key=lambda finding: finding.confidence)
    where = strongest.subject if len(findings) == 1 else f"{len(findings)} subjects"
    text = f"{strongest.note}: {_figure(strongest)} at {where}"
    if fit is not None and fit.total > fit.hit:
        text += f", and at {fit.total - fit.hit} elsewhere"
    return Evidence(
        text=text,
        weight=weight,
        metric=strongest.metric,
        subjects=_some([finding.subject for finding in findings]),
        since_ns=first.since_ns,
    )


def _figure(finding: Finding) -> str:
    unit = f" {finding.unit}" if finding.unit else ""
    if finding.method == "event":
        return f"{finding.value:g}"
    against = "limit" if finding.method == "limit" else "usual"
    return f"{_number(finding.value)}{unit} ({against} {_number(finding.usual)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _some(subjects: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(subjects)[:SHOWN_MAX])


def _every(late: Collection[str], members: Sequence[str]) -> int | None:
    """k, where the late ones are every k-th of the members, which are in order."""
    at = [number for number, member in enumerate(members) if member in late]
    steps = {after - before for before, after in pairwise(at)}
    return steps.pop() if len(steps) == 1 and len(at) > 1 and at[1] - at[0] > 1 else None
