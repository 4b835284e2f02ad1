"""Deliberate faults: planned ones, for an exact place in a run, and storms, which strike at random times.

This module only plans; it strikes nothing. The same seed gives the same faults, so that a problem found by a
fault can be reproduced.
"""

import random
import re
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.untrusted import UNDECODABLE
from holdfast.run.wire import Corruptible, FaultKind, Moment, PlannedFault, PlannedKind, Strike

FAULTS_MAX = 10_000
BITS_MAX = 64
"""The most bits that one fault flips."""
STEP_MOMENTS: tuple[Moment, ...] = ("lane", "reduce", "commit")
"""Moments that every step has."""
RECOVERY_MOMENTS: tuple[Moment, ...] = ("regroup", "state", "join")
"""Moments that occur only after another fault, so a fault in one is planned together with its cause."""
STORM_FOR_S = 3.0
STORM_WEIGHTS: dict[FaultKind, int] = {"kill": 6, "pause": 2, "node": 1}
"""How often a storm chooses each: workers die more often than machines."""

_HINT = (
    'A fault reads: [[fault]] step = 7, moment = "reduce", rank = 2, fault = "kill", for_s = 3.0; '
    'only step is needed. fault = "corrupt" flips bits of a "gradient", "activation", "weight" or '
    '"optimizer": what = "weight", bits = 1, lasting = false.'
)


class _FaultTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[fault]]` of a plan."""

    step: Annotated[int, msgspec.Meta(ge=1)]
    moment: Moment = "lane"
    rank: Annotated[int, msgspec.Meta(ge=0)] = 0
    fault: PlannedKind = "kill"
    for_s: Annotated[float, msgspec.Meta(ge=0)] = 3.0
    what: Corruptible = "gradient"
    bits: Annotated[int, msgspec.Meta(ge=1, le=BITS_MAX)] = 1
    lasting: bool = False


class _Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    fault: Annotated[list[object], msgspec.Meta(min_length=1, max_length=FAULTS_MAX)]


def read_plan(path: Path) -> tuple[PlannedFault, ...]:
    """The faults in a TOML file, numbered from 1 in file order."""
    try:
        text = path.read_text(encoding="utf-8")
        tables = msgspec.convert(tomllib.loads(text), _Plan).fault
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", hint=_HINT) from None
    except UNDECODABLE as error:
        raise InputError(f"{path} is not a plan of faults: {error}.", hint=_HINT) from None
    return tuple(_fault(path, text, number, table) for number, table in enumerate(tables, start=1))


def _fault(path: Path, text: str, number: int, table: object) -> PlannedFault:
    try:
        fault = msgspec.convert(table, _FaultTable)
    except msgspec.ValidationError as error:
        sentence = f"{path}, line {_line_of(text, number)}: {error}."
        raise InputError(sentence, hint=_HINT) from None
    if fault.fault == "corrupt" and fault.moment != "lane":
        sentence = (
            f"{path}, line {_line_of(text, number)}: bits are flipped in a lane, not at {fault.moment!r}."
        )
        raise InputError(sentence, hint=_HINT)
    return PlannedFault(id=number, **msgspec.structs.asdict(fault))


def _line_of(text: str, number: int) -> int:
    """The line on which the table of this number begins; 1 if tables are not written as `[[fault]]`."""
    begins = [match.start() for match in re.finditer(r"^[ \t]*\[\[\s*fault\s*\]\]", text, re.MULTILINE)]
    return text.count("\n", 0, begins[number - 1]) + 1 if number <= len(begins) else 1


def random_plan(
    seed: int,
    *,
    steps: int,
    count: int,
    ranks: int,
    kinds: tuple[FaultKind, ...] = ("kill",),
    for_s: float = STORM_FOR_S,
) -> tuple[PlannedFault, ...]:
    """`count` faults spread over a run of `steps` steps and `ranks` members. Six or more cover every moment.

    Every other fault strikes during the recovery from the one before it, at the same step.
    """
    generator = random.Random(seed)
    strikes = (count + 1) // 2
    at = sorted(step % steps + 1 for step in generator.sample(range(max(steps, strikes)), strikes))
    faults: list[PlannedFault] = []
    for number in range(count):
        moments = RECOVERY_MOMENTS if number % 2 else STEP_MOMENTS
        faults.append(
            PlannedFault(
                id=number + 1,
                step=at[number // 2],
                moment=moments[number // 2 % len(moments)],
                rank=generator.randrange(ranks),
                fault=generator.choice(kinds),
                for_s=for_s,
            )
        )
    return tuple(faults)


class Storm:
    """Random faults, on average `rate_per_min` a minute, without end."""

    def __init__(self, rate_per_min: float, seed: int, kinds: tuple[FaultKind, ...]) -> None:
        self._rate_per_s = rate_per_min / 60
        self._generator = random.Random(seed)
        self._kinds = kinds
        self._weights = [STORM_WEIGHTS[kind] for kind in kinds]

    def next(self) -> tuple[float, Strike]:
        """How many seconds to wait, and the strike to make then."""
        wait_s = self._generator.expovariate(self._rate_per_s)
        fault = self._generator.choices(self._kinds, self._weights)[0]
        return wait_s, Strike(fault=fault, seed=self._generator.getrandbits(32), for_s=STORM_FOR_S)
