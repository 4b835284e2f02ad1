"""The sentences of the finance view, the same in the terminal and on its page."""

from holdfast import wording
from holdfast.economics.finance.balance import Balance
from holdfast.economics.finance.budget import BudgetLine, RunForecast
from holdfast.economics.finance.ownership import GUESS, MONTHS_PER_YEAR, OwnOrRent, Terms
from holdfast.economics.finance.statement import Finance, IncidentShare, TeamSpend, Transfer
from holdfast.economics.finance.trend import PARTS, Rise, Verdict
from holdfast.economics.finance.wastes import UnknownSpend, Waste
from holdfast.economics.pricing.prices import Priced
from holdfast.economics.pricing.spending import usd_per_hour
from holdfast.ledger.counts import MovedFor
from holdfast.ledger.split import is_partly_known, unknown_matters

NO_TEAM = "no team named"
NO_PROJECT = "no project named"
_PART = {4: "quarter"}[PARTS]
_MOMENT_NS_MAX = 2**63 - 1
"""In the year 2262; later dates are not useful for planning."""

_TRANSFERS: dict[MovedFor, str] = {
    "checkpoints_saved": "Checkpoints saved",
    "checkpoints_loaded": "Checkpoints loaded",
    "dataset": "Data read",
    "cold": "Cold data fetched",
    "egress": "Egress",
}
_RISES: dict[Verdict, str] = {
    "yes": "Spend rises faster than progress",
    "no": "Spend keeps pace with progress",
    "unknown": "Cannot tell whether spend rises faster than progress",
}


def headline(told: Finance) -> str:
    """The answer in one sentence."""
    if not told.spend.gpu_ns:
        return "Nothing is recorded to have been paid for in this time."
    if told.useful_share is None:
        return f"{wording.usd(told.spend.usd)} spent, and nothing recorded says what it brought."
    spent, lost = wording.usd(told.spend.usd), wording.usd(told.waste.usd)
    if _is_of_known(told):
        known = wording.usd(told.known.usd)
        useful = wording.resting(f"{wording.percent(told.useful_share)} was useful", told.basis)
        return f"{spent} spent. Of the {known} that is known, {useful}, {lost} lost."
    useful = wording.resting(f"{wording.percent(told.useful_share)} of it useful", told.basis)
    return f"{spent} spent, {useful}, {lost} lost."


def has_unknown(of: Balance) -> bool:
    """Whether so much of it is not known that a reader must be told."""
    return unknown_matters(of.unknown.gpu_ns, of.spend.gpu_ns)


def _is_of_known(told: Finance) -> bool:
    """Whether its useful share must be called one of what is known."""
    parts = told.useful.gpu_ns, told.waste.gpu_ns, told.unknown.gpu_ns
    return told.accrued.gpu_ns > 0 or is_partly_known(*parts)


def unknown(told: Finance) -> str:
    """The spend that is not known, and the useful share with it; empty if that is next to nothing."""
    if not has_unknown(told) or told.useful_share is None or told.useful_share_bounds is None:
        return ""
    with_it = wording.between(told.useful_share_bounds)
    return (
        f"{wording.usd(told.unknown.usd)} is not known to be useful or lost: with it, {with_it} was useful."
    )


def silence(found: UnknownSpend) -> str:
    """Spend that is not known, its place, and which line would tell."""
    run = wording.run_label(found.run, found.run_name, 60)
    spent = f"{wording.usd(found.amount.usd)}, mostly in {run}: {found.label}"
    return f"{spent}. {found.todo}"


def whole(told: Finance) -> str:
    """The name of the whole that shares refer to."""
    return "what is known" if _is_of_known(told) else "the spend"


def hourly(told: Finance) -> str:
    """The cost of an hour, paid for and useful; empty if neither is known."""
    if told.usd_per_useful_gpu_hour is None or not told.spend.gpu_ns:
        return ""
    useful = wording.usd(told.usd_per_useful_gpu_hour)
    return f"A useful GPU-hour cost {useful}, {hourly_basis(told)}."


def hourly_basis(told: Finance) -> str:
    """The price of an hour of what is known, and with the rest the bounds of what a useful one cost."""
    paid = usd_per_hour(told.known.usd, told.known.gpu_ns)
    at = f"at {wording.usd(paid or 0.0)} paid"
    if not has_unknown(told) or told.usd_per_useful_gpu_hour_bounds is None:
        return at
    least, most = map(wording.usd, told.usd_per_useful_gpu_hour_bounds)
    return f"{at}; with what is not known, {least} to {most}"


