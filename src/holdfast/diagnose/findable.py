"""Which of the known causes can be named with what is measured, and the cheapest step to more: for
`holdfast doctor`. The causes are the mechanisms, and they are named by the rules of the weighing.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from holdfast.detect.detecting import measured, recorded, senses
from holdfast.detect.devices import SIGN_OF_CODES
from holdfast.detect.rules import RULES
from holdfast.detect.signs import Sign
from holdfast.diagnose.assess import BANS_EARLY_MIN, BANS_MIN, HELD_UP
from holdfast.diagnose.mechanisms import MECHANISMS, Mechanism
from holdfast.diagnose.weighing import GRAVE_WEIGHT, PRIOR
from holdfast.signals.exporters import ENGINES, RUN, Exporter, exporter_of, switched_on
from holdfast.signals.stepped import STEP
from holdfast.topology.draft import SECTIONS
from holdfast.topology.graph import Kind

STEPS = "the steps of runs"
NAME_STEPS = "Name the steps of your runs with --step-metric NAME, or a run's log with --step-log PATH."
TOPOLOGY = "the topology"
LISTED = {kind: section for section, kind, _, _ in SECTIONS}
"""Kinds of subjects that the topology must have before one of them can be named, and their sections of its
file. Machines and what is in them are known by labels.
"""
GRAVE = frozenset({"xid", *SIGN_OF_CODES, *(rule.sign for rule in RULES if rule.grave)})
"""Signs that may be a hardware fault by themselves."""

_USUAL = {sense.sign: sense.metrics[0] for sense in reversed(senses())}
"""By sign, the first metric of the usual way to read it."""


class FindableCause(msgspec.Struct, frozen=True, kw_only=True):
    """A known cause, and what it is. by: if it cannot be found, where a sign of it could come from."""

    cause: str
    title: str
    is_findable: bool
    by: tuple[str, ...]


class NextStep(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next. adds: the causes that can be found then. is_there: its exporter has to show more.
    sections: of the topology file, to be filled in as well.
    """

    of: str
    is_there: bool
    how: tuple[str, ...]
    adds: tuple[str, ...]
    sections: tuple[str, ...] = ()


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """What would be visible if an exporter showed more. how: what to do, line by line."""

    exporter: str
    is_there: bool
    metrics: tuple[str, ...]
    signs: tuple[str, ...]
    causes: tuple[str, ...]
    how: tuple[str, ...]


def signs_of(told: frozenset[str]) -> frozenset[Sign]:
    """The signs that these metrics can show. Checkpoints are in the record of a run of `holdfast run`."""
    return measured(told) | (recorded() if any(map(RUN.shows, told - {STEP})) else frozenset())


def findable(told: frozenset[str], kinds: Collection[Kind]) -> list[Mechanism]:
    """The causes that can be named with these metrics, in a topology with these kinds of subjects."""
    signs = signs_of(told)
    return [one for one in relevant(kinds) if not _section(one, kinds) and _can_be_named(one, signs)]


def relevant(kinds: Collection[Kind]) -> Sequence[Mechanism]:
    """The known causes; those of inference pools only where there are any."""
    return [one for one in MECHANISMS if "pool" in kinds or {*map(_shown_by, one.pointers)} != {ENGINES}]


def _section(mechanism: Mechanism, kinds: Collection[Kind]) -> str:
    """The section of the topology file without which no subject can be named; empty if one can."""
    where = mechanism.origin.kinds
    if any(kind in kinds or kind not in LISTED for kind in where):
        return ""
    return next(section for kind, section in LISTED.items() if kind in where)


def _can_be_named(mechanism: Mechanism, signs: Collection[Sign]) -> bool:
    """Whether it can be considered and, without steps, be sure enough by its own signs alone."""
    if not any(sign in signs for sign in mechanism.pointers):
        return False
    if any(sign in signs for sign in HELD_UP):
        return True
    if mechanism.reach == "stall":
        return False
    bans = PRIOR + sum(
        weight for sign, weight in (*mechanism.shows.items(), *mechanism.follows.items()) if sign in signs
    )
    is_grave = any(sign in signs and sign in GRAVE for sign in mechanism.shows)
    return bans + GRAVE_WEIGHT >= BANS_MIN if is_grave else bans >= BANS_EARLY_MIN


