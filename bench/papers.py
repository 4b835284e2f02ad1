"""Marks diagnoses: plays scenarios with known truth, and compares the reports with it."""

from collections.abc import Iterator

import msgspec

from holdfast.diagnose.assess import WINDOW_S, Circumstances, Inquiry, assess
from holdfast.diagnose.incident import Incident
from holdfast.drills.scenarios import SCENARIOS, Played, play
from holdfast.drills.telemetry import Dirt, Replay
from holdfast.drills.wiring import topology_of
from holdfast.drills.world import cast
from holdfast.signals.catalogue import CATALOGUE
from holdfast.topology.graph import Topology
from holdfast.twin.cluster import Layout

MECHANISM_OF = {one.name: one.found_as for one in SCENARIOS.values() if one.is_incident}
"""The mechanism of a right diagnosis for each scenario."""
CONNECTOR = tuple(name for name, metric in CATALOGUE.items() if metric.scope == "connector")
EARLY_S = 60.0
"""An incident that is reported to have begun this long before the truth is another one."""
LOOK_S = 300.0
"""How often a quiet cluster is examined: alarms that come and go between two looks show at the second."""
PATIENT_S = 600.0
"""An incident not noticed within this time counts as not noticed in time; the final report is still
judged."""


HIDEABLE: dict[str, tuple[str, ...]] = {
    "facilities": ("densewatch_", "redfish_", *CONNECTOR),
    "switches": ("infiniband_switch_",),
    "violations": ("DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_POWER_VIOLATION", "DCGM_EXP_"),
    "mountstats": ("node_mountstats_", "node_nfs_"),
    "pressure": ("node_pressure_",),
    "pools": ("vllm:", "dynamo_", "holdfast_pool_"),
}
"""Metrics that another team may not share, or that an exporter has off by default, by the beginning of their
names."""


class Paper(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario to diagnose. without: metrics that monitoring lacks. dirt: a multiple of the usual
    flaws."""

    scenario: str
    seed: int
    gpus: int
    duration_s: float = WINDOW_S
    without: tuple[str, ...] = ()
    dirt: float = 1.0


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """How it went.

    said          mechanism and subject of everything that was reported in the end
    right         of those, how many were the truth; named: the truth was among them
    domain_right, owner_right   of the first of them
    detect_s      from the beginning until anything was reported about it; None: nothing was within the time
    name_s        until the right cause was the first that was reported
    false_alarms  reported where nothing was wrong: before it began, or all of it where nothing ever was
    quiet_s       time in which nothing was wrong
    """

    paper: Paper
    is_incident: bool
    said: tuple[tuple[str, str], ...]
    right: int
    named: bool
    domain_right: bool
    owner_right: bool
    detect_s: float | None
    name_s: float | None
    false_alarms: int
    quiet_s: float


def examine(paper: Paper) -> Marks:
    """Play it, look at it as monitoring would have, scrape by scrape, and compare with the truth."""
    played = play(
        paper.scenario,
        paper.seed,
        layout=Layout(gpus=paper.gpus),
        duration_s=paper.duration_s,
        dirt=_dirt(paper.dirt),
    )
    return _Examiner(played, paper).marks()


def _dirt(times: float) -> Dirt:
    usual = msgspec.structs.asdict(Dirt())
    return Dirt(**{name: min(1.0, times * share) for name, share in usual.items()})


class _Examiner:
    def __init__(self, played: Played, paper: Paper) -> None:
        self.played, self.paper, self.truth = played, paper, played.truth
        casting = cast(played.layout, with_pools=played.scenario.with_pools)
        self.topology: Topology = topology_of(casting, played.run)
        hidden = tuple(prefix for family in paper.without for prefix in HIDEABLE[family])
        self.source = Replay(played.telemetry, hidden)
        steps = self.source.frame("holdfast_run_step_seconds", (0, 2**62))
        assert steps is not None
        self.times_ns: list[int] = steps.times_ns.tolist()

    def marks(self) -> Marks:
        truth = self.truth
        if not truth.is_incident:
            return self._quiet()
        began_ns, end_ns = truth.began_ns, self.times_ns[-1]
        detect_s, name_s = self._first_seen()
        said = self._at(end_ns)
        mine = [incident for incident in said if not self._is_early(incident)]
        right = sum(map(self._is_right, said))
        return Marks(
            paper=self.paper,
            is_incident=True,
            said=_named(said),
            right=min(right, 1),
            named=right > 0,
            domain_right=bool(mine) and mine[0].domain == truth.cause.domain,
            owner_right=bool(mine) and mine[0].owner == truth.cause.owner,
            detect_s=detect_s,
            name_s=name_s,
            false_alarms=len(self._at(began_ns)),
            quiet_s=(began_ns - self.times_ns[0]) / 1e9,
        )

    def _quiet(self) -> Marks:
        """Nothing is wrong: every report at any look is a false alarm, once for each half hour."""
        alarms: set[tuple[str, str, int]] = set()
        first_ns, end_ns = self.times_ns[0], self.times_ns[-1]
        said: tuple[Incident, ...] = ()
        for now_ns in _every(first_ns, end_ns, LOOK_S):
            said = self._at(now_ns)
            alarms |= {
                (one.cause.mechanism, one.cause.subject, round(one.began_ns / (WINDOW_S * 1e9)))
                for one in said
            }
        return Marks(
            paper=self.paper,
            is_incident=False,
            said=tuple(sorted({(mechanism, subject) for mechanism, subject, _ in alarms})),
            right=0,
            named=False,
            domain_right=not alarms,
            owner_right=not alarms,
            detect_s=None,
            name_s=None,
            false_alarms=len(alarms),
            quiet_s=(end_ns - first_ns) / 1e9,
        )

    def _first_seen(self) -> tuple[float | None, float | None]:
        detect_s: float | None = None
        for now_ns in self.times_ns:
            since_s = (now_ns - self.truth.began_ns) / 1e9
            if since_s <= 0:
                continue
            if since_s > PATIENT_S:
                break
            said = [one for one in self._at(now_ns) if not self._is_early(one)]
            if said and detect_s is None:
                detect_s = since_s
            if said and self._is_right(said[0]):
                return detect_s, since_s
        return detect_s, None

    def _at(self, now_ns: int) -> tuple[Incident, ...]:
        known = Circumstances(events=self.played.events)
        return assess(self.source, self.topology, Inquiry(now_ns=now_ns), known).incidents

    def _is_early(self, incident: Incident) -> bool:
        return incident.began_ns < self.truth.began_ns - EARLY_S * 1e9

    def _is_right(self, incident: Incident) -> bool:
        truth = self.truth.cause
        if self._is_early(incident) or incident.cause.mechanism != MECHANISM_OF[self.paper.scenario]:
            return False
        return truth.subject not in self.topology or incident.cause.subject == truth.subject


def _named(incidents: tuple[Incident, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((incident.cause.mechanism, incident.cause.subject) for incident in incidents)


def _every(first_ns: int, end_ns: int, step_s: float) -> Iterator[int]:
    now_ns = first_ns + round(step_s * 1e9)
    while now_ns < end_ns:
        yield now_ns
        now_ns += round(step_s * 1e9)
    yield end_ns