def worth(told: Finance) -> str:
    """The value of one more point of useful share."""
    if told.point_usd is None or not told.spend.usd:
        return ""
    of_known = ", of what is known," if has_unknown(told) else ""
    return f"One more point of useful share{of_known} would have brought {wording.usd(told.point_usd)}."


def accrued(told: Finance) -> str:
    """The spend of runs that go on; empty if there is none."""
    if not told.accrued.gpu_ns:
        return ""
    return (
        f"{wording.usd(told.accrued.usd)} of the spend accrued since the last events of runs that go on: "
        "what that brought is not known yet."
    )


def waste(found: Waste) -> str:
    """The waste, its place, what to do about it, and what that would save."""
    bring = "" if found.bring_usd is None else f" Would bring {wording.usd(found.bring_usd)} ({found.basis})."
    run = wording.run_label(found.run, found.run_name, 60)
    lost = f"{found.label}, {wording.usd(found.amount.usd)}, mostly in {run}"
    return f"{lost}. {found.todo}{bring}"


def budget_of(line: BudgetLine) -> str:
    return "all" if line.scope == "all" else f"{line.scope} {line.name}"


def forecast(found: RunForecast) -> str:
    """When a run will be done, and its cost until then."""
    run = wording.run_label(found.run, found.run_name, 60)
    done = f"{run} has {found.steps:,} of {found.planned_steps:,} planned steps"
    if found.steps >= found.planned_steps:
        return f"{done}: it is done."
    if found.end_ns is None or found.to_go_usd is None:
        return f"{done}; it is not running now, so nothing is forecast."
    if found.end_ns > _MOMENT_NS_MAX:
        return f"{done}; at its pace it would take centuries, so nothing is forecast."
    end, more = wording.moment(found.end_ns), wording.usd(found.to_go_usd)
    return f"{done}; at its pace it is done on {end} and costs {more} more."


def goodput_target(told: Finance) -> str:
    """The goodput of all runs against its target."""
    target, known = told.prices.goodput_target, told.known.gpu_ns
    if target is None or not known or told.useful_share is None:
        return ""
    goodput = told.useful.gpu_ns / known
    of_known = " of what is known" if has_unknown(told) else ""
    was = f"Goodput was {wording.percent(goodput)}{of_known}, the target is {wording.percent(target.value)}"
    match told.stands(goodput, target.value):
        case "unknown":
            return f"{was}. Whether it was met is {_either_way(told)}."
        case "below":
            return f"{was}: {100 * (target.value - goodput):.1f} points below."
        case _:
            return f"{was}."


def _either_way(of: Balance) -> str:
    """That a target may have been met or not, with the bounds of the goodput."""
    return f"not known: {wording.between(of.goodput_bounds)}" if of.goodput_bounds else "not known"


def incident(share: IncidentShare) -> str:
    """The incident, its cost, and its name for `holdfast cost`."""
    what = f"{share.what} ({share.subject})" if share.subject else share.what
    whose = f", {wording.short(share.run_name)}" if share.run_name not in ("", share.run) else ""
    return f"{wording.short(what)}, {wording.usd(share.usd)} ({share.run}/{share.name}{whose})"


def team(spend: TeamSpend) -> str:
    return spend.team or NO_TEAM


def standing(spend: TeamSpend) -> str:
    """How a team stands against its target."""
    if spend.standing == "below" and spend.target is not None and spend.utilisation is not None:
        of_known = ", of what is known" if has_unknown(spend) else ""
        return f"{100 * (spend.target - spend.utilisation):.1f} points below{of_known}"
    return {"no target": wording.UNKNOWN, "unknown": _either_way(spend)}.get(spend.standing, spend.standing)


def left_out(told: Finance) -> str:
    """What the comparison of spend with progress leaves out; empty if that is next to nothing."""
    if not has_unknown(told):
        return ""
    return f"Left out: {wording.usd(told.unknown.usd)} of which it is not known what it brought."


def verdict(found: Rise) -> str:
    """Whether spend rises faster than progress."""
    return _RISES[found.verdict]


