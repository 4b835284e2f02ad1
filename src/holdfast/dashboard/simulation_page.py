"""The simulation page: the same failures under several policies, in one HTML file that needs nothing else.

For whoever decides what is done about failures: first what the best policy is worth against the first one,
then how sure that is, where the lost GPU-hours go, every figure, and what all of it rests on. The style is
that of a run's page. The numbers are those of `twin.sweep`; only what was to be expected, and the command
that plays it again, are worked out here from the preset.
"""

import shlex
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.resources import files

import msgspec
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup
from scipy import stats

from holdfast import __version__
from holdfast.dashboard import charts, simulation_charts, wording
from holdfast.economics.prices import GIVEN
from holdfast.ledger.categories import Category
from holdfast.twin.policies import policies
from holdfast.twin.presets import Figure, Preset, names, preset, resized
from holdfast.twin.sweep import QUANTILES, Comparison, Spread, Summary

DAY_HOURS = 24
LOSSES_NAMED_MAX = 3
"""How many of a policy's losses stand in words under its bar."""
LOSS_SHARE_NAMED_MIN = 0.05
"""What is less of a policy's loss than this is not named there; the table has it."""

_LOSSES = tuple(category for category in Category if category != Category.USEFUL)


class _Bar(msgspec.Struct, frozen=True, kw_only=True):
    """Where the losses of a policy go, the mean of its runs. share: of all that was paid for."""

    policy: Summary
    lost_gpu_hours: float
    share: float
    largest: str
    drawn: Markup


class _Figure(msgspec.Struct, frozen=True):
    """A field of a summary, what it is called and means, and its unit; a count has none."""

    field: str
    label: str
    meaning: str
    unit: str = ""


_FIGURES = (
    _Figure("effective_time", "Effective time", "of the time in the run", "%"),
    _Figure("goodput", "Useful", "of what was paid for", "%"),
    _Figure("paid_gpu_hours", "Paid", "the job’s nodes and the spares", "GPU-hours"),
    _Figure("lost_gpu_hours", "Lost", "paid for and not useful", "GPU-hours"),
    _Figure("cost_usd", "Lost", "what these GPU-hours cost", "USD"),
    _Figure("saved_gpu_hours", "Saved", "against the first policy", "GPU-hours"),
    _Figure("saved_usd", "Saved", "against the first policy", "USD"),
    _Figure("interruptions", "Interruptions", "failures that stopped the run"),
    _Figure("planned", "Planned stops", "maintenance and the like"),
    _Figure("restarts", "Restarts", "of the whole job"),
    _Figure("steps", "Steps", "done and kept"),
)
_LARGE = ((1e9, "billion"), (1e6, "million"))


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of every policy."""

    label: str
    meaning: str
    words: Callable[[float], str]
    cells: Sequence[tuple[Summary, Spread]]


class _Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What the preset tells of the simulated cluster.

    expected     interruptions at the preset's rates
    reported_*   by its owners; None where they do not say, or where it is not their cluster and their time
    spare_nodes  by policy
    command      plays the same runs again
    """

    preset: Preset
    expected: Spread
    reported_interruptions: Figure | None
    reported_effective_time: Figure | None
    spare_nodes: dict[str, int]
    command: str


def render(compared: Comparison) -> str:
    """The whole page."""
    best, origin = _best(compared), _origin(compared)
    interruptions = [one.interruptions for one in compared.policies]
    paid_gpu_hours = max(one.paid_gpu_hours.p90 for one in compared.policies)
    return _template().render(
        version=__version__,
        compared=compared,
        origin=origin,
        first=compared.policies[0],
        best=best,
        alike=[one for one in compared.policies if one.policy != best.policy and _is_alike(one, best)],
        saved_gpus=best.saved_gpu_hours.p50 / (DAY_HOURS * compared.days),
        is_price_assumed=compared.price_source != GIVEN,
        amounts=wording.Amounts(round(paid_gpu_hours * wording.HOUR_NS)),
        effective=simulation_charts.axis_of_shares([one.effective_time for one in compared.policies]),
        interrupted=simulation_charts.axis_of_counts(
            [*interruptions, origin.expected] if origin else interruptions
        ),
        bars=_bars(compared),
        rows=_rows(compared),
        lost=[c for c in _LOSSES if any(one.partition_gpu_hours[c.key] for one in compared.policies)],
        inexact=[one.policy for one in compared.policies if not one.is_exact],
    )


