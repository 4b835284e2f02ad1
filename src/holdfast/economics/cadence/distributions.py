"""Parse distributions of the time between failures: exponential, weibull:0.7, lognormal:1, gaps:FILE."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from holdfast.economics.cadence import renewal
from holdfast.economics.cadence.advice import DURABLE, Simulated
from holdfast.economics.cadence.inputs import CadenceInputs
from holdfast.record.errors import InputError

GAPS_FILE_BYTES_MAX = 1 << 26


def with_gaps(given: CadenceInputs, gaps: renewal.RecordedGaps | None) -> CadenceInputs:
    """The given inputs with the mean of the recorded gaps; `InputError` if they contradict each other."""
    rates = {
        "--mtbf": given.mtbf_s,
        "--failures-per-1000-node-days": given.failures_per_1000_node_days,
        "--distribution gaps:FILE": gaps,
    }
    named = [name for name, value in rates.items() if value is not None]
    if len(named) > 1:
        raise InputError(f"{' and '.join(named)} both say how often the run fails.", hint="Give one of them.")
    _check_levels([level.name for level in given.levels])
    if gaps is None:
        return given
    return msgspec.structs.replace(given, mtbf_s=gaps.mean_s, mtbf_source="their mean")


def _check_levels(names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise InputError("Two levels have the same name.", hint="Give each level once.")
    if DURABLE in names:
        raise InputError(
            f"A level cannot be called {DURABLE}: that is the level of --stall, which survives any failure.",
            hint="Give only the others as levels, such as memory:0.5s:90%.",
        )


def simulated(
    distribution: str, gaps: renewal.GapDistribution | None, mtbf_s: float, seed: int
) -> Simulated | None:
    """Drawn gaps of this distribution; None if it is exponential, which has exact formulas."""
    kind, colon, shape = distribution.partition(":")
    if kind == "exponential" and not colon:
        return None
    if gaps is None:
        gaps = renewal.FamilyGaps(kind=_kind(distribution), mtbf_s=mtbf_s, shape=_shape(shape))
    words = f"as in {shape}" if kind == "gaps" else f"{kind}, shape {shape}"
    return Simulated(distribution=words, drawn=gaps.draw(np.random.default_rng(seed)))


def _kind(distribution: str) -> renewal.Kind:
    for kind in renewal.KINDS:
        if distribution.startswith(f"{kind}:") and kind != "exponential":
            return kind
    raise InputError(
        f"{distribution!r} is not a distribution of times between failures.",
        hint="Write exponential, weibull:0.7, gamma:0.5, lognormal:1 or gaps:FILE.",
    )


def _shape(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a shape.", hint="Write a number, as in weibull:0.7.") from None


def read_gaps(distribution: str, seconds: Callable[[str], float]) -> renewal.RecordedGaps | None:
    """The gaps of `gaps:FILE`, which has one time a line; empty lines and comments after # are ignored.

    seconds: parses a time, and raises `ValueError` if it cannot.
    """
    kind, _, file = distribution.partition(":")
    if kind != "gaps":
        return None
    try:
        with Path(file).open(encoding="utf-8") as lines:
            text = lines.read(GAPS_FILE_BYTES_MAX)
        found = (line.partition("#")[0].strip() for line in text.splitlines())
        return renewal.RecordedGaps([seconds(line) for line in found if line])
    except UnicodeDecodeError:
        raise InputError(f"{file} is not UTF-8 text.", hint="Write one time a line.") from None
    except ValueError as error:
        raise InputError(f"In {file}, {error}", hint="Write one time a line.") from None
    except OSError as error:
        raise InputError(
            f"{file or 'gaps:'} cannot be read: {error.strerror}.", hint="Name a file with one time a line."
        ) from None
