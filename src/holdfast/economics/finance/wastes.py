"""The costliest wastes, what to do about each, and the expected gain; and what would tell what is not known.

The gain is computed from the same accounts by a simple rule, which is shown; it is no promise. Without a
rule, it is None.
"""

from collections.abc import Mapping

import msgspec

from holdfast.economics.pricing.spending import CAUSES, Amount, Bill
from holdfast.ledger.categories import Category
from holdfast.ledger.split import Silence

WASTES_MAX = 5


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a cause. once_named: the same if the record names it. instead: the same if most of it
    is of this category. share: the part of `categories` it would gain; `basis` says why.
    """

    todo: str
    basis: str
    categories: tuple[Category, ...] = ()
    share: float = 1.0
    once_named: str = ""
    instead: tuple[Category, str] | None = None

    def advice(self, bill: Bill, run: str, named: str) -> str:
        """What to do. run: the one with most of it. named: what the record names, if it does."""
        if self.once_named and named:
            return self.once_named.replace("NAMED", named)
        if self.instead and 2 * bill.part(self.instead[0]).gpu_ns > bill.part(*self.categories).gpu_ns:
            return self.instead[1]
        return self.todo.replace("RUN", run)


REMEDIES: dict[str, Remedy] = {
    "starting": Remedy(
        todo="Restart from warm processes and a peer's memory: `holdfast run --warm 1`.",
        basis="half of it: restarts that keep what survives skip launch and load",
        categories=(Category.STARTING,),
        share=0.5,
    ),
    "failures": Remedy(
        todo="Notice and place failures at once: `holdfast watch` with alerts; keep a spare node ready.",
        basis="all time until the failures were noticed and located",
        categories=(Category.DEAD_UNDETECTED, Category.LOCALISING),
    ),
    "repeated": Remedy(
        todo="Save at the interval that `holdfast plan cadence --run RUN` computes, with its gain a day.",
        basis="half of it: twice as many checkpoints lose half as much, their own stalls not counted",
        categories=(Category.RECOMPUTED, Category.DISCARDED),
        share=0.5,
    ),
    "slow": Remedy(
        todo="Find the member that delays the others: `holdfast diagnose RUN`; replace or repair it.",
        once_named="Mend what the record names: NAMED.",
        basis="all of it: steps at their reference again",
        categories=(Category.SLOWDOWN,),
    ),
    "waiting": Remedy(
        todo="Save in the background, read data ahead; check the filer with `holdfast diagnose RUN`.",
        basis="all of it: work in the background does not delay steps",
        categories=(Category.DATA_STALL, Category.CHECKPOINT_STALL),
    ),
    "idle": Remedy(
        todo="Give GPUs back, or to a team that waits, when a run ends; `holdfast runs` shows which have.",
        instead=(
            Category.QUEUED,
            "Hold GPUs only once the run can start: most of it was paid before a start.",
        ),
        basis="all of it: GPUs that are not held are not paid for",
        categories=(Category.IDLE, Category.QUEUED),
    ),
    "reserve": Remedy(
        todo="Size the reserve with `holdfast plan run`, and bring drained machines back sooner.",
        basis="the machines out of service; spares pay for themselves elsewhere",
        categories=(Category.DRAINED,),
    ),
    "planned": Remedy(
        todo="Nothing, unless evaluation takes longer than it needs to.", basis="wanted as it is"
    ),
}
"""By the cause's key, one for each."""


class Waste(msgspec.Struct, frozen=True, kw_only=True):
    """One of the costliest causes. run: the run with most of it. bring_usd: see `basis`."""

    cause: str
    label: str
    amount: Amount
    run: str
    run_name: str
    todo: str
    bring_usd: float | None
    basis: str


class UnknownSpend(msgspec.Struct, frozen=True, kw_only=True):
    """Spend of which it is not known what it brought. run: the run with most of it. todo: what would tell."""

    silence: Silence
    label: str
    amount: Amount
    run: str
    run_name: str
    todo: str


def unknowns(bill: Bill, by_run: Mapping[str, Bill], names: Mapping[str, str]) -> tuple[UnknownSpend, ...]:
    """What is not known, by the line that would tell; the costliest first."""
    told = []
    for silence in Silence:
        amount = bill.under(silence)
        if amount.gpu_ns:
            run = max(by_run, key=lambda run: (by_run[run].under(silence).gpu_ns, run))
            told.append(
                UnknownSpend(
                    silence=silence,
                    label=silence.label,
                    amount=amount,
                    run=run,
                    run_name=names[run],
                    todo=silence.remedy.replace("RUN", run),
                )
            )
    return tuple(sorted(told, key=lambda one: (-one.amount.usd, -one.amount.gpu_ns)))


def wastes(
    bill: Bill, by_run: Mapping[str, Bill], names: Mapping[str, str], named: Mapping[str, str]
) -> tuple[Waste, ...]:
    """The costliest first. names: of the runs. named: what the record names as
    the costliest incident of a cause, and where, by the cause's key."""
    found = [(bill.part(*cause.categories), cause) for cause in CAUSES if bill.part(*cause.categories).gpu_ns]
    found.sort(key=lambda one: (-one[0].usd, -one[0].gpu_ns))
    told = []
    for amount, cause in found[:WASTES_MAX]:
        remedy, categories = REMEDIES[cause.key], cause.categories
        run = max(by_run, key=lambda run: (by_run[run].part(*categories).gpu_ns, run))
        told.append(
            Waste(
                cause=cause.key,
                label=cause.label,
                amount=amount,
                run=run,
                run_name=names[run],
                todo=remedy.advice(bill, run, named.get(cause.key, "")),
                bring_usd=bill.part(*remedy.categories).usd * remedy.share if remedy.categories else None,
                basis=remedy.basis,
            )
        )
    return tuple(told)
