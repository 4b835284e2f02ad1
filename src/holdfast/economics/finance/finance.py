"""Spend, useful spend and waste over all runs: by cause, by team against its target, and over time.

`finance` computes a `statement` from the runs' reports and the prices. All parts sum exactly to the spend;
`spending` says how.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import msgspec

from holdfast.economics.finance import statement
from holdfast.economics.finance.balance import Balance, balance_of, basis_of, goodput_of, share_of, short_of
from holdfast.economics.finance.budget import budget_lines, run_forecasts
from holdfast.economics.finance.invoice import invoice
from holdfast.economics.finance.ownership import POINT, OwnOrRent, Terms, compare
from holdfast.economics.finance.trend import SpendStretch, edges_ns, trend
from holdfast.economics.finance.wastes import unknowns, wastes
from holdfast.economics.pricing.months import Month, month_at, months_between
from holdfast.economics.pricing.prices import Priced, Prices
from holdfast.economics.pricing.pricing import ACCRUED, Charge, Pricing, price_changes
from holdfast.economics.pricing.rates import SUBJECTS, unmatched
from holdfast.economics.pricing.rates import edges_ns as rate_edges_ns
from holdfast.economics.pricing.spending import CAUSES, Amount, Bill, WasteCause, usd_per_hour
from holdfast.ledger.categories import NOT_SCHEDULED, Category
from holdfast.ledger.counts import MovedBytes, MovedFor
from holdfast.ledger.opinions import says_slow
from holdfast.ledger.report import IncidentReport, Report
from holdfast.ledger.split import share
from holdfast.ledger.window import Window, fell_silent, part_between
from holdfast.wording import many
from holdfast.wording.units import DAY_NS, HOUR_NS

INCIDENTS_PER_CAUSE = 3
OPINIONS_SHOWN_MAX = 5
CUT_OFF_NAMED_MAX = 5
"""How many of the runs that a log does not end are named, those with the most GPUs first."""
GB_BYTES = 10**9
"""Clouds charge by this unit."""

_AGAIN = (Category.STARTING, Category.RECOVERING, Category.QUEUED)
"""Costs of an incident until the run is back where it was, before it computes anything again."""
_TWICE = (Category.RECOMPUTED, Category.DISCARDED)


class FinanceQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the books.

    window  the time that the reports cover
    now_ns  running runs count up to this moment, and forecasts begin there
    terms   the terms on which GPUs are owned; None: do not compare owning with renting
    known   all names in the record by kind (run, team, ...), to find unknown names in the prices; None: skip
            that check, as when only some runs are read
    """

    now_ns: int
    window: Window = Window()
    terms: Terms | None = None
    known: Mapping[str, Sequence[str]] | None = None


def cuts_ns(first_ns: int, last_ns: int, prices: Prices) -> set[int]:
    """The moments at which the runs' accounts must be cut for a statement of this time."""
    months = {month.from_ns for month in months_between(first_ns, last_ns)}
    return months | set(edges_ns(first_ns, last_ns)) | rate_edges_ns(prices.rates)


def finance(reports: Sequence[Report], prices: Prices, question: FinanceQuestion) -> statement.Finance:
    """The statement for at least one report; the reports must be cut at `cuts_ns`."""
    return _Reader(reports, prices, question).finance()


