"""Spend, useful spend and waste over all runs: by cause, by team against its target, and over time.

A pure reading of runs' reports and of prices. The field names are the keys of `holdfast finance --json`;
GPU-time is GPU-nanoseconds, times are nanoseconds, shares are between 0 and 1, and None means that nothing
recorded tells. Whatever is divided here sums to what was spent, exactly; `spending` says how.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Literal, TypedDict

import msgspec

from holdfast.economics.ownership import POINT, OwnOrRent, Terms, compare
from holdfast.economics.prices import Priced, Prices
from holdfast.economics.spending import CAUSES, HOUR_NS, Amount, Bill, Cause, priced, usd_per_hour
from holdfast.economics.trend import Stretch, Trend, edges_ns, trend
from holdfast.ledger.categories import NOT_SCHEDULED, Category
from holdfast.ledger.fold import MovedFor
from holdfast.ledger.report import IncidentReport, MovedBytes, Report

INCIDENTS_PER_CAUSE = 3
GB_BYTES = 10**9
"""As clouds charge for it."""

Standing = Literal["below", "met", "no target", "unknown"]

_AGAIN = (Category.STARTING, Category.RECOVERING, Category.QUEUED)
"""What an incident costs until the run is where it was, before anything is computed again."""
_TWICE = (Category.RECOMPUTED, Category.DISCARDED)
_NOTHING = MovedBytes(times=0, sized=0, size_bytes=0, usd=0.0, unpriced_bytes=0)


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands, and as it stood where the window begins, if it had begun by then."""

    report: Report
    earlier: Report | None = None


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


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent, and what came of it: useful and waste sum to spend. useful_share: of the money."""

    spend: Amount
    useful: Amount
    waste: Amount
    useful_share: float | None
    usd_per_useful_gpu_hour: float | None


class RunSpend(Balance, frozen=True, kw_only=True):
    """One run. steps: those it has, that it was seen to do in the window."""

    run: str
    name: str
    team: str
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
    """

    first_ns: int
    last_ns: int
    since_ns: int | None
    point_usd: float | None
    causes: tuple[CauseSpend, ...]
    runs: tuple[RunSpend, ...]
    teams: tuple[TeamSpend, ...]
    trend: Trend
    retries: Retries
    data: DataMovement
    prices: Prices
    own_or_rent: OwnOrRent
    remarks: tuple[str, ...]


def finance(books: Sequence[Books], prices: Prices, terms: Terms, since_ns: int | None = None) -> Finance:
    """Read the books of all runs, from `since_ns` on. There must be at least one."""
    return _Reader(books, prices, since_ns).finance(terms)