def rise(found: Rise) -> str:
    if found.latest is None or found.best is None:
        return f"{wording.opening(found.reason)}."
    best = wording.usd(found.best.usd_per_useful_gpu_hour or 0.0)
    if found.ratio is None or found.ratio_low is None or found.latest.usd_per_useful_gpu_hour is None:
        reason = wording.opening(found.reason)
        return f"{reason}; in the best {_PART} before, a useful GPU-hour cost {best}."
    latest = wording.usd(found.latest.usd_per_useful_gpu_hour)
    change = _change(found.ratio)
    if found.ratio > 1 + found.rise_min:
        change += f", and at least {_change(found.ratio_low)} with {100 * found.confidence:.0f} % confidence"
    compared = f"{latest} in the latest {_PART} of the spend, {best} in the best one before: {change}"
    return (
        f"A useful GPU-hour cost {compared}. From {100 * found.rise_min:.0f} % more on it is called a rise."
    )


def _change(ratio: float) -> str:
    percent = 100 * (ratio - 1)
    return f"{abs(percent):.1f} % {'less' if percent < -0.05 else 'more'}"


def transfer(moved: Transfer) -> str:
    return _TRANSFERS[moved.what]


def transfer_size(moved: Transfer) -> str:
    if not moved.sized:
        return "size not recorded"
    more = "" if moved.sized == moved.times else f" in {moved.sized:,} of {moved.times:,}"
    return wording.size(moved.size_bytes) + more


def transfer_usd(moved: Transfer) -> str:
    if moved.usd is None:
        return wording.UNKNOWN
    return wording.usd(moved.usd) + (" assumed" if moved.assumed else "")


def choice(found: OwnOrRent) -> str:
    """Own or rent, in one sentence."""
    own, rent = (
        wording.usd(found.own_usd_per_useful_gpu_hour),
        wording.usd(found.rent_usd_per_useful_gpu_hour),
    )
    used = f"at {wording.percent(found.terms.utilisation.value)} utilisation"
    if found.cheaper == "own":
        return f"Owning is cheaper: {own} for a useful GPU-hour, rented {rent}, {used}."
    return f"Renting is cheaper: {rent} for a useful GPU-hour, owned {own}, {used}."


def break_even(found: OwnOrRent) -> str:
    """The utilisation above which owning pays."""
    if found.break_even_utilisation > 1:
        return "Owning does not pay at any utilisation."
    pays = f"Owning pays above {wording.percent(found.break_even_utilisation)} utilisation"
    if found.cheaper == "own":
        goodput = wording.percent(found.break_even_goodput)
        rented = wording.percent(found.terms.rent_goodput.value)
        pays += f", as long as goodput there stays above {goodput} (rented: {rented})"
    months = found.break_even_months
    if months is None:
        return f"{pays}; as it is, the machines never pay for themselves."
    life = found.terms.amortisation_years.value * MONTHS_PER_YEAR
    late = ", beyond their life" if months > life else ""
    return f"{pays}; the machines pay for themselves in {months:,.0f} months{late}."


def guesses(found: OwnOrRent) -> str:
    """The terms that are guesses."""
    names = [key for key in Terms.__struct_fields__ if GUESS in getattr(found.terms, key).source]
    if not names:
        return "All of its terms were given or have a source."
    guesses = ", ".join(f"{key} = {wording.plain(getattr(found.terms, key).value)}" for key in names)
    return f"It rests on guesses: {guesses}."


def point(found: OwnOrRent) -> str:
    """The value of one point of goodput."""
    own, rent = (
        wording.usd(found.point_own_usd_per_gpu_year),
        wording.usd(found.point_rent_usd_per_gpu_year),
    )
    return f"One point of goodput is worth {rent} a year for a rented GPU, {own} for an owned one."


def assumptions(told: Finance) -> list[tuple[str, Priced]]:
    """Every assumed number, with its name: first those of the spend, then those of owning."""
    found: dict[str, Priced] = {}
    for run in told.runs:
        price = run.usd_per_gpu_hour
        if price.assumed:
            found.setdefault(f"usd_per_gpu_hour = {wording.plain(price.value)}", price)
    if any(moved.assumed for moved in told.data.transfers):
        egress = told.prices.egress_usd_per_gb
        found[f"egress_usd_per_gb = {wording.plain(egress.value)}"] = egress
    if told.own_or_rent is None:
        return list(found.items())
    terms = told.own_or_rent.terms
    for key in Terms.__struct_fields__:
        term: Priced = getattr(terms, key)
        if term.assumed and term not in found.values():
            found[f"{key} = {wording.plain(term.value)}"] = term
    return list(found.items())