def _best(compared: Comparison) -> Summary:
    """Which loses the least: the first, unless another saves something; of others that are alike the last,
    as they are named from the plainest on.
    """
    best = max(reversed(compared.policies), key=lambda one: one.saved_gpu_hours.p50)
    return best if best.saved_gpu_hours.p50 > 0 else compared.policies[0]


def _is_alike(one: Summary, other: Summary) -> bool:
    return one.saved_gpu_hours == other.saved_gpu_hours


# -- where the losses go ---------------------------------------------------------------------------------


def _bars(compared: Comparison) -> list[_Bar]:
    whole = max(_lost_gpu_hours(one) for one in compared.policies)
    return [_bar(one, whole) for one in compared.policies]


def _bar(policy: Summary, whole_gpu_hours: float) -> _Bar:
    lost = _lost_gpu_hours(policy)
    parts = {category.key: _gpu_ns(policy.partition_gpu_hours[category.key]) for category in _LOSSES}
    return _Bar(
        policy=policy,
        lost_gpu_hours=lost,
        share=lost / (sum(policy.partition_gpu_hours.values()) or 1.0),
        largest=_largest(policy, lost),
        drawn=charts.strip(parts, _gpu_ns(whole_gpu_hours)),
    )


def _largest(policy: Summary, lost_gpu_hours: float) -> str:
    """`starting 37.1 %, recomputed 33.9 %`: what most of the loss goes to."""
    losses = sorted(_LOSSES, key=lambda category: -policy.partition_gpu_hours[category.key])
    shares = [(c.label, policy.partition_gpu_hours[c.key] / (lost_gpu_hours or 1.0)) for c in losses]
    named = [(label, share) for label, share in shares if share >= LOSS_SHARE_NAMED_MIN]
    return ", ".join(f"{label} {wording.percent(share)}" for label, share in named[:LOSSES_NAMED_MAX])


def _lost_gpu_hours(policy: Summary) -> float:
    return sum(policy.partition_gpu_hours[category.key] for category in _LOSSES)


def _gpu_ns(gpu_hours: float) -> int:
    return round(gpu_hours * wording.HOUR_NS)


# -- all figures -----------------------------------------------------------------------------------------


def _rows(compared: Comparison) -> list[_Row]:
    return [_row(figure, compared.policies) for figure in _FIGURES]


def _row(figure: _Figure, summaries: Sequence[Summary]) -> _Row:
    """All in one unit, that of the largest, so that they can be compared at a glance."""
    cells = [(one, getattr(one, figure.field)) for one in summaries]
    unit, words = _written(figure.unit, max(abs(end) for _, one in cells for end in (one.p10, one.p90)))
    return _Row(
        label=f"{figure.label}, {unit}" if unit else figure.label,
        meaning=figure.meaning,
        words=words,
        cells=cells,
    )


def _written(unit: str, largest: float) -> tuple[str, Callable[[float], str]]:
    """The unit in which amounts up to this one are written, and how."""
    if not unit:
        return "", _whole
    if unit == "%":
        return unit, _points
    for size, word in _LARGE:
        if largest >= size:
            return f"{word} {unit}", partial(_in_units, size=size)
    return unit, _signed


# -- what it rests on ------------------------------------------------------------------------------------


