"""The cost of an incident or a run: five layers side by side, and the same loss as training progress.

The ledger says how much GPU-time was lost to which cause; this module prices it. A layer shows its formula
and every input with its source, so that readers can check each number. The layers answer different questions
and are not one bill: direct compute, rollback and labour do not overlap and add up; reserved capacity counts
only the value beyond the price paid; schedule slip sees the same GPU-hours as time. So a sum is given as a
range, with what it leaves out. Everything is linear in the ledger's amounts: a run's layers are the sums of
its incidents' and of the losses that no incident explains.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from fractions import Fraction

import msgspec

from holdfast import wording
from holdfast.economics.pricing import layers
from holdfast.economics.pricing.prices import Priced, Prices
from holdfast.economics.pricing.pricing import ACCRUED, Charge, Pricing, price_changes
from holdfast.ledger.categories import Category
from holdfast.ledger.remarks import device_remarks, spread_remark, unknown_remarks
from holdfast.ledger.report import IncidentReport, Report
from holdfast.ledger.reporting import recorded_price_of
from holdfast.ledger.split import Silence
from holdfast.record.errors import InputError
from holdfast.wording.units import DAY_NS, HOUR_NS, HOURS_PER_DAY, MINUTE_NS

LEDGER = "the ledger"

ROLLBACK = frozenset({Category.RECOMPUTED.key, Category.DISCARDED.key})
"""Work that was thrown away, and its repetition. The rest of a loss is direct."""

NO_LOSS = frozenset({Category.USEFUL.key, Category.UNATTRIBUTED.key, *Silence})
"""Useful time is not lost, and of time that is not known it is not known."""

NO_DELAY = frozenset({Category.IDLE.key, Category.SPARE.key, Category.DRAINED.key})
"""GPUs outside a run cost money, but do not delay it."""

_STEPPING = tuple(category for category in Category if Category.USEFUL <= category < Category.UNATTRIBUTED)


class _Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A loss to price: GPU-ns by category, their cost at each hour's own price, and people's work.

    calls: incidents for which people were called; response_ns: how long those took together
    """

    gpu_ns: Mapping[str, int]
    usd: Mapping[str, Fraction]
    calls: int = 0
    response_ns: int = 0

    def of(self, keys: Iterable[str]) -> int:
        return sum(self.gpu_ns.get(key, 0) for key in keys)

    def usd_of(self, keys: Iterable[str]) -> float:
        return float(sum((self.usd.get(key, Fraction()) for key in keys), Fraction()))

    @property
    def direct(self) -> set[str]:
        return self.gpu_ns.keys() - ROLLBACK

    @property
    def delay(self) -> set[str]:
        return self.gpu_ns.keys() - NO_DELAY


def incident_cost(report: Report, name: str, prices: Prices) -> layers.IncidentCost:
    incident = next((one for one in report.incidents if one.name == name), None)
    if incident is None:
        raise _no_incident(report, name)
    pricing = _Pricing(report, prices)
    remarks = [said] if (said := spread_remark(incident, report.gpus, report.last_ns)) else []
    remarks += pricing.remarks
    if incident.recovered_ns is None:
        remarks.append(
            "The incident was not over where the log ends; this is what it had cost by then."
            if report.is_cut_off
            else "The incident is not over; this is what it has cost so far."
        )
    if not incident.evidence:
        remarks.append("It was not reported: the ledger found it, and no response time is counted.")
    return layers.IncidentCost(
        run=report.run,
        run_name=report.name,
        name=name,
        what=incident.what,
        subject=incident.subject,
        began_ns=incident.began_ns,
        ended_ns=report.last_ns if incident.recovered_ns is None else incident.recovered_ns,
        over=incident.recovered_ns is not None,
        is_cut_off=incident.recovered_ns is None and report.is_cut_off,
        spent_ns=incident.spent_ns,
        gpus=report.gpus,
        stack=pricing.stack(pricing.loss(incident)),
        remarks=tuple(remarks),
    )


def run_cost(report: Report, prices: Prices) -> layers.RunCost:
    pricing = _Pricing(report, prices)
    losses = [pricing.loss(incident) for incident in report.incidents]
    within = _summed(losses)
    elsewhere = pricing.elsewhere(within)
    return layers.RunCost(
        run=report.run,
        run_name=report.name,
        first_ns=report.first_ns,
        last_ns=report.last_ns,
        window=report.window,
        gpus=report.gpus,
        paid_gpu_hours=report.paid_gpu_ns / HOUR_NS,
        split=report.split,
        unknown_usd=pricing.unknown_usd(),
        total=pricing.stack(_summed((within, elsewhere))),
        in_incidents=pricing.stack(within),
        elsewhere=pricing.stack(elsewhere),
        incidents=tuple(
            pricing.line(incident, loss) for incident, loss in zip(report.incidents, losses, strict=True)
        ),
        checkpointing=pricing.checkpointing(),
        remarks=pricing.remarks,
    )


