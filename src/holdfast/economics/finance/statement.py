"""The statement of `holdfast finance`, as data: spend and its results, by cause, run, team, project and
month.

The field names are the keys of `holdfast finance --json`; GPU-time is GPU-nanoseconds, times are
nanoseconds, amounts are USD, shares are between 0 and 1, and None means that the record does not say.
"""

import msgspec

from holdfast.economics.finance.balance import Balance, Standing
from holdfast.economics.finance.budget import BudgetLine, RunForecast
from holdfast.economics.finance.invoice import Invoice
from holdfast.economics.finance.ownership import OwnOrRent
from holdfast.economics.finance.trend import Trend
from holdfast.economics.finance.wastes import UnknownSpend, Waste
from holdfast.economics.pricing.prices import Priced, Prices
from holdfast.economics.pricing.spending import Amount
from holdfast.ledger.counts import MovedFor


class IncidentShare(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one incident under one cause. name: as in `holdfast cost RUN/NAME`."""

    run: str
    run_name: str
    name: str
    what: str
    subject: str
    began_ns: int
    gpu_ns: int
    usd: float


class CauseSpend(msgspec.Struct, frozen=True, kw_only=True):
    """The spend on one cause. incidents: the costliest; incidents_gpu_ns: the part that all explain."""

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


class MonthSpend(Balance, frozen=True, kw_only=True):
    """A month's part of the window.

    goodput: the useful share of the known GPU-time. forecast_usd: at the end of the month, if it is not
    over.
    """

    month: str
    from_ns: int
    to_ns: int
    goodput: float | None
    budget_usd: float | None
    forecast_usd: float | None


class RunSpend(Balance, frozen=True, kw_only=True):
    """One run. steps: the kept steps that it did in the window."""

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

    utilisation: the useful share of its known GPU-time, to which a target applies; its bounds: if all of
    the unknown was lost, and if it was useful. standing: unknown if the target is between these bounds.
    short: the useful time missing to the target.
    """

    team: str
    runs: int
    utilisation: float | None
    utilisation_bounds: tuple[float, float] | None
    target: float | None
    standing: Standing
    short: Amount | None


class ProjectSpend(Balance, frozen=True, kw_only=True):
    """One project's runs; an empty name: runs without a project."""

    project: str
    runs: int


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """Retries and their cost, which is part of the waste above, not on top of it.

    fruitless_launches  launches with nothing recorded before the next one
    starting_again      getting back to where the run was: waiting, starting, recovering after an incident
    done_again          work that incidents lost, and its repetition
    """

    restarts: int
    fruitless_launches: int
    starting_again: Amount
    done_again: Amount
    share: float | None


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes moved for one purpose. sized: how many of the transfers have a recorded size.

    usd: the charge, as recorded or by the price; None if neither is known. assumed: the price is assumed.
    A charge comes on top of the spend above.
    """

    what: MovedFor
    times: int
    sized: int
    size_bytes: int
    usd: float | None
    assumed: bool


class DataMovement(msgspec.Struct, frozen=True, kw_only=True):
    """Data transfers. stall: GPU-time that waited for them, which is part of the waste above."""

    transfers: tuple[Transfer, ...]
    charged_usd: float
    stall: Amount


class Finance(Balance, frozen=True, kw_only=True):
    """The whole statement, for the person responsible for the budget.

    point_usd: the worth of one more point of useful share, at the cost of a useful GPU-hour; None if less
    than a point is lost. silences: the unknown by the line that would tell. own_or_rent: None unless asked.
    """

    first_ns: int
    last_ns: int
    window: tuple[int | None, int | None]
    now_ns: int
    point_usd: float | None
    causes: tuple[CauseSpend, ...]
    wastes: tuple[Waste, ...]
    silences: tuple[UnknownSpend, ...]
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
