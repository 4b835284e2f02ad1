"""The findings around one run: what was found where, and how each sign is spread over the graph.

A sign that many show has a common cause: for each subject that they depend on, count how many of its
dependents show the sign, and how many do not.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from statistics import median
from types import MappingProxyType

import msgspec

from holdfast.detect.finding import Finding
from holdfast.detect.scene import Scene
from holdfast.topology.graph import Kind, Topology

EVERYONE_SHARE = 0.8
MACHINE_SIGNS = frozenset({"low-clock", "cpu-pressure", "memory-pressure", "io-pressure"})
"""If these are measured and not found, the usual reasons for one late node are ruled out."""
GPU_SIGNS = frozenset({"low-clock", "low-power"})
ALIKE_SHARE = 0.03
FEW_SHARE, WAITS_SHARE = 0.5, 0.6
OUTSIDE_SHARE = 0.35
"""This share of the machines outside a group may show its sign: with more of them, it is not the group."""
CLEAR_SHARE = 0.25
"""This share of late members may have something unusual beneath them by chance."""
OWN_MAX = 16
PORT_OWN = frozenset({"symbol-errors", "link-recoveries", "link-down", "slow-link", "damaged-packets"})
"""Signs that a port shows about its own link, whichever hosts talk over it."""
SWITCH = "infiniband_switch_"
"""The prefix of metrics that a switch itself counts."""
LATE = ("late-compute", "late-exchange", "late-data")
POOL_SIGN = "slow-transfer"
STALLS = ("slow-checkpoint", "frequent-checkpoints")
STOPPED = "no-step"
NO_HOSTS: Mapping[str, frozenset[str]] = MappingProxyType({})
SYMPTOMS = (STOPPED, "slow-step", *LATE, "wandering", *STALLS)
FELT = frozenset({*SYMPTOMS, "creeping", "stopped-first"})
"""Symptoms of the run itself, which are not causes."""


class SignFit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a sign is spread around a subject: `hit` of `total` that show it, of `reached` that could."""

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


