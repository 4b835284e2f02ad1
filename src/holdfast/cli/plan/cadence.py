"""`holdfast plan cadence`: how often to checkpoint, and what the present setting costs."""

import math
from pathlib import Path

import click
import msgspec
import numpy as np

from holdfast.cli.flags import option, shared, takes
from holdfast.cli.prices import in_currency, load_planning_prices, prices_option
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import print_json
from holdfast.cli.values import number_between, seconds, seconds_with_unit, some_seconds
from holdfast.economics.cadence import renewal
from holdfast.economics.cadence.advice import DURABLE, Simulated, advise
from holdfast.economics.cadence.cadence import CheckpointLevel
from holdfast.economics.cadence.inputs import GIVEN, CadenceInputs, Recorded, read_run, settle
from holdfast.record.errors import InputError
from holdfast.record.runs import find_run

COUNT_MAX = 10**7
GAPS_FILE_BYTES_MAX = 1 << 26


def _level(text: str) -> CheckpointLevel:
    """NAME:STALL:SHARE, as in memory:0.5s:90% or memory:0.5s:0.9."""
    name, *rest = text.split(":")
    if len(rest) != 2 or not name:
        raise click.BadParameter(f"{text!r} is not a level; write NAME:STALL:SHARE, as in memory:0.5s:90%.")
    stall, share = rest
    try:
        survives = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
    except ValueError:
        survives = math.nan
    if not 0 <= survives <= 1:
        raise click.BadParameter(f"{share!r} is not a share of failures; write 90% or 0.9.")
    return CheckpointLevel(name=name, stall_s=some_seconds(stall), survives=survives)


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    mtbf: float | None = option(
        "Mean time between failures that stop the run, such as 3.1h.", type=seconds_with_unit, metavar="TIME"
    )
    gpus: int | None = option("GPUs of the run.", type=click.IntRange(1, COUNT_MAX))
    nodes: int | None = option("Its nodes; one for 8 GPUs unless given.", type=click.IntRange(1, COUNT_MAX))
    failures_per_1000_node_days: float | None = option(
        "How often a node stops the run, in place of --mtbf.  [default: 3.79, Llama 3's]",
        type=number_between(1e-6, 1e6),
    )
    stall: float | None = option(
        "For how long a checkpoint stops training.", type=some_seconds, metavar="TIME"
    )
    write: float | None = option(
        "From then until it can be used, while training goes on.", type=seconds, metavar="TIME"
    )
    restore: float | None = option("How long loading one takes.", type=seconds, metavar="TIME")
    downtime: float | None = option("From a failure until loading begins.", type=seconds, metavar="TIME")
    step: float | None = option(
        "How long a step takes, for whole numbers of steps.", type=some_seconds, metavar="TIME"
    )
    interval: float | None = option(
        "The present interval, from one checkpoint to the next.", type=some_seconds, metavar="TIME"
    )
    level: tuple[CheckpointLevel, ...] = option(
        "Another place for checkpoints: what one costs there, and the share of failures it survives, as",
        "in memory:0.5s:90%. May be given several times.",
        type=_level,
        metavar="NAME:STALL:SHARE",
    )
    distribution: str = option(
        "Of the times between failures: exponential, weibull:0.7, gamma:0.5, lognormal:1, or gaps:FILE",
        "with one time a line.  [default: exponential]",
        default="exponential",
        metavar="KIND:SHAPE",
    )
    run: str | None = option("Take what is not given from the record of this run.", metavar="RUN")
    seed: int = option("Of what is simulated.", type=click.IntRange(0), default=0, show_default=True)
    prices_path: Path | None = shared(prices_option)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("cadence")
@takes(_Flags)
def command(asked: _Flags) -> None:
    """Show how often to checkpoint, by every known rule, and what the present interval costs a day.

    Times are 90s, 5m, 3.1h or 2d; without a unit, seconds. What is neither given nor recorded is assumed, and
    shown so.

    Example: holdfast plan cadence --gpus 16384 --stall 30s --write 2m --step 10s --interval 1h
    """
    gaps = _gaps(asked)
    recorded = Recorded()
    if asked.run is not None:
        with open_record(asked.store_url) as store:
            recorded = read_run(store, find_run(store, asked.run))
    prices = load_planning_prices(asked.prices_path)
    case, inputs = settle(_given(asked, gaps), recorded, prices)
    advice = advise(case, inputs, _simulated(asked, gaps, case.mtbf_s))
    if asked.as_json:
        print_json(advice)
        return
    from holdfast.cli.plan.cadence_text import show

    with in_currency(prices):
        show(advice)


def _given(asked: _Flags, gaps: renewal.RecordedGaps | None) -> CadenceInputs:
    rates = {
        "--mtbf": asked.mtbf,
        "--failures-per-1000-node-days": asked.failures_per_1000_node_days,
        "--distribution gaps:FILE": gaps,
    }
    named = [name for name, value in rates.items() if value is not None]
    if len(named) > 1:
        raise InputError(f"{' and '.join(named)} both say how often the run fails.", hint="Give one of them.")
    return CadenceInputs(
        mtbf_s=asked.mtbf if gaps is None else gaps.mean_s,
        mtbf_source=GIVEN if gaps is None else "their mean",
        gpus=asked.gpus,
        nodes=asked.nodes,
        failures_per_1000_node_days=asked.failures_per_1000_node_days,
        stall_s=asked.stall,
        write_s=asked.write,
        restore_s=asked.restore,
        downtime_s=asked.downtime,
        step_s=asked.step,
        interval_s=asked.interval,
        levels=_levels(asked.level),
    )


def _levels(levels: tuple[CheckpointLevel, ...]) -> tuple[CheckpointLevel, ...]:
    names = [level.name for level in levels]
    if len(set(names)) < len(names):
        raise InputError("Two levels have the same name.", hint="Give each level once.")
    if DURABLE in names:
        raise InputError(
            f"A level cannot be called {DURABLE}: so is the one that --stall is about, which survives all.",
            hint="Give only the others as levels, such as memory:0.5s:90%.",
        )
    return levels


# ---- failures that are not exponential -------------------------------------------------------------------


def _simulated(asked: _Flags, gaps: renewal.GapDistribution | None, mtbf_s: float) -> Simulated | None:
    """None where failures are exponential: then everything is known exactly."""
    kind, colon, shape = asked.distribution.partition(":")
    if kind == "exponential" and not colon:
        return None
    if gaps is None:
        gaps = renewal.FamilyGaps(kind=_kind(asked.distribution), mtbf_s=mtbf_s, shape=_shape(shape))
    words = f"as in {shape}" if kind == "gaps" else f"{kind}, shape {shape}"
    return Simulated(distribution=words, drawn=gaps.draw(np.random.default_rng(asked.seed)))


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


def _gaps(asked: _Flags) -> renewal.RecordedGaps | None:
    """From a file with one time a line; empty lines and what follows a # do not count."""
    kind, _, file = asked.distribution.partition(":")
    if kind != "gaps":
        return None
    try:
        with Path(file).open(encoding="utf-8") as lines:
            text = lines.read(GAPS_FILE_BYTES_MAX)
        found = (line.partition("#")[0].strip() for line in text.splitlines())
        return renewal.RecordedGaps([seconds(line) for line in found if line])
    except click.BadParameter as error:
        raise InputError(f"In {file}, {error.message}", hint="Write one time a line.") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not UTF-8 text.", hint="Write one time a line.") from None
    except OSError as error:
        raise InputError(
            f"{file or 'gaps:'} cannot be read: {error.strerror}.", hint="Name a file with one time a line."
        ) from None