class _Reader:
    """Everything the parts are computed from, computed once."""

    def __init__(self, books: Sequence[Books], prices: Prices, since_ns: int | None) -> None:
        self.books = books
        self.prices = prices
        self.since_ns = since_ns
        self.first_ns = max(min(book.report.first_ns for book in books), since_ns or 0)
        self.last_ns = max(self.first_ns, *(book.report.last_ns for book in books))
        self.edges_ns = edges_ns(self.first_ns, self.last_ns)
        self.by_stretch = [Bill() for _ in pairwise(self.edges_ns)]
        self.timed = [0] * len(self.by_stretch)
        self.by_run: dict[str, Bill] = {}
        self.run_prices = {
            report.run: prices.for_run(report.usd_per_gpu_hour, report.chip).usd_per_gpu_hour
            for report in (book.report for book in books)
        }
        for book in books:
            self._charge(book.report)
        self.bill = _together(self.by_run.values())

    def _charge(self, report: Report) -> None:
        bill = self.by_run[report.run] = Bill()
        price = self.run_prices[report.run].value
        for index, parts, timed in _cut(report, self.edges_ns):
            bill.add(price, parts.items())
            self.by_stretch[index].add(price, parts.items())
            self.timed[index] += timed

    def finance(self, terms: Terms) -> Finance:
        runs = sorted((self._run(book) for book in self.books), key=lambda run: (-run.spend.usd, run.run))
        return Finance(
            **_balance(self.bill),
            first_ns=self.first_ns,
            last_ns=self.last_ns,
            since_ns=self.since_ns,
            point_usd=self._point_usd(),
            causes=self._causes(),
            runs=tuple(runs),
            teams=self._teams(),
            trend=trend(self._stretches()),
            retries=self._retries(),
            data=self._data(),
            prices=self.prices,
            own_or_rent=self._own_or_rent(terms),
            remarks=self._remarks(),
        )

    def _run(self, book: Books) -> RunSpend:
        report, bill = book.report, self.by_run[book.report.run]
        return RunSpend(
            **_balance(bill),
            run=report.run,
            name=report.name,
            team=report.team,
            gpus=report.gpus,
            first_ns=report.first_ns,
            last_ns=report.last_ns,
            usd_per_gpu_hour=self.run_prices[report.run],
            causes={cause.key: bill.part(*cause.categories) for cause in CAUSES},
            steps=report.counts.steps - (book.earlier.counts.steps if book.earlier else 0),
        )

    # -- causes ----------------------------------------------------------------------------------------

    def _incidents(self) -> Iterator[tuple[str, IncidentReport]]:
        """Those that began in the window, with all that they cost, and their runs."""
        for book in self.books:
            for incident in book.report.incidents:
                if incident.began_ns >= (self.since_ns or 0):
                    yield book.report.run, incident

    def _causes(self) -> tuple[CauseSpend, ...]:
        """The costliest first."""
        found = [self._cause(cause) for cause in CAUSES]
        return tuple(sorted(found, key=lambda cause: -cause.usd))

    def _cause(self, cause: Cause) -> CauseSpend:
        amount = self.bill.part(*cause.categories)
        shares = [
            self._incident_share(run, incident, lost)
            for run, incident in self._incidents()
            if (lost := _lost(incident, cause.categories))
        ]
        shares.sort(key=lambda share: (-share.usd, share.began_ns))
        return CauseSpend(
            key=cause.key,
            label=cause.label,
            meaning=cause.meaning,
            gpu_ns=amount.gpu_ns,
            usd=amount.usd,
            share=_share_of(amount, self.bill.total()),
            incidents=tuple(shares[:INCIDENTS_PER_CAUSE]),
            incidents_count=len(shares),
            incidents_gpu_ns=sum(share.gpu_ns for share in shares),
        )

    def _incident_share(self, run: str, incident: IncidentReport, lost_gpu_ns: int) -> IncidentShare:
        return IncidentShare(
            run=run,
            name=incident.name,
            what=incident.what,
            subject=incident.subject,
            began_ns=incident.began_ns,
            gpu_ns=lost_gpu_ns,
            usd=priced(lost_gpu_ns, self.run_prices[run].value).usd,
        )

    # -- teams -----------------------------------------------------------------------------------------

    def _teams(self) -> tuple[TeamSpend, ...]:
        """The one that is furthest behind its target first, in USD; then by spend."""
        runs_of: dict[str, list[str]] = {}
        for book in self.books:
            runs_of.setdefault(book.report.team, []).append(book.report.run)
        teams = [self._team(team, runs) for team, runs in runs_of.items()]
        return tuple(
            sorted(
                teams, key=lambda team: (-(team.short.usd if team.short else 0.0), -team.spend.usd, team.team)
            )
        )

    def _team(self, team: str, runs: list[str]) -> TeamSpend:
        bill = _together(self.by_run[run] for run in runs)
        spend, useful = bill.total(), bill.useful()
        target = self.prices.team_targets.get(team)
        told = _is_told(bill)
        short: Amount | None = None
        standing: Standing = "unknown" if target else "no target"
        if target and told:
            short_gpu_ns = max(0, int(Fraction(target.value) * spend.gpu_ns) - useful.gpu_ns)
            short = priced(short_gpu_ns, spend.usd / (spend.gpu_ns / HOUR_NS))
            standing = "below" if short_gpu_ns else "met"
        return TeamSpend(
            **_balance(bill),
            team=team,
            runs=len(runs),
            utilisation=_share(useful.gpu_ns, spend.gpu_ns) if told else None,
            target=target.value if target else None,
            standing=standing,
            short=short,
        )

    # -- time, retries and data ------------------------------------------------------------------------

    def _stretches(self) -> list[Stretch]:
        return [
            Stretch(
                from_ns=from_ns,
                to_ns=to_ns,
                spend_usd=bill.total().usd,
                paid_gpu_ns=bill.total().gpu_ns,
                useful_gpu_ns=bill.useful().gpu_ns,
                useful_usd=bill.useful().usd,
                timed=timed,
            )
            for (from_ns, to_ns), bill, timed in zip(
                pairwise(self.edges_ns), self.by_stretch, self.timed, strict=True
            )
        ]

    def _retries(self) -> Retries:
        again, twice = self._lost_to_incidents(_AGAIN), self._lost_to_incidents(_TWICE)
        counts = [(book.report.counts, book.earlier.counts if book.earlier else None) for book in self.books]
        launches = [now.launches - (then.launches if then else 0) for now, then in counts]
        starts = [now.starts - (then.starts if then else 0) for now, then in counts]
        return Retries(
            restarts=sum(now.restarts - (then.restarts if then else 0) for now, then in counts),
            fruitless_launches=sum(launches) - sum(starts),
            starting_again=again,
            done_again=twice,
            share=_share_of(self._lost_to_incidents((*_AGAIN, *_TWICE)), self.bill.total()),
        )

    def _lost_to_incidents(self, categories: tuple[Category, ...]) -> Amount:
        bill = Bill()
        for run, incident in self._incidents():
            bill.add(self.run_prices[run].value, [("", _lost(incident, categories))])
        return bill.total()

    def _data(self) -> DataMovement:
        sums: dict[MovedFor, MovedBytes] = {}
        for book in self.books:
            for use, moved in book.report.moved.items():
                earlier = book.earlier.moved.get(use, _NOTHING) if book.earlier else _NOTHING
                sums[use] = _added(sums.get(use, _NOTHING), _added(moved, earlier, sign=-1))
        transfers = [self._transfer(use, moved) for use, moved in sums.items() if moved.times]
        return DataMovement(
            transfers=tuple(sorted(transfers, key=lambda transfer: -transfer.size_bytes)),
            charged_usd=sum(transfer.usd or 0.0 for transfer in transfers),
            stall=self.bill.part(Category.CHECKPOINT_STALL, Category.DATA_STALL),
        )

    def _transfer(self, use: MovedFor, moved: MovedBytes) -> Transfer:
        """Only egress has a price by the byte that is the same wherever it is asked for."""
        price = self.prices.egress_usd_per_gb
        by_price = use == "egress" and moved.unpriced_bytes > 0
        usd = moved.usd + (moved.unpriced_bytes / GB_BYTES * price.value if by_price else 0.0)
        is_known = by_price or moved.unpriced_bytes < moved.size_bytes
        return Transfer(
            what=use,
            times=moved.times,
            sized=moved.sized,
            size_bytes=moved.size_bytes,
            usd=usd if is_known else None,
            assumed=by_price and price.assumed,
        )

    def _point_usd(self) -> float | None:
        spend, useful = self.bill.total(), self.bill.useful()
        return spend.usd * POINT * spend.gpu_ns / useful.gpu_ns if useful.gpu_ns else None

    def _mean_price(self) -> Priced | None:
        """What a GPU-hour costs now; where the runs' prices differ, on average. None: it costs nothing."""
        spend, prices = self.bill.total(), set(self.run_prices.values())
        mean = usd_per_hour(spend, spend.gpu_ns)
        if not mean:
            return None
        if len(prices) == 1:
            return prices.pop()
        assumed = any(price.assumed for price in prices)
        return Priced(value=mean, assumed=assumed, source="the mean of these runs")

    # -- own or rent, remarks ------------------------------------------------------------------------

    def _own_or_rent(self, terms: Terms) -> OwnOrRent:
        """With what these runs pay for a GPU-hour, and the share of their time in a run that was useful."""
        spend = self.bill.total()
        in_run_gpu_ns = spend.gpu_ns - self.bill.part(*NOT_SCHEDULED).gpu_ns
        return compare(
            terms.completed(
                rent=self._mean_price(),
                labour=self.prices.labour_usd_per_hour,
                goodput=_share(self.bill.useful().gpu_ns, in_run_gpu_ns),
            )
        )

    def _remarks(self) -> tuple[str, ...]:
        """What a reader of the numbers must know to read them right."""
        reports = [book.report for book in self.books]
        remarks = []
        if without := sum(not report.gpus for report in reports):
            remarks.append(
                f"{_runs(without)} without recorded GPUs: nothing is known to have been paid for them."
            )
        if silent := sum(report.gpus > 0 and report.goodput.total is None for report in reports):
            remarks.append(
                f"{_runs(silent)} reported neither steps nor checkpoints: their spend is not explained."
            )
        teams = {report.team for report in reports}
        if unseen := [team for team in self.prices.team_targets if team not in teams]:
            remarks.append(f"No run here names a team with a target: {', '.join(sorted(unseen))}.")
        if self.since_ns is not None:
            remarks.append(
                "Incidents count in full where they began in the window, whenever their cost arose."
            )
        return tuple(remarks)