def _origin(compared: Comparison) -> _Origin | None:
    """None where no preset has this title."""
    found = next((one for one in map(preset, names()) if one.title == compared.preset), None)
    if found is None:
        return None
    played = found if found.job.gpus == compared.gpus else resized(found, compared.gpus)
    is_theirs = found.job.gpus == compared.gpus and found.duration_days == compared.days
    reported = {figure.name: figure for figure in found.published} if is_theirs else {}
    spare_nodes = {one.policy: _spare_nodes(one, compared, found) for one in compared.policies}
    return _Origin(
        preset=found,
        expected=_expected_interruptions(played, compared.days),
        reported_interruptions=reported.get("interruptions_unexpected"),
        reported_effective_time=reported.get("effective_time"),
        spare_nodes=spare_nodes,
        command=_command(compared, found, min(spare_nodes.values())),
    )


def _expected_interruptions(played: Preset, days: float) -> Spread:
    """By the preset's rates: a Poisson count. A gray failure slows the run and does not interrupt it."""
    hazards = played.hazards.unplanned()
    duration_ns = round(days * DAY_HOURS * wording.HOUR_NS)
    mean = sum(
        hazards.expected(row, played.layout.nodes, duration_ns)
        for row in hazards.classes
        if row.kind != "gray"
    )
    low, _, high = (float(stats.poisson.ppf(quantile / 100, mean)) for quantile in QUANTILES)
    return Spread(p10=low, p50=mean, p90=high)


def _spare_nodes(policy: Summary, compared: Comparison, found: Preset) -> int:
    """What was paid for beyond the job's own GPUs: every node that is held is paid for all the time."""
    held_gpus = policy.paid_gpu_hours.p50 / (DAY_HOURS * compared.days)
    return round((held_gpus - compared.gpus) / found.layout.gpus_per_node)


def _command(compared: Comparison, found: Preset, spare_nodes: int) -> str:
    """What differs from the preset is said. Rates and prices of one's own are files, which nobody names."""
    words = ["holdfast", "simulate", "--preset", found.name]
    played = [one.policy for one in compared.policies]
    everything = [one.name for one in policies(compared.gpus, spare_nodes)]
    for policy in ["all"] if played == everything else played:
        words += ["--policy", policy]
    if compared.gpus != found.job.gpus:
        words += ["--gpus", str(compared.gpus)]
    if compared.days != found.duration_days:
        words += ["--days", repr(float(compared.days)).removesuffix(".0")]
    if spare_nodes != found.practice.spare_nodes:
        words += ["--spares", str(spare_nodes)]
    return shlex.join([*words, "--seed", str(compared.seed), "--runs", str(compared.runs)])


# -- wording ---------------------------------------------------------------------------------------------


def _whole(value: float) -> str:
    """A count; the middle of an even number of runs may lie between two."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"


def _signed(value: float) -> str:
    return ("−" if value < 0 else "") + wording.rough(abs(value))


def _reach(spread: Spread, words: Callable[[float], str] = _signed) -> str:
    """`1.33 to 1.48 million`: from P10 to P90, with what both have in common said once."""
    low, high = words(spread.p10), words(spread.p90)
    if low == high:
        return high
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low} to {high}"


def _points(share: float) -> str:
    return wording.percent(share).removesuffix(" %")


def _in_units(value: float, size: float) -> str:
    """An amount in units of this size, which is said elsewhere; what is not zero is not written as zero."""
    written = f"{abs(value) / size:,.2f}"
    if written == "0.00":
        return "≈ 0" if value else "0"
    return f"−{written}" if value < 0 else written


@cache
def _template() -> Template:
    package = files(__package__)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        css_class=charts.css_class,
        gpu_ns=_gpu_ns,
        opening=wording.opening,
        percent=wording.percent,
        reach=_reach,
        scale=simulation_charts.scale,
        short=wording.short,
        signed=_signed,
        usd=wording.usd,
        whole=_whole,
    )
    environment.globals.update(
        many=wording.many,
        percent=wording.percent,
        signed=_signed,
        whole=_whole,
        whisker=simulation_charts.whisker,
        style=Markup("").join(
            Markup(package.joinpath(name).read_text(encoding="utf-8"))
            for name in ("page.css", "simulation.css")
        ),
    )
    return environment.from_string(package.joinpath("simulation.html").read_text(encoding="utf-8"))
