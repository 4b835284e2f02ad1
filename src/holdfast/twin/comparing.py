"""Compare several policies under the same failures of a published cluster."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.economics.pricing.prices import Prices
from holdfast.record.untrusted import printable
from holdfast.twin.policies import Policy, policies, policy
from holdfast.twin.presets import Preset, hazards_from, preset, resized
from holdfast.twin.study import Study
from holdfast.twin.sweep import Comparison, Figures, Task, expected_interruptions, summarise
from holdfast.wording.units import DAY_NS

DEFAULT_POLICIES = ("restart", "holdfast")


class SimulationAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster, the policies, and how many runs to simulate from which seed.

    policies  by name; `all` means every policy
    gpus      resizes the cluster
    rates     the user's own failures, as `holdfast plan fit --json` writes them
    crews     machines repaired at a time; None: all
    """

    preset: str
    policies: tuple[str, ...] = ()
    gpus: int | None = None
    days: float | None = None
    seed: int = 1
    runs: int = 1
    spares: int | None = None
    crews: int | None = None
    rates: Path | None = None


def compare(
    asked: SimulationAsked, prices: Prices, command: str, sweep: Callable[[list[Task]], list[Figures]]
) -> Comparison:
    """Simulate all policies. command: repeats the same runs. sweep: simulates all tasks, in order."""
    chosen = preset(asked.preset)
    if asked.gpus not in (None, chosen.job.gpus):
        chosen = resized(chosen, asked.gpus or 0)
    own = f"failures: {printable(str(asked.rates))}; the rest: " if asked.rates else ""
    price = prices.planned(chosen.job.chip)
    days = chosen.duration_days if asked.days is None else asked.days
    study = _study(asked, chosen, days, price.value)
    played = _policies(asked, chosen)
    figures = sweep(
        [
            Task(study=study, policy=one, seed=asked.seed + number)
            for one in played
            for number in range(asked.runs)
        ]
    )
    groups = [figures[at : at + asked.runs] for at in range(0, len(figures), asked.runs)]
    return Comparison(
        preset=chosen.title,
        source=f"{own}{chosen.source}",
        command=command,
        gpus=chosen.job.gpus,
        preset_gpus=preset(asked.preset).job.gpus,
        days=days,
        preset_days=chosen.duration_days,
        expected_interruptions=expected_interruptions(study),
        # A resized preset has no published figures.
        reported=chosen.published if days == chosen.duration_days and asked.rates is None else (),
        seed=asked.seed,
        runs=asked.runs,
        usd_per_gpu_hour=price.value,
        price_source=price.source,
        is_exact=all(one.is_exact for one in figures),
        policies=tuple(summarise(*one, groups[0]) for one in zip(played, groups, strict=True)),
    )


def _study(asked: SimulationAsked, chosen: Preset, days: float, usd_per_gpu_hour: float) -> Study:
    return Study(
        name=chosen.name,
        job=chosen.job,
        layout=chosen.layout,
        hazards=chosen.hazards if asked.rates is None else hazards_from(asked.rates.read_bytes()),
        duration_ns=round(days * DAY_NS),
        usd_per_gpu_hour=usd_per_gpu_hour,
        crews=asked.crews,
    )


def _policies(asked: SimulationAsked, chosen: Preset) -> list[Policy]:
    """The named policies without duplicates. All have the same spares, unless a policy needs its own."""
    gpus = chosen.job.gpus
    spares = chosen.practice.spare_nodes if asked.spares is None else asked.spares
    wanted = asked.policies or DEFAULT_POLICIES
    everything = [one.name for one in policies(gpus, spares)]
    chosen_names = [name for one in wanted for name in (everything if one == "all" else [one])]
    own = chosen.practice
    if asked.spares is not None:
        own = msgspec.structs.replace(own, spare_nodes=asked.spares)
    return [own if name == own.name else policy(name, gpus, spares) for name in dict.fromkeys(chosen_names)]