def _cut(report: Report, edges: list[int]) -> Iterator[tuple[int, dict[str, int], int]]:
    """The run's course, cut where stretches begin: the number of the stretch, GPU-ns by category in it, and
    how many times steps were timed in it.

    Within a bucket of the course, time is taken to be used evenly. What comes before the first edge is left
    out; the rest loses nothing.
    """
    course = report.course
    for number, (bucket, timed) in enumerate(zip(course.buckets, course.timed, strict=True)):
        from_ns = course.start_ns + number * course.bucket_ns
        to_ns = max(from_ns + 1, min(from_ns + course.bucket_ns, report.last_ns))
        cuts = [from_ns, *edges[bisect_right(edges, from_ns) : bisect_left(edges, to_ns)], to_ns]
        for begin_ns, end_ns in pairwise(cuts):
            index = min(bisect_right(edges, begin_ns) - 1, len(edges) - 2)
            if index >= 0:
                place = begin_ns - from_ns, end_ns - from_ns, to_ns - from_ns
                parts = {key: _between(gpu_ns, *place) for key, gpu_ns in bucket.items()}
                yield index, parts, _between(timed, *place)


def _between(amount: int, begin: int, end: int, whole: int) -> int:
    """What of a bucket's amount lies between two moments of it, rounded so that neighbours sum to it."""
    return amount * end // whole - amount * begin // whole