class _Pricing:
    """A report with the prices that hold for it."""

    def __init__(self, report: Report, prices: Prices) -> None:
        self.report = report
        pricing = Pricing(report, prices)
        every = pricing.charges()
        self.charges = [charge for charge in every if ACCRUED not in charge.parts]
        latest = (self.charges or every)[-1].price  # a window may have nothing but accrued time
        self.prices = msgspec.structs.replace(prices, usd_per_gpu_hour=latest)
        self.day = self.prices.day_of_delay(report.gpus)
        self.remarks = (
            *_remarks(report, prices, pricing.overruled()),
            *price_changes([every], prices.currency),
            *_estimates(report, pricing),
        )

    def loss(self, incident: IncidentReport) -> _Loss:
        """An incident's loss. People do not work on unnoticed incidents, or on those over before they come.

        The part of people's work within the window counts; a call counts if it came in the window.
        """
        report = self.report
        over_ns = report.known_ns if incident.recovered_ns is None else incident.recovered_ns
        called = bool(incident.evidence) and (
            max(0, over_ns - incident.noticed_ns) >= self.prices.paged_after_minutes.value * MINUTE_NS
        )
        from_ns, to_ns = max(incident.noticed_ns, report.first_ns), min(over_ns, report.last_ns)
        began_here = report.first_ns <= incident.noticed_ns and (
            incident.noticed_ns < report.last_ns or report.last_ns == report.known_ns
        )
        return _Loss(
            gpu_ns=incident.losses,
            usd=_priced_parts((charge, charge.incidents.get(incident.name, {})) for charge in self.charges),
            calls=int(called and began_here),
            response_ns=max(0, to_ns - from_ns) if called else 0,
        )

    def elsewhere(self, within: _Loss) -> _Loss:
        """The losses that no incident explains."""
        whole = _priced_parts((charge, charge.parts) for charge in self.charges)
        return _Loss(
            gpu_ns={
                key: gpu_ns - within.gpu_ns.get(key, 0)
                for key, gpu_ns in self.report.partition.items()
                if key not in NO_LOSS and gpu_ns != within.gpu_ns.get(key, 0)
            },
            usd={
                key: usd - within.usd.get(key, Fraction()) for key, usd in whole.items() if key not in NO_LOSS
            },
        )

    def unknown_usd(self) -> float | None:
        """The price paid for GPU-hours of which it is not known whether they were lost."""
        whole = _priced_parts((charge, charge.parts) for charge in self.charges)
        return self._if_known(float(sum((whole.get(silence, Fraction()) for silence in Silence), Fraction())))

    def line(self, incident: IncidentReport, loss: _Loss) -> layers.IncidentLine:
        return layers.IncidentLine(
            name=incident.name,
            what=incident.what,
            subject=incident.subject,
            began_ns=incident.began_ns,
            lost_gpu_hours=incident.lost_gpu_ns / HOUR_NS,
            basis=incident.basis,
            usd={layer.key: layer.usd for layer in self._layers(loss)},
        )

    def stack(self, loss: _Loss) -> layers.Stack:
        found = self._layers(loss)
        return layers.Stack(
            lost_gpu_hours=sum(loss.gpu_ns.values()) / HOUR_NS,
            layers=found,
            together=self._together({layer.key: layer.usd for layer in found}),
            progress=self._progress(loss),
            basis=self._basis(loss.gpu_ns),
        )

    def _basis(self, keys: Iterable[str]) -> str:
        """What GPU-hours of these categories are based on, if that is an estimate."""
        return self.report.basis if set(keys) & set(self.report.estimated) else ""

    # -- the layers ----------------------------------------------------------------------------------

    def _layers(self, loss: _Loss) -> tuple[layers.Layer, ...]:
        direct, rollback = (
            "GPU-hours lost, rollback apart × price",
            "GPU-hours discarded and recomputed × price",
        )
        rests_on: tuple[tuple[Iterable[str], layers.Layer], ...] = (
            (loss.direct, self._paid_for("direct_compute", direct, loss, loss.direct)),
            (loss.gpu_ns, self._reserved_capacity(loss)),
            (loss.gpu_ns.keys() & ROLLBACK, self._paid_for("rollback", rollback, loss, ROLLBACK)),
            ((), self._response_labour(loss)),
            (loss.delay, self._schedule_slip(loss)),
        )
        return tuple(msgspec.structs.replace(layer, basis=self._basis(keys)) for keys, layer in rests_on)

    def _paid_for(self, key: layers.LayerKey, formula: str, loss: _Loss, keys: Set[str]) -> layers.Layer:
        """The price paid for the GPU-hours lost under these categories."""
        parts = [
            _measured(Category[name.upper()].label, gpu_ns / HOUR_NS, "GPU-h")
            for name, gpu_ns in loss.gpu_ns.items()
            if name in keys
        ]
        return layers.Layer(
            key=key,
            title=layers.LAYER_TITLES[key],
            formula=formula,
            inputs=(*parts, _priced("price", self._price(loss), "USD/GPU-h")),
            usd=self._if_known(loss.usd_of(keys)),
            gpu_hours=loss.of(keys) / HOUR_NS,
        )

    def _price(self, loss: _Loss) -> Priced:
        """The price of an hour of the loss, or the mean of several prices."""
        prices = {charge.usd_per_gpu_hour: charge.price for charge in self.charges if charge.gpu_ns}
        if len(prices) < 2:
            return next(iter(prices.values()), self.prices.usd_per_gpu_hour)
        gpu_ns, usd = loss.of(loss.gpu_ns), loss.usd_of(loss.gpu_ns)
        if not gpu_ns:
            gpu_ns = sum(charge.gpu_ns for charge in self.charges)
            usd = float(sum((charge.usd(charge.gpu_ns) for charge in self.charges), Fraction()))
        sources = " and ".join(dict.fromkeys(price.source for price in prices.values()))
        currency = self.prices.currency
        least = f"{float(min(prices)) / currency.usd_per:,.2f}"
        span = f"{least} to {currency.said(max(prices))}, each hour at its own"
        return Priced(
            value=usd / (gpu_ns / HOUR_NS),
            assumed=any(price.assumed for price in prices.values()),
            source=f"mean of {span}; {sources}",
        )

    def _reserved_capacity(self, loss: _Loss) -> layers.Layer:
        hours = sum(loss.gpu_ns.values()) / HOUR_NS
        multiplier = self.prices.opportunity_multiplier
        return layers.Layer(
            key="reserved_capacity",
            title=layers.LAYER_TITLES["reserved_capacity"],
            formula="GPU-hours lost × price × (multiplier − 1)",
            inputs=(
                _measured("GPU-hours lost", hours, "GPU-h"),
                _priced("price", self._price(loss), "USD/GPU-h"),
                _priced("multiplier", multiplier, "× the price"),
            ),
            usd=self._if_known(loss.usd_of(loss.gpu_ns) * (multiplier.value - 1)),
            gpu_hours=hours,
        )

    def _response_labour(self, loss: _Loss) -> layers.Layer:
        prices, hours = self.prices, loss.response_ns / HOUR_NS
        person_hours = prices.responders.value * hours + prices.follow_up_hours.value * loss.calls
        return layers.Layer(
            key="response_labour",
            title=layers.LAYER_TITLES["response_labour"],
            formula="rate × (people × hours + follow-up × calls)",
            inputs=(
                _measured("calls", loss.calls, "incident" if loss.calls == 1 else "incidents"),
                _measured("hours", hours, "h until over"),
                _priced("called after", prices.paged_after_minutes, "min"),
                _priced("people", prices.responders, "people"),
                _priced("follow-up", prices.follow_up_hours, "h a call"),
                _priced("rate", prices.labour_usd_per_hour, "USD/h"),
            ),
            usd=person_hours * prices.labour_usd_per_hour.value,
            gpu_hours=None,
        )

    def _schedule_slip(self, loss: _Loss) -> layers.Layer:
        hours = self._run_hours(loss.of(loss.delay))
        day, usd = self.day, None if hours is None else hours / HOURS_PER_DAY * self.day.value
        if day.assumed and hours:
            # A day of the run's GPUs, each hour at its own price, so that months sum to the whole.
            usd = loss.usd_of(loss.delay)
            day = Priced(value=usd / (hours / HOURS_PER_DAY), assumed=True, source=day.source)
        return layers.Layer(
            key="schedule_slip",
            title=layers.LAYER_TITLES["schedule_slip"],
            formula="hours of the whole run lost ÷ 24 × value of a day",
            inputs=(
                *(() if hours is None else (_measured("hours of the run", hours, "h"),)),
                _priced("value of a day", day, "USD/day"),
            ),
            usd=usd,
            gpu_hours=None,
        )

    def _together(self, usd: Mapping[layers.LayerKey, float | None]) -> layers.Together | None:
        known = {key: amount for key, amount in usd.items() if amount is not None}
        if len(known) < len(usd):
            return None
        bill = known["direct_compute"] + known["rollback"] + known["response_labour"]
        most = bill + known["reserved_capacity"]
        caveat = (
            "The least is direct compute, rollback and labour, which do not overlap. The most adds what "
            "others would have paid for the capacity beyond its price"
        )
        if self.day.assumed:
            caveat += (
                ". Schedule slip is in neither: no value of a day is given, and at the run's own price it is "
                "the same GPU-hours again."
            )
        else:
            most += known["schedule_slip"]
            caveat += ", and what the delay is worth."
        return layers.Together(usd_min=bill, usd_max=most, caveat=caveat)

    def _if_known(self, usd: float) -> float | None:
        """The amount; None if the number of GPUs is unknown, and so are the GPU-hours."""
        return usd if self.report.gpus else None

    # -- progress ------------------------------------------------------------------------------------

    def _progress(self, loss: _Loss) -> layers.LostProgress:
        hours = self._run_hours(loss.of(loss.delay))
        steps = self._steps(loss.of(loss.delay))
        return layers.LostProgress(
            run_hours=hours,
            steps=steps,
            tokens=self._tokens(steps),
            day_share=None if hours is None else hours / HOURS_PER_DAY,
        )

    def _run_hours(self, gpu_ns: float) -> float | None:
        return gpu_ns / HOUR_NS / self.report.gpus if self.report.gpus else None

    def _steps(self, gpu_ns: float) -> float | None:
        reference = self.report.reference
        return gpu_ns / reference.work_gpu_ns if reference and reference.work_gpu_ns else None

    def _tokens(self, steps: float | None) -> float | None:
        per_step = self.report.tokens_per_step
        return steps * per_step if steps is not None and per_step else None

    # -- checkpoints ---------------------------------------------------------------------------------

    def checkpointing(self) -> layers.CheckpointThroughput:
        report, saved = self.report, self.report.saved
        stall = report.partition.get(Category.CHECKPOINT_STALL.key, 0)
        stepping = sum(report.partition.get(category.key, 0) for category in _STEPPING)
        fatal = [incident for incident in report.incidents if incident.severity == "fatal"]
        recovery_gpu_ns = sum(incident.lost_gpu_ns for incident in fatal)
        mean, worst = saved.between_steps_mean, saved.unsaved_steps_max
        is_over = report.ended is not None and report.ended.outcome == "completed"
        at_risk = 0 if is_over else saved.since_steps
        has_saved = report.counts.saves > 0 or stall > 0
        return layers.CheckpointThroughput(
            efficiency=1 - stall / stepping if stepping and has_saved else None,
            healthy=self._per_day(self._steps(DAY_NS * report.gpus)),
            actual=self._per_day(self._a_day(report.counts.steps)),
            lost_to_saving=self._per_day(self._a_day(self._steps(stall))),
            lost_to_recovery=self._per_day(self._a_day(self._steps(recovery_gpu_ns))),
            recoveries=len(fatal),
            recovery_gpu_hours=recovery_gpu_ns / HOUR_NS / len(fatal) if fatal else None,
            exposure_now=None if worst is None and not is_over else self._exposure(at_risk),
            exposure_mean=None if mean is None else self._exposure(mean / 2),
            exposure_worst=None if worst is None else self._exposure(worst),
            basis=report.basis,
        )

    def _a_day(self, steps: float | None) -> float | None:
        """Over the time that is known: in the rest there may have been as many, or none."""
        elapsed_ns, known = self.report.last_ns - self.report.first_ns, self.report.split.known_share
        known_ns = elapsed_ns if known is None else elapsed_ns * known
        return steps / (known_ns / DAY_NS) if steps is not None and known_ns else None

    def _per_day(self, steps: float | None) -> layers.PerDay | None:
        return None if steps is None else layers.PerDay(steps=steps, tokens=self._tokens(steps))

    def _exposure(self, steps: float) -> layers.Exposure:
        reference, gpus = self.report.reference, self.report.gpus
        gpu_hours = None if reference is None else steps * reference.work_gpu_ns / HOUR_NS
        return layers.Exposure(
            steps=steps,
            tokens=self._tokens(steps),
            gpu_hours=gpu_hours,
            usd=None if gpu_hours is None else gpu_hours * self.prices.usd_per_gpu_hour.value,
            day_share=None if gpu_hours is None or not gpus else gpu_hours / gpus / HOURS_PER_DAY,
        )