class _Reader:
    """Values that several parts of a statement need, computed once."""

    def __init__(self, reports: Sequence[Report], prices: Prices, question: FinanceQuestion) -> None:
        self.reports = reports
        self.prices = prices
        self.question = question
        timed = [report for report in reports if not report.is_untimed] or reports
        self.first_ns = min(report.first_ns for report in timed)
        ends_ns = (one.last_ns if one.accrued is None else one.accrued.to_ns for one in reports)
        self.last_ns = max(self.first_ns, *ends_ns)
        self.edges_ns = edges_ns(self.first_ns, self.last_ns)
        self.months = list(months_between(self.first_ns, self.last_ns))
        self.cuts_ns = sorted({*self.edges_ns, *(month.from_ns for month in self.months)})
        self.by_stretch = [Bill() for _ in pairwise(self.edges_ns)]
        self.by_month = {month.name: Bill() for month in self.months}
        self.names = {report.run: report.name for report in reports}
        self.by_run = {report.run: Bill() for report in reports}
        self.pricing = {report.run: Pricing(report, prices) for report in reports}
        self.priced = {report.run: self.pricing[report.run].charges(self.cuts_ns) for report in reports}
        self.charges = [
            (report, part)  # each within one stretch and one month
            for report in timed
            for charge in self.priced[report.run]
            for part in _divided(charge, self.cuts_ns)
        ]
        for report, charge in self.charges:
            stretch = min(max(0, bisect_right(self.edges_ns, charge.from_ns) - 1), len(self.by_stretch) - 1)
            month = month_at(charge.from_ns).name
            for bill in (self.by_stretch[stretch], self.by_month[month], self.by_run[report.run]):
                bill.add(charge.usd_per_gpu_hour, charge.parts.items())
        self.bill = _together(self.by_run.values())
        self.losses: dict[tuple[str, str], list[tuple[Fraction, Mapping[str, int]]]] = {}
        for run, charges in self.priced.items():
            for charge in charges:
                for name, lost in charge.incidents.items():
                    self.losses.setdefault((run, name), []).append((charge.usd_per_gpu_hour, lost))
        self.forecasts = run_forecasts(self.pricing.values(), question.now_ns)
        self.done_ns = {found.run: found.end_ns for found in self.forecasts if found.end_ns is not None}
        self.to_come = {report.run: self._to_come(report) for report in reports}

    def finance(self) -> statement.Finance:
        question = self.question
        runs = sorted(
            (self._run(report) for report in self.reports), key=lambda run: (-run.spend.usd, run.run)
        )
        months = {month.name: month for month in self.months}
        causes = self._causes()
        named = {
            cause.key: f"{first.what} ({first.subject})"
            for cause in causes
            for first in cause.incidents[:1]
            if first.subject
        }
        return statement.Finance(
            **_fields(balance_of(self.bill, self.reports)),
            first_ns=self.first_ns,
            last_ns=self.last_ns,
            window=(question.window.from_ns, question.window.to_ns),
            now_ns=question.now_ns,
            point_usd=self._point_usd(),
            causes=causes,
            wastes=wastes(self.bill, self.by_run, self.names, named),
            silences=unknowns(self.bill, self.by_run, self.names),
            months=tuple(self._month(month) for month in self.months),
            budgets=budget_lines(
                self.prices,
                [(report, month_at(charge.from_ns), charge) for report, charge in self.charges],
                self.to_come,
                self._forecast_month(),
            ),
            forecasts=self.forecasts,
            runs=tuple(runs),
            teams=self._teams(),
            projects=self._projects(),
            trend=trend(self._stretches()),
            retries=self._retries(),
            data=self._data(),
            invoice=invoice(
                ((report, months[month_at(charge.from_ns).name], charge) for report, charge in self.charges),
                self.prices.currency,
            ),
            prices=self.prices,
            own_or_rent=None if question.terms is None else self._own_or_rent(question.terms),
            remarks=self._remarks(),
        )

    def _run(self, report: Report) -> statement.RunSpend:
        bill = self.by_run[report.run]
        return statement.RunSpend(
            **{**_fields(balance_of(bill, (report,))), "basis": report.basis},
            run=report.run,
            name=report.name,
            team=report.team,
            project=report.project,
            gpus=report.gpus,
            first_ns=report.first_ns,
            last_ns=report.last_ns,
            usd_per_gpu_hour=self._run_price(report),
            causes={cause.key: bill.part(*cause.categories) for cause in CAUSES},
            steps=report.counts.steps,
        )

    def _run_price(self, report: Report) -> Priced:
        """The price of the run's GPU-hours; their mean if it changed."""
        prices = {charge.price: None for charge in self.priced[report.run] if charge.gpu_ns}
        usual = prices or {self.pricing[report.run].at(report.first_ns, None)[1]: None}
        total = self.by_run[report.run].total()
        return _mean(usual, total, f"mean of {len(prices)} prices, each hour at its own") or next(iter(usual))

    # -- months ----------------------------------------------------------------------------------------

    def _forecast_month(self) -> Month | None:
        """The current month, if the window includes now."""
        now_ns, to_ns = self.question.now_ns, self.question.window.to_ns
        month = month_at(now_ns)
        if month.name not in self.by_month or (to_ns is not None and to_ns < now_ns):
            return None
        return month

    def _to_come(self, report: Report) -> Fraction:
        """The cost of a run that still holds its GPUs, from now until its planned steps or the month end."""
        month = self._forecast_month()
        if report.accrued is None or month is None:
            return Fraction()
        to_ns = min(month.to_ns, self.done_ns.get(report.run, month.to_ns))
        return self.pricing[report.run].held(report.accrued.gpus, report.accrued.to_ns, to_ns)

    def _month(self, month: Month) -> statement.MonthSpend:
        bill = self.by_month[month.name]
        forecast = self._forecast_month()
        is_open = forecast is not None and forecast.name == month.name
        to_come = sum(self.to_come.values(), Fraction())
        runs = {one.run for one, charge in self.charges if month.from_ns <= charge.from_ns < month.to_ns}
        reports = [report for report in self.reports if report.run in runs]
        return statement.MonthSpend(
            month=month.name,
            from_ns=month.from_ns,
            to_ns=month.to_ns,
            **_fields(balance_of(bill, reports)),
            goodput=goodput_of(bill, reports),
            budget_usd=self.prices.budget.value if self.prices.budget else None,
            forecast_usd=bill.total().usd + float(to_come) if is_open else None,
        )

    # -- causes ----------------------------------------------------------------------------------------

    def _incidents(self) -> Iterator[tuple[str, IncidentReport]]:
        """The incidents in the window, with their cost in it, and their runs."""
        for report in self.reports:
            for incident in report.incidents:
                yield report.run, incident

    def _causes(self) -> tuple[statement.CauseSpend, ...]:
        """The costliest first."""
        found = [self._cause(cause) for cause in CAUSES]
        return tuple(sorted(found, key=lambda cause: -cause.usd))

    def _cause(self, cause: WasteCause) -> statement.CauseSpend:
        amount = self.bill.part(*cause.categories)
        shares = [
            statement.IncidentShare(
                run=run,
                run_name=self.names[run],
                **{name: getattr(incident, name) for name in ("name", "what", "subject", "began_ns")},
                **msgspec.structs.asdict(self._lost_to([(run, incident)], cause.categories)),
            )
            for run, incident in self._incidents()
            if any(incident.losses.get(category.key) for category in cause.categories)
        ]
        shares.sort(key=lambda share: (-share.usd, share.began_ns))
        return statement.CauseSpend(
            key=cause.key,
            label=cause.label,
            meaning=cause.meaning,
            gpu_ns=amount.gpu_ns,
            usd=amount.usd,
            share=share_of(amount, self.bill.total()),
            incidents=tuple(shares[:INCIDENTS_PER_CAUSE]),
            incidents_count=len(shares),
            incidents_gpu_ns=sum(share.gpu_ns for share in shares),
            basis=basis_of(
                report
                for report in self.reports
                if {category.key for category in cause.categories} & set(report.estimated)
            ),
        )

    def _lost_to(
        self, incidents: Iterable[tuple[str, IncidentReport]], categories: tuple[Category, ...]
    ) -> Amount:
        """The losses of these incidents under these categories, each hour at its own price."""
        bill, keys = Bill(), {category.key for category in categories}
        for run, incident in incidents:
            for usd_per_gpu_hour, lost in self.losses.get((run, incident.name), ()):
                bill.add(usd_per_gpu_hour, [("", part) for key, part in lost.items() if key in keys])
        return bill.total()

    # -- teams -----------------------------------------------------------------------------------------

    def _teams(self) -> tuple[statement.TeamSpend, ...]:
        """The team furthest behind its target first, in USD; then by spend."""
        teams = [self._team(team, own) for team, own in self._by(lambda report: report.team)]
        return tuple(
            sorted(
                teams, key=lambda team: (-(team.short.usd if team.short else 0.0), -team.spend.usd, team.team)
            )
        )

    def _by(self, named: Callable[[Report], str]) -> Iterable[tuple[str, list[Report]]]:
        """The reports grouped by a name."""
        found: dict[str, list[Report]] = {}
        for report in self.reports:
            found.setdefault(named(report), []).append(report)
        return found.items()

    def _bill_of(self, reports: Iterable[Report]) -> Bill:
        return _together(self.by_run[report.run] for report in reports)

    def _team(self, team: str, reports: list[Report]) -> statement.TeamSpend:
        bill = self._bill_of(reports)
        balance, utilisation = balance_of(bill, reports), goodput_of(bill, reports)
        priced = self.prices.team_targets.get(team)
        target = priced.value if priced else None
        standing = balance.stands(utilisation, target)
        return statement.TeamSpend(
            **_fields(balance),
            team=team,
            runs=len(reports),
            utilisation=utilisation,
            utilisation_bounds=balance.goodput_bounds,
            target=target,
            standing=standing,
            short=None if target is None or standing == "unknown" else short_of(balance, target),
        )

    def _projects(self) -> tuple[statement.ProjectSpend, ...]:
        found = [
            statement.ProjectSpend(
                **_fields(balance_of(self._bill_of(own), own)), project=project, runs=len(own)
            )
            for project, own in self._by(lambda report: report.project)
        ]
        return tuple(sorted(found, key=lambda one: (-one.spend.usd, one.project)))

    # -- time, retries and data ------------------------------------------------------------------------

    def _stretches(self) -> list[SpendStretch]:
        return [
            SpendStretch(
                from_ns=from_ns,
                to_ns=to_ns,
                spend_usd=bill.total().usd,
                paid_gpu_ns=bill.known().gpu_ns + bill.unknown().gpu_ns,
                useful_gpu_ns=bill.useful().gpu_ns,
                useful_usd=bill.useful().usd,
                timed=timed,
                accrued_usd=bill.under(ACCRUED).usd,
                unknown_gpu_ns=bill.unknown().gpu_ns,
                unknown_usd=bill.unknown().usd,
            )
            for (from_ns, to_ns), bill, timed in zip(
                pairwise(self.edges_ns), self.by_stretch, self._timed(), strict=True
            )
        ]

    def _timed(self) -> list[int]:
        """How many times steps were timed in each stretch; each bucket of a course is spread evenly."""
        timed = [0] * len(self.by_stretch)
        for report in self.reports:
            for index, count in _timed_in(report, self.edges_ns):
                timed[index] += count
        return timed

    def _retries(self) -> statement.Retries:
        counts = [report.counts for report in self.reports]
        lost = list(self._incidents())
        return statement.Retries(
            restarts=sum(one.restarts for one in counts),
            fruitless_launches=sum(one.launches - one.starts for one in counts),
            starting_again=self._lost_to(lost, _AGAIN),
            done_again=self._lost_to(lost, _TWICE),
            share=share_of(self._lost_to(lost, (*_AGAIN, *_TWICE)), self.bill.total()),
        )

    def _data(self) -> statement.DataMovement:
        sums: dict[MovedFor, MovedBytes] = {}
        for report in self.reports:
            for use, moved in report.moved.items():
                sums[use] = sums.get(use, MovedBytes()).plus(moved)
        transfers = [self._transfer(use, moved) for use, moved in sums.items() if moved.times]
        return statement.DataMovement(
            transfers=tuple(sorted(transfers, key=lambda transfer: -transfer.size_bytes)),
            charged_usd=sum(transfer.usd or 0.0 for transfer in transfers),
            stall=self.bill.part(Category.CHECKPOINT_STALL, Category.DATA_STALL),
        )

    def _transfer(self, use: MovedFor, moved: MovedBytes) -> statement.Transfer:
        """Only egress has a price per byte that is the same everywhere; others cost what was recorded."""
        price = self.prices.egress_usd_per_gb
        by_price = use == "egress" and moved.unpriced_bytes > 0
        usd = moved.usd + (moved.unpriced_bytes / GB_BYTES * price.value if by_price else 0.0)
        is_known = by_price or moved.unpriced_bytes < moved.size_bytes
        return statement.Transfer(
            what=use,
            times=moved.times,
            sized=moved.sized,
            size_bytes=moved.size_bytes,
            usd=usd if is_known else None,
            assumed=by_price and price.assumed,
        )

    def _point_usd(self) -> float | None:
        known, useful = self.bill.known(), self.bill.useful()
        if not useful.gpu_ns or known.gpu_ns - useful.gpu_ns < POINT * known.gpu_ns:
            return None
        return known.usd * POINT * known.gpu_ns / useful.gpu_ns

    def _own_or_rent(self, terms: Terms) -> OwnOrRent:
        """Own or rent, with the price of these runs' GPU-hours and the useful share of their known time."""
        prices = dict.fromkeys(self._run_price(report) for report in self.reports)
        in_run = [category for category in Category if category not in NOT_SCHEDULED]
        is_told = any(report.goodput.total is not None for report in self.reports)
        return compare(
            terms.completed(
                rent=_mean(prices, self.bill.total(), "the mean of these runs"),
                labour=self.prices.labour_usd_per_hour,
                goodput=share(self.bill.useful().gpu_ns, self.bill.part(*in_run).gpu_ns) if is_told else None,
                known=share(self.bill.known().gpu_ns, self.bill.known().gpu_ns + self.bill.unknown().gpu_ns),
            )
        )

    def _remarks(self) -> tuple[str, ...]:
        """Remarks that help readers interpret the numbers correctly."""
        reports, now_ns = self.reports, self.question.now_ns
        remarks = []
        if without := sum(not report.gpus for report in reports):
            remarks.append(
                f"{many(without, 'run')} without recorded GPUs: their cost is unknown and counts as nothing."
            )
        if silent := sum(report.paid_gpu_ns > 0 and report.goodput.total is None for report in reports):
            remarks.append(
                f"{many(silent, 'run')} reported neither steps nor checkpoints: it is not known what their "
                "spend brought."
            )
        if untimed := sum(report.is_untimed for report in reports):
            remarks.append(
                f"{many(untimed, 'run')} from logs without times: their cost is unknown, and counts as 0."
            )
        if cut_off := [report for report in reports if report.is_cut_off and not report.is_untimed]:
            cut_off.sort(key=lambda report: (-report.gpus, report.run))
            named = ", ".join(report.label for report in cut_off[:CUT_OFF_NAMED_MAX])
            more = len(cut_off) - CUT_OFF_NAMED_MAX
            remarks.append(
                f"{many(len(cut_off), 'run')} did not end before the log that tells of "
                f"{'it' if len(cut_off) == 1 else 'them'}, and nothing is counted after it: "
                f"{named}{f' and {more:,} more' if more > 0 else ''}."
            )
        if mixed := sum(report.was_on_cpu for report in reports):
            remarks.append(
                f"{many(mixed, 'run')} had GPUs in some attempts and only CPUs in others: all their hours "
                "count as GPU-hours."
            )
        remarks += [self._silence(report) for report in reports if fell_silent(report, now_ns)]
        remarks += filter(None, (pricing.overruled() for pricing in self.pricing.values()))
        remarks += price_changes(self.priced.values(), self.prices.currency)
        remarks += self._unmatched()
        remarks += self._unheld()
        remarks += self._slower()
        if self.question.window.is_bounded:
            remarks.append("Incidents count only with their cost in this window.")
        return tuple(remarks)

    def _unheld(self) -> Iterator[str]:
        """Time between attempts in which it is unknown who held the GPUs, with its price if the run did."""
        gaps = [(report.run, gap) for report in self.reports for gap in report.gaps if not gap.given_back]
        if not gaps:
            return
        hours = sum(gap.gpu_ns for _, gap in gaps) / HOUR_NS
        usd = sum(self.pricing[run].held(gap.gpus, gap.from_ns, gap.to_ns) for run, gap in gaps)
        yield (
            f"{many(len({run for run, _ in gaps}), 'run')} went down between attempts, and nothing says who "
            f"held the GPUs: {hours:,.2f} GPU-hours are not in the spend. If they were held, "
            f"{self.prices.currency.said(usd)} more were paid."
        )

    def _slower(self) -> Iterator[str]:
        """Runs whose useful time may be slowdown, according to earlier runs or published figures."""
        slow = [(one, report.label) for report in self.reports for one in report.opinions if says_slow(one)]
        for opinion, run in sorted(slow, key=lambda found: -found[0].ratio)[:OPINIONS_SHOWN_MAX]:
            yield f"Run {run}: {opinion.sentence[0].lower()}{opinion.sentence[1:]}"

    def _silence(self, report: Report) -> str:
        """A run that is not known to have ended may still hold its GPUs: say what that would cost."""
        usd = self.pricing[report.run].held(report.held_gpus, report.known_ns, report.known_ns + DAY_NS)
        cost = self.prices.currency.said(usd, decimals=0)
        days = (self.question.now_ns - report.known_ns) / DAY_NS
        return (
            f"Run {report.label} has not ended and was last heard of {days:,.1f} days ago. Nothing is "
            f"counted since; if it still holds its {report.held_gpus:,} GPUs, that costs {cost} a day."
        )

    def _unmatched(self) -> list[str]:
        if self.question.known is None:
            return []
        prices = self.prices
        named = [
            *(
                (f"Rate {rate.number} of the prices", subject, getattr(rate, subject))
                for rate in prices.rates
                for subject in SUBJECTS
                if getattr(rate, subject)
            ),
            *(("`team_targets` of the prices", "team", team) for team in prices.team_targets),
            *(("`team_budgets` of the prices", "team", team) for team in prices.team_budgets),
            *(("`project_budgets` of the prices", "project", one) for one in prices.project_budgets),
            *(("`planned_steps` of the prices", "run", run) for run in prices.planned_steps),
        ]
        return unmatched(named, self.question.known)