def _together(bills: Iterable[Bill]) -> Bill:
    whole = Bill()
    for bill in bills:
        whole.include(bill)
    return whole


class _Balanced(TypedDict):
    spend: Amount
    useful: Amount
    waste: Amount
    useful_share: float | None
    usd_per_useful_gpu_hour: float | None


def _balance(bill: Bill) -> _Balanced:
    spend, useful = bill.total(), bill.useful()
    return {
        "spend": spend,
        "useful": useful,
        "waste": bill.waste(),
        "useful_share": _share_of(useful, spend) if _is_told(bill) else None,
        "usd_per_useful_gpu_hour": usd_per_hour(spend, useful.gpu_ns),
    }


def _is_told(bill: Bill) -> bool:
    """Whether anything recorded says what it was spent on."""
    return bill.total().gpu_ns > bill.part(Category.UNATTRIBUTED).gpu_ns


def _share_of(part: Amount, whole: Amount) -> float | None:
    """Of the money; where GPUs cost nothing, of their time."""
    return part.usd / whole.usd if whole.usd > 0 else _share(part.gpu_ns, whole.gpu_ns)


def _lost(incident: IncidentReport, categories: tuple[Category, ...]) -> int:
    return sum(incident.losses.get(category.key, 0) for category in categories)


def _added(one: MovedBytes, other: MovedBytes, sign: int = 1) -> MovedBytes:
    return MovedBytes(
        **{name: getattr(one, name) + sign * getattr(other, name) for name in MovedBytes.__struct_fields__}
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"