def _summed(losses: Iterable[_Loss]) -> _Loss:
    known = list(losses)
    lost = {key for loss in known for key in loss.gpu_ns}
    return _Loss(
        gpu_ns={one.key: sum(loss.of([one.key]) for loss in known) for one in Category if one.key in lost},
        usd={
            key: sum((loss.usd.get(key, Fraction()) for loss in known), Fraction())
            for key in {key for loss in known for key in loss.usd}
        },
        calls=sum(loss.calls for loss in known),
        response_ns=sum(loss.response_ns for loss in known),
    )


def _priced_parts(parts: Iterable[tuple[Charge, Mapping[str, int]]]) -> dict[str, Fraction]:
    """The cost of these parts of charges, by category."""
    usd: defaultdict[str, Fraction] = defaultdict(Fraction)
    for charge, gpu_ns in parts:
        for key, part in gpu_ns.items():
            usd[key] += charge.usd(part)
    return usd


def _measured(name: str, value: float, unit: str) -> layers.Input:
    return layers.Input(name=name, value=value, unit=unit, assumed=False, source=LEDGER)


def _priced(name: str, price: Priced, unit: str) -> layers.Input:
    return layers.Input(name=name, value=price.value, unit=unit, assumed=price.assumed, source=price.source)


def _remarks(report: Report, prices: Prices, overruled: str) -> Iterable[str]:
    """Remarks that help readers interpret the amounts correctly."""
    price, said = prices.usd_per_gpu_hour, prices.currency.said
    if not report.gpus:
        yield "No GPUs are recorded for this run, so only labour can be priced; import it with --gpus."
    recorded = recorded_price_of(report.segments)
    if recorded is not None and not price.assumed and price.value != recorded:
        yield (
            f"The run recorded {prices.said_paid(recorded)}; the {said(price.value)} of {price.source} "
            "are not used."
        )
    if overruled:
        yield overruled
    yield from device_remarks(report)
    if report.window != (None, None):
        yield "Only this window is priced; incidents count only with their cost in it."
    if report.accrued is not None:
        hours = report.accrued.gpu_ns / HOUR_NS
        yield (
            f"{hours:,.1f} GPU-hours since the last event are accrued and in no layer: the run goes on, and "
            "their result is not known yet."
        )
    if report.split.unknown_gpu_ns:
        unknown = wording.percent(report.split.unknown_gpu_ns / report.paid_gpu_ns)
        yield f"{unknown} of what was paid for is in no layer: nothing recorded says whether it was lost."
    yield from unknown_remarks(report)