def causes(
    told: frozenset[str], exporter: Callable[[str], Exporter], kinds: Collection[Kind]
) -> tuple[FindableCause, ...]:
    """Every known cause. exporter: which one would show a metric here."""
    found = {one.name for one in findable(told, kinds)}
    unlisted = {one.name: _section(one, kinds) for one in findable(told, {*kinds, *LISTED})}
    signs = signs_of(told)

    def by(one: Mechanism) -> tuple[str, ...]:
        if one.name in found:
            return ()
        if one.name in unlisted:
            return (f"{unlisted[one.name]} in {TOPOLOGY}",)
        return _by(one, signs, exporter)

    return tuple(
        FindableCause(
            cause=one.name,
            title=one.title,
            is_findable=one.name in found,
            by=by(one),
        )
        for one in relevant(kinds)
    )


def _by(
    mechanism: Mechanism, signs: Collection[Sign], exporter: Callable[[str], Exporter]
) -> tuple[str, ...]:
    if any(sign in signs for sign in mechanism.pointers):
        return (STEPS,)
    names = (
        STEPS if (metric := _metric(sign)) == STEP else exporter(metric).name for sign in mechanism.pointers
    )
    return tuple(dict.fromkeys(names))


def _shown_by(sign: Sign) -> Exporter:
    return exporter_of(_metric(sign))


def _metric(sign: Sign) -> str:
    """A metric that the sign is read from; of a recorded sign, what runs are recorded by."""
    return _USUAL.get(sign, RUN.prefixes[0])


def next_step(told: frozenset[str], missing: Iterable[Missing], kinds: Collection[Kind]) -> NextStep | None:
    """The cheapest step that makes more causes findable: to name the steps of runs, then to switch on more of
    what is installed, then to install something or to fill in the topology. Of equally cheap ones, that which
    adds most. A step that adds nothing by itself may do so together with the topology: that comes last.
    """
    known = {one.name for one in findable(told, kinds)}

    def step(metrics: Iterable[str], *, of: str, how: tuple[str, ...], is_there: bool = False) -> NextStep:
        after = told | {*metrics}
        then = [] if of == TOPOLOGY else [one for one in findable(after, kinds) if one.name not in known]
        if not then and of != STEPS:
            then = [one for one in findable(after, {*kinds, *LISTED}) if one.name not in known]
        sections = {_section(one, kinds) for one in then}
        return NextStep(
            of=of,
            is_there=is_there,
            how=how,
            adds=tuple(one.name for one in then),
            sections=tuple(section for section in LISTED.values() if section in sections),
        )

    if STEP not in told:
        return step({STEP}, of=STEPS, how=(NAME_STEPS,))
    steps = [step((), of=TOPOLOGY, how=())]
    for one in missing:
        brought = switched_on(one.exporter, one.metrics, is_there=one.is_there)
        steps.append(step(brought, of=one.exporter, how=one.how, is_there=one.is_there))
    return min((one for one in steps if one.adds), key=_effort, default=None)


def _effort(step: NextStep) -> tuple[bool, bool, int]:
    needs_both = bool(step.sections) and step.of != TOPOLOGY
    return needs_both, not step.is_there, -len(step.adds)


def verdict(known: Sequence[FindableCause], step: NextStep | None) -> str:
    """How many causes can be found, and what to do next."""
    found = [one for one in known if one.is_findable]
    if len(found) == len(known):
        return f"You can find all {len(known):,} causes."
    told = f"You can find {len(found) or 'none'} of {len(known):,} causes"
    if step is None:
        return f"{told}, and nothing that is known to be missing would add another."
    if step.of == STEPS:
        told += f", {'but' if found else 'and'} no slowdown of a run is seen or priced"
    how = [f"Let {step.of} show more, as listed above."] if step.is_there else [*step.how]
    if step.sections:
        where = ", ".join(step.sections)
        how.append(f"Add your {where} to the topology file (`holdfast doctor --write FILE` begins one).")
    adds = f" It adds {len(step.adds):,}: {', '.join(step.adds)}." if step.adds else ""
    return f"{told}. The cheapest next step: {' '.join(how)}{adds}"
