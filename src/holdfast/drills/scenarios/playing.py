"""`play`: a scenario with its details drawn from a seed, simulated, and its truth kept apart."""

import tomllib
import zlib
from importlib.resources import files

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast import wording
from holdfast.drills.levers import Levers
from holdfast.drills.scenarios.decoys import DECOYS
from holdfast.drills.scenarios.facilities import FACILITIES
from holdfast.drills.scenarios.hosts import HOSTS
from holdfast.drills.scenarios.network import NETWORK
from holdfast.drills.scenarios.software import SOFTWARE
from holdfast.drills.scenarios.stage import Plot, Scenario, Stage, members
from holdfast.drills.scenarios.storages import STORAGES
from holdfast.drills.scenarios.truth import Surface, TrueCause, Truth
from holdfast.drills.telemetry import Dirt, Telemetry
from holdfast.drills.training import STEP_S
from holdfast.drills.world import Lived, Script, cast, live
from holdfast.record.errors import InputError, nearest
from holdfast.record.events import KnownEvent
from holdfast.twin.cluster import Layout
from holdfast.wording.units import SECOND_NS

_TOLD = tomllib.loads((files(__package__) / "scenarios.toml").read_text(encoding="utf-8"))

SCENARIOS = {
    name: msgspec.convert({**_TOLD[name], "name": name, "draw": draw}, Scenario)
    for name, draw in (FACILITIES | NETWORK | HOSTS | STORAGES | SOFTWARE | DECOYS).items()
}


def find(name: str) -> Scenario:
    """The scenario of this name; raises `InputError` with the nearest name if there is none."""
    if name in SCENARIOS:
        return SCENARIOS[name]
    hint = nearest(name, SCENARIOS, f"There are: {', '.join(SCENARIOS)}.")
    raise InputError(f"There is no scenario {name!r}.", hint=hint)


START_NS = 1_772_442_000 * SECOND_NS
"""2 March 2026, 09:00 UTC: a Monday morning."""
DURATION_S = 1_800.0
SCRAPE_S = 10.0
SEEN_S_MIN = 0.03 * STEP_S
"""A step or a stall that is longer by this much is visible."""
DURATION_S_MIN, DURATION_S_MAX = 900.0, 86_400.0
SCRAPE_S_MIN, SCRAPE_S_MAX = 1.0, 60.0
TABLETOP = Layout(gpus=512, racks_per_loop=4, nodes_per_leaf=8, nodes_per_mount=32)
"""Small enough to look at, large enough for four cooling loops, eight leaves and two mounts."""


class Played(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A scenario that was played. An operator can have everything but `scenario` and `truth`."""

    scenario: Scenario
    seed: int
    layout: Layout
    run: str
    healthy_step_s: float
    events: tuple[KnownEvent, ...]
    telemetry: Telemetry
    truth: Truth


def play(
    name: str,
    seed: int,
    *,
    layout: Layout = TABLETOP,
    duration_s: float = DURATION_S,
    scrape_s: float = SCRAPE_S,
    dirt: Dirt = Dirt(),  # noqa: B008  frozen
) -> Played:
    """Play a scenario. The same arguments give the same bytes; another seed another place, time and size."""
    scenario = find(name)
    times_ns = _times(duration_s, scrape_s)
    casting = cast(layout, with_pools=scenario.with_pools)
    # The run's name must not give the scenario away, and two plays must not share events' ids.
    run = f"drill-{zlib.crc32(f'{name} {seed} {layout} {duration_s} {scrape_s}'.encode()):08x}"
    story_rng, world_rng = np.random.default_rng([seed, zlib.crc32(name.encode())]).spawn(2)
    stage = Stage(casting, run, times_ns, story_rng)
    plot = scenario.draw(stage)
    script = Script(
        run=run,
        levers=Levers(layout, len(times_ns), plot.turned),
        times_ns=times_ns,
        start_ns=START_NS,
        scrape_s=scrape_s,
        loss=plot.loss,
        xids=plot.xids,
        decisions=plot.decisions,
    )
    lived = live(casting, script, world_rng)
    return Played(
        scenario=scenario,
        seed=seed,
        layout=layout,
        run=run,
        healthy_step_s=lived.healthy_step_s,
        events=lived.events,
        telemetry=Telemetry(lived.history, dirt),
        truth=_truth(scenario, seed, stage, plot, lived),
    )


def _times(duration_s: float, scrape_s: float) -> NDArray[np.int64]:
    if not DURATION_S_MIN <= duration_s <= DURATION_S_MAX:
        raise InputError(
            f"A scenario cannot last {wording.number(duration_s)} s.",
            hint=f"Give between {DURATION_S_MIN:g} and {DURATION_S_MAX:g} s.",
        )
    if not SCRAPE_S_MIN <= scrape_s <= SCRAPE_S_MAX:
        raise InputError(
            f"Metrics cannot be scraped every {wording.number(scrape_s)} s.",
            hint=f"Give between {SCRAPE_S_MIN:g} and {SCRAPE_S_MAX:g} s.",
        )
    count = int(duration_s // scrape_s)
    return START_NS + np.arange(1, count + 1, dtype=np.int64) * round(scrape_s * SECOND_NS)


def _truth(scenario: Scenario, seed: int, stage: Stage, plot: Plot, lived: Lived) -> Truth:
    end_ns = stage.ended_ns or int(lived.history.times_ns[-1])
    lasted_s = (end_ns - stage.began_ns) / SECOND_NS
    # A loss that goes on beyond the end counts with its share.
    within_s = sum(
        lost.lost_s * (min(lost.to_ns, end_ns) - lost.from_ns) / (lost.to_ns - lost.from_ns)
        for lost in lived.lost
        if lost.from_ns < end_ns
    )
    return Truth(
        scenario=scenario.name,
        seed=seed,
        is_incident=scenario.is_incident,
        cause=TrueCause(
            subject=plot.subject,
            domain=scenario.domain,
            mechanism=scenario.mechanism,
            owner=scenario.owner,
        ),
        began_ns=stage.began_ns,
        ended_ns=stage.ended_ns,
        seam=scenario.seam,
        surface=Surface(
            what=scenario.what,
            domain=scenario.surfaces_in,
            trace=plot.surface,
            at_ns=next((lost.from_ns for lost in lived.lost if lost.lost_s > SEEN_S_MIN), None),
        ),
        traces=plot.traces,
        affected=members(plot.affected),
        slowdown=lasted_s / (lasted_s - within_s),
        lost_s=sum(lost.lost_s for lost in lived.lost),
        loss=scenario.loss,
        decides=scenario.decides,
    )