def _estimates(report: Report, pricing: Pricing) -> Iterable[str]:
    """Remarks on costs that depend on facts missing from the record."""
    said = pricing.prices.currency.said
    if report.is_cut_off and report.gpus and not report.is_untimed:
        day = said(pricing.held(report.gpus, report.last_ns, report.last_ns + DAY_NS), decimals=0)
        yield (
            "The log ends before the run does, and nothing is counted after it. A day more on its "
            f"{wording.many(report.gpus, 'GPU')} costs {day}."
        )
    doubt_gpu_ns = (
        0 if report.reference is None else sum(one.doubt_gpu_ns for one in report.reference.stretches)
    )
    if doubt_gpu_ns:
        money = said(pricing.charges()[-1].usd(doubt_gpu_ns))
        yield (
            f"{doubt_gpu_ns / HOUR_NS:,.2f} GPU-hours ({money}) are in no layer: steps grew longer "
            "for good and nothing recorded says why. If that is a slowdown, they are lost."
        )
    yield from (opinion.sentence for opinion in report.opinions if opinion.ratio > 1)
    gaps = [gap for gap in report.gaps if not gap.given_back]
    if gaps:
        money = said(sum((pricing.held(gap.gpus, gap.from_ns, gap.to_ns) for gap in gaps), Fraction()))
        yield (
            f"{sum(gap.gpu_ns for gap in gaps) / HOUR_NS:,.2f} GPU-hours between attempts ({money}) "
            "are in no layer: nothing says that the GPUs were held. Record a cost.rate, or import the "
            "scheduler's accounting (sacct)."
        )


def _no_incident(report: Report, name: str) -> InputError:
    sentence = f"Run {report.run!r} has no incident {name!r}."
    if not report.incidents:
        return InputError(sentence, hint=f"It has none. `holdfast cost {report.run}` prices the whole run.")
    return InputError(sentence, hint=f"`holdfast report {report.run}` lists its incidents.")