class RunFindings:
    """The findings around one run, by sign, and how each sign is spread over the graph."""

    def __init__(
        self,
        findings: Sequence[Finding],
        topology: Topology,
        scene: Scene,
        measured: Collection[str] = frozenset(),
        from_ns: int = 0,
        hosts: Mapping[str, frozenset[str]] = NO_HOSTS,
    ) -> None:
        """measured: the signs that the available metrics can show. from_ns: the first moment with readings; a
        state that held then began at an unknown earlier time. hosts: by sign, those that could show it; for
        signs that are missing here, all could.
        """
        self.findings, self.topology, self.scene, self.measured = findings, topology, scene, measured
        self.from_ns = from_ns
        self._hosts = hosts
        self.by_sign: dict[str, dict[str, Finding]] = {}
        for finding in findings:
            at = self.by_sign.setdefault(finding.sign, {})
            if finding.subject not in at or finding.confidence > at[finding.subject].confidence:
                at[finding.subject] = finding
        self._radius: dict[str, frozenset[str]] = {}
        self._found: dict[tuple[str, str], list[Finding]] = {}
        self._over_run: dict[str, SignFit | None] = {}
        self._by_kind = {sign: topology.by_kind(at) for sign, at in self.by_sign.items()}
        self.fits_by_kind = {sign: self._around(sign, self._by_kind[sign]) for sign in self.by_sign}

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
    def latest_ns(self) -> int:
        return max(max(finding.noticed_ns, finding.until_ns or 0) for finding in self.findings)

    @cached_property
    def late(self) -> dict[str, set[str]]:
        return {sign: set(self.by_sign.get(sign, ())) for sign in LATE}

    @property
    def stopped_first(self) -> tuple[str, ...]:
        """Members that stopped before the others, and those on broken hardware."""
        broken = {
            name for finding in self.findings if finding.grave for name in self.beneath_of(finding.subject)
        }
        first = {*self.by_sign.get("stopped-first", ()), *(broken & set(self.members))}
        return tuple(name for name in self.members if name in first) or tuple(sorted(first))

    def has(self, sign: str) -> bool:
        return sign in self.by_sign

    def of(self, sign: str) -> Collection[Finding]:
        """The findings of a sign, one for each subject."""
        return self.by_sign.get(sign, {}).values()

    def can_show(self, sign: str, subject: str) -> bool:
        """Whether the sign is measured there: what no exporter shows at a node, that node need not lack."""
        if sign not in self.measured:
            return False
        shown, nodes = self._hosts.get(sign), self.nodes_at(subject)
        return shown is None or not nodes or 2 * len(nodes & shown) > len(nodes)

    def is_dark(self, node: str) -> bool:
        """Whether exporters show other hosts, and nothing of this one."""
        return bool(self._hosts) and not any(node in shown for shown in self._hosts.values())

    def nodes_at(self, subject: str) -> frozenset[str]:
        """The nodes on which the subject is, or which are beneath it; none if the graph has none."""
        if subject not in self.topology:
            return frozenset()
        if self.topology.kind(subject) == "node":
            return frozenset({subject})
        above = self.topology.causes(subject, "node")
        return frozenset(above) or frozenset(
            name for name in self.beneath_of(subject) if self.topology.kind(name) == "node"
        )

    def _among(self, sign: str, kind: Kind) -> Collection[str] | None:
        """The subjects of this kind that could show the sign; None if all could."""
        if kind == "member":
            return self.members or None
        shown = self._hosts.get(sign)
        if shown is None or kind not in PLACED or shown >= set(self.topology.names("node")):
            return None
        return [name for name in self.topology.names(kind) if _host_of(name, kind) in shown]

    def fit(self, sign: str, subject: str) -> SignFit | None:
        kind = self.topology.kind(subject) if subject in self.topology else None
        return self.fits_by_kind.get(sign, {}).get(kind, {}).get(subject)

    def fit_at(self, sign: str, subject: str) -> SignFit | None:
        """How the sign is spread around the subject; for the run, how much of it shows the sign."""
        fit = self.fit(sign, subject)
        if fit is None and subject == self.scene.run and self.has(sign):
            return self.over_run(sign)
        return fit

    def over_run(self, sign: str) -> SignFit | None:
        """How many of the run's members, or of its subjects of the same kind, show a sign."""
        if sign not in self._over_run:
            self._over_run[sign] = self._over_run_of(self._by_kind[sign])
        return self._over_run[sign]

    def _over_run_of(self, shown: Mapping[Kind | None, Sequence[str]]) -> SignFit | None:
        total = sum(map(len, shown.values()))
        kinds = {kind for kind in shown if kind is not None}
        if not kinds and self.scene.run in self.topology:
            # All members may depend on a subject that the graph does not have, such as a name server.
            return SignFit(hit=total, reached=total, total=total)
        count = len(self.members) or len(self.scene.members)
        if kinds and self.scene.run in self.topology and not kinds & {"run", "member"}:
            count = max(len(self.topology.causes(self.scene.run, kind)) for kind in kinds)
        return SignFit(hit=min(total, count), reached=max(count, total), total=total) if count else None

    def stands_out(self, sign: str, fit: SignFit) -> bool:
        """Whether hardly any other machine of the run shows the sign: otherwise it is not theirs."""
        whole = self.over_run(sign)
        outside = 0 if whole is None else whole.reached - fit.reached
        return outside <= 0 or (fit.total - fit.hit) <= OUTSIDE_SHARE * outside

    def at(self, sign: str, subject: str) -> list[Finding]:
        """The findings of a sign at the subject or at its dependents."""
        if (sign, subject) not in self._found:
            self._found[sign, subject] = self._look(self.by_sign.get(sign, {}), subject)
        return self._found[sign, subject]

    def _look(self, at: Mapping[str, Finding], subject: str) -> list[Finding]:
        if not at or subject in at:
            return [at[subject]] if at else []
        if subject == self.scene.run:
            return list(at.values())
        near = self.beneath_of(subject)
        return [finding for name, finding in at.items() if name in near]

    def near(self, subject: str) -> set[str]:
        """The subject, its dependents and its dependencies; for a run, all subjects with findings."""
        if subject == self.scene.run or subject not in self.topology:
            return {finding.subject for finding in self.findings}
        return {subject, *self.beneath_of(subject), *self.topology.causes(subject)}

    def beneath_of(self, subject: str) -> frozenset[str]:
        if subject not in self._radius:
            inside = self.topology.blast_radius(subject) if subject in self.topology else ()
            if inside and self.topology.kind(subject) == "mount":
                inside = (*inside, *(node for name in inside for node in self._nodes_of.get(name, ())))
            self._radius[subject] = frozenset(inside)
        return self._radius[subject]

    def is_everywhere(self, sign: str) -> bool:
        """Whether nearly all members are late in one way: then the late members do not locate the cause."""
        return len(self.members) > 1 and len(self.late[sign]) >= EVERYONE_SHARE * len(self.members)

    @cached_property
    def is_waited_for(self) -> bool:
        """Whether some members compute longer, and the exchange is longer for nearly all others but hardly
        for them: the others wait for them.
        """
        late, waiting = self.late["late-compute"], self.by_sign.get("late-exchange", {})
        others = [one.value - one.usual for name, one in waiting.items() if name not in late]
        is_few = 0 < len(late) <= FEW_SHARE * len(self.members)
        if not is_few or len(others) < EVERYONE_SHARE * (len(self.members) - len(late)):
            return False
        # The late ones wait as well, for the last of them.
        enough = WAITS_SHARE * median(others)
        own = sum(waiting[name].value - waiting[name].usual > enough for name in late & waiting.keys())
        return own <= len(late) / 2

    @cached_property
    def has_grown(self) -> bool:
        """Whether all members compute longer by the same factor at normal clocks: steps may do more work."""
        if not self.is_everywhere("late-compute") or not self._can_show_all(GPU_SIGNS, self.members):
            return False
        if any(self.has(sign) for sign in GPU_SIGNS):
            return False
        times = [one.value / one.usual for one in self.by_sign["late-compute"].values() if one.usual > 0]
        return bool(times) and max(times) - min(times) <= ALIKE_SHARE * min(times)

    @cached_property
    def may_have_grown(self) -> bool:
        """Whether steps may be longer because they have more work: all members by the same factor, or bit by
        bit for hours with nothing else found.
        """
        if self.has_grown:
            return True
        causes = any(one.sign not in FELT for one in self.findings)
        return self.has("creeping") and not causes and not any(self.late.values())

    def is_clear(self, late: set[str]) -> bool:
        """Whether nothing is found beneath these members although it is measured: their machines are fine."""
        return self._can_show_all(MACHINE_SIGNS | GPU_SIGNS, late) and not self.have_signs(late)

    def _can_show_all(self, signs: Collection[str], members: Collection[str]) -> bool:
        """Whether these signs are measured, and at the machines of these members."""
        return set(self.measured) >= set(signs) and all(
            self.can_show(sign, member) for sign in signs if sign in self._hosts for member in members
        )

    def have_signs(self, late: set[str]) -> bool:
        """Whether something is found beneath more of these members than by chance; a finding beneath all
        members does not distinguish them.
        """
        seen: set[str] = set()
        everyone = set(self.members)
        for subject in {one.subject: None for one in self.findings if one.sign not in FELT}:
            reached = everyone & self.beneath_of(subject)
            if subject != self.scene.run and len(reached) < len(everyone):
                seen |= late & reached
            if len(seen) > CLEAR_SHARE * len(late):
                return True
        return False

    def first_like(self, sign: str, subject: str) -> str | None:
        """Another subject of the same kind that shows the sign."""
        if subject not in self.topology:
            return None
        alike = self._by_kind.get(sign, {}).get(self.topology.kind(subject), ())
        return next((name for name in alike if name != subject), None)

    @cached_property
    def sees_pools(self) -> bool:
        """Whether inference pools are measured, if the run depends on any."""
        known = self.scene.run in self.topology
        needs = self.topology.dependencies(self.scene.run) if known else ()
        return POOL_SIGN in self.measured or not any(self.topology.kind(name) == "pool" for name in needs)

    def is_own(self, sign: str, subject: str) -> bool:
        """Whether a sign at the subject may be its own. If many show it, the cause is beneath them."""
        at = self.by_sign[sign]
        return subject in at and (len(at) <= OWN_MAX or at[subject].grave)

    def has_one_bad_link(self, subject: str) -> bool:
        """Whether all that is wrong with a host or a switch is one port beneath it: then it is that port. A
        switch counts errors at the other end of that link, so one port of its own may be the same link.
        """
        if self._bad_links[subject] > 1:
            return False
        beneath = self._bad_ports & self.beneath_of(subject)
        return len(beneath) == 1 or self._bad_hosts[subject] == 1

    def unplaced_switches(self, sign: str) -> list[str]:
        """Switches with errors that are not in the graph, while nearly all members exchange late."""
        if sign not in PORT_OWN or not self.is_everywhere("late-exchange"):
            return []
        at = self.by_sign.get(sign, {})
        return [
            name for name, one in at.items() if name not in self.topology and one.metric.startswith(SWITCH)
        ]

    @cached_property
    def _bad_ports(self) -> frozenset[str]:
        shown = (name for sign in PORT_OWN for name in self.by_sign.get(sign, ()))
        return frozenset(name for name in shown if "/" in name)

    @cached_property
    def _bad_hosts(self) -> Counter[str]:
        """By host, its bad ports: the graph may not know a host's ports."""
        return Counter(port.partition("/")[0] for port in self._bad_ports)

    @cached_property
    def _bad_links(self) -> Counter[str]:
        """By switch, the number of its ports with errors."""
        at = Counter(
            (finding.metric, finding.method, finding.subject)
            for finding in self.findings
            if finding.sign in PORT_OWN and "/" not in finding.subject and finding.until_ns is None
        )
        most: Counter[str] = Counter()
        for (_, _, subject), count in at.items():
            most[subject] = max(most[subject], count)
        return most

    def _around(
        self, sign: str, by_kind: Mapping[Kind | None, Sequence[str]]
    ) -> dict[Kind | None, dict[str, SignFit]]:
        """By kind, because a mechanism needs only a few kinds; None: subjects missing in the graph."""
        subjects = {name for of_kind in by_kind.values() for name in of_kind}
        total = len(subjects)
        alone = SignFit(hit=1, reached=1, total=total)
        fits = {kind: dict.fromkeys(of_kind, alone) for kind, of_kind in by_kind.items()}
        for kind, of_kind in by_kind.items():
            if kind is None:
                continue
            found = self.topology.common_causes(of_kind, self._among(sign, kind))
            if kind == "node" and (on_them := self._members_on(of_kind)):
                # In the graph members depend on mounts, nodes do not; but here nodes show the sign.
                over = self.topology.common_causes(on_them, self.members)
                found = (*found, *(shared for shared in over if shared.kind == "mount"))
            for shared in found:
                fit = SignFit(hit=shared.hit, reached=shared.reached, total=total)
                if kind == "node" and shared.kind == "mount":
                    fit = self._fit_of_nodes(shared.subject, of_kind, total)
                of_kind_above = fits.setdefault(shared.kind, {})
                if shared.subject in subjects:
                    # It shows the sign itself; its dependents show it as a consequence.
                    beneath = shared.hit if shared.kind != kind else 0
                    known = of_kind_above[shared.subject]
                    fit = SignFit(hit=known.hit + beneath, reached=known.reached + beneath, total=total)
                of_kind_above[shared.subject] = fit
        return fits

    @cached_property
    def _nodes_of(self) -> dict[str, tuple[str, ...]]:
        return self.topology.causes_of_each(self.members, "node")

    def _fit_of_nodes(self, mount: str, shown: Sequence[str], total: int) -> SignFit:
        nodes = {node for on in self._nodes_of.values() for node in on} & self.beneath_of(mount)
        return SignFit(hit=len(nodes.intersection(shown)), reached=len(nodes), total=total)

    def _members_on(self, nodes: Collection[str]) -> list[str]:
        wanted = set(nodes)
        return [member for member, on in self._nodes_of.items() if wanted.intersection(on)]


PLACED: frozenset[Kind] = frozenset({"node", "gpu", "port"})
"""Kinds of subjects that are a host, or on one, and whose names begin with its name."""


def _host_of(name: str, kind: Kind) -> str:
    return name.rpartition(".")[0] if kind == "gpu" else name.partition("/")[0]