def _divided(charge: Charge, edges: list[int]) -> Iterator[Charge]:
    """The charge, divided evenly at these moments. Accounts that were cut there need no division."""
    inside = edges[bisect_right(edges, charge.from_ns) : bisect_left(edges, charge.to_ns)]
    if not inside:
        yield charge
        return
    whole = charge.to_ns - charge.from_ns
    for from_ns, to_ns in pairwise([charge.from_ns, *inside, charge.to_ns]):
        place = from_ns - charge.from_ns, to_ns - charge.from_ns, whole
        yield msgspec.structs.replace(
            charge,
            from_ns=from_ns,
            to_ns=to_ns,
            parts={key: part_between(part, *place) for key, part in charge.parts.items()},
            incidents={},
        )


def _timed_in(report: Report, edges: list[int]) -> Iterator[tuple[int, int]]:
    """How many times steps were timed, by the number of the stretch."""
    course = report.course
    for number, timed in enumerate(course.timed):
        from_ns = course.start_ns + number * course.bucket_ns
        to_ns = max(from_ns + 1, min(from_ns + course.bucket_ns, report.last_ns))
        cuts = [from_ns, *edges[bisect_right(edges, from_ns) : bisect_left(edges, to_ns)], to_ns]
        for begin_ns, end_ns in pairwise(cuts):
            index = min(bisect_right(edges, begin_ns) - 1, len(edges) - 2)
            if index >= 0:
                yield index, part_between(timed, begin_ns - from_ns, end_ns - from_ns, to_ns - from_ns)


def _together(bills: Iterable[Bill]) -> Bill:
    whole = Bill()
    for bill in bills:
        whole.include(bill)
    return whole


def _fields(balance: Balance) -> dict[str, Any]:
    return msgspec.structs.asdict(balance)


def _mean(prices: Collection[Priced], paid: Amount, source: str) -> Priced | None:
    """The only price, or the mean of several; None if nothing was paid."""
    mean = usd_per_hour(paid.usd, paid.gpu_ns)
    if not mean or len(prices) == 1:
        return next(iter(prices)) if mean else None
    return Priced(value=mean, assumed=any(price.assumed for price in prices), source=source)
