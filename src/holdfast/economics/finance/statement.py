"""What `holdfast finance` states, as data: spend and what came of it, by whatever it is divided.

The field names are the keys of `holdfast finance --json`; GPU-time is GPU-nanoseconds, times are
nanoseconds, amounts are USD, shares are between 0 and 1, and None means that nothing recorded tells.
"""

from typing import Literal

import msgspec

from holdfast.economics.finance.budget import BudgetLine, RunForecast
from holdfast.economics.finance.invoice import Invoice
from holdfast.economics.finance.ownership import OwnOrRent
from holdfast.economics.finance.trend import Trend
from holdfast.economics.finance.wastes import Waste
from holdfast.economics.pricing.prices import Priced, Prices
from holdfast.economics.pricing.spending import Amount
from holdfast.ledger.counts import MovedFor

Standing = Literal["below", "met", "no target", "unknown"]


class IncidentShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one incident cost under one cause. name: as `holdfast cost RUN/NAME` takes it."""

    run: str
    name: str
    what: str
    subject: str
    began_ns: int
    gpu_ns: int
    usd: float


class CauseSpend(msgspec.Struct, frozen=True, kw_only=True):
    """What went to one cause. incidents: the costliest; incidents_gpu_ns: what all of them explain of it."""

    key: str
    label: str
    meaning: str
    gpu_ns: int
    usd: float
    share: float | None
    incidents: tuple[IncidentShare, ...]
    incidents_count: int
    incidents_gpu_ns: int
    basis: str = ""


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent, and what came of it: useful, waste and accrued sum to spend.

    accrued: of runs that go on, since their last event: what came of it is not known yet. useful_share: of
    the money that was not accrued. basis: what useful and waste rest on, where that is an estimate.
    """

    spend: Amount
    useful: Amount
    waste: Amount
    accrued: Amount
    useful_share: float | None
    usd_per_useful_gpu_hour: float | None
    basis: str = ""


class MonthSpend(Balance, frozen=True, kw_only=True):
    """A month's part of the window.

    goodput: useful of all GPU-time that is accounted for. forecast_usd: at the end of the month, of the one
    that is not over.
    """

    month: str
    from_ns: int
    to_ns: int
    goodput: float | None
    budget_usd: float | None
    forecast_usd: float | None


class RunSpend(Balance, frozen=True, kw_only=True):
    """One run. steps: those it has, that it was seen to do in the window."""

    run: str
    name: str
    team: str
    project: str
    gpus: int
    first_ns: int
    last_ns: int
    usd_per_gpu_hour: Priced
    causes: dict[str, Amount]
    steps: int


class TeamSpend(Balance, frozen=True, kw_only=True):
    """One team's runs against its target.

    utilisation: the useful share of its GPU-time, which is what a target is about. short: what more should
    have been useful to meet it.
    """

    team: str
    runs: int
    utilisation: float | None
    target: float | None
    standing: Standing
    short: Amount | None


class ProjectSpend(Balance, frozen=True, kw_only=True):
    """One project's runs; empty: those that name none."""

    project: str
    runs: int


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """What was tried again, and what that cost; part of the waste above, not on top of it.

    fruitless_launches  launches that nothing was recorded of before the next one
    starting_again      getting back to where the run was: waiting, starting, recovering after an incident
    done_again          work that incidents lost, and its being done again
    """

    restarts: int
    fruitless_launches: int
    starting_again: Amount
    done_again: Amount
    share: float | None


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes moved to one end. sized: how many of the times the size was recorded.

    usd: what was charged, as recorded or by the price; None where neither is known. assumed: by a price that
    is assumed. A charge comes on top of the spend above.
    """

    what: MovedFor
    times: int
    sized: int
    size_bytes: int
    usd: float | None
    assumed: bool


class DataMovement(msgspec.Struct, frozen=True, kw_only=True):
    """What was moved. stall: GPU-time that stood still for it, which is part of the waste above."""

    transfers: tuple[Transfer, ...]
    charged_usd: float
    stall: Amount


class Finance(Balance, frozen=True, kw_only=True):
    """Everything, for the person who answers for the budget.

    point_usd: what one more point of useful share would have brought, at what a useful GPU-hour costs.
    own_or_rent: None unless it was asked for.
    """

    first_ns: int
    last_ns: int
    window: tuple[int | None, int | None]
    now_ns: int
    point_usd: float | None
    causes: tuple[CauseSpend, ...]
    wastes: tuple[Waste, ...]
    months: tuple[MonthSpend, ...]
    budgets: tuple[BudgetLine, ...]
    forecasts: tuple[RunForecast, ...]
    runs: tuple[RunSpend, ...]
    teams: tuple[TeamSpend, ...]
    projects: tuple[ProjectSpend, ...]
    trend: Trend
    retries: Retries
    data: DataMovement
    invoice: Invoice
    prices: Prices
    own_or_rent: OwnOrRent | None
    remarks: tuple[str, ...]
