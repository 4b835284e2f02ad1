"""`holdfast plan fit`: fit failure rates, repair times and bad nodes to a record of faults."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.flags import FiniteRange, argument, option, shared, takes
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import print_json, say
from holdfast.cli.windows import reading
from holdfast.economics.fitting.outages import Observation, OutageFacts
from holdfast.economics.fitting.reading import observed, passing_store, read_domains
from holdfast.record.errors import InputError
from holdfast.record.importers import Options

if TYPE_CHECKING:
    from holdfast.economics.fitting.fitting import FailureFit

_COUNT = click.IntRange(1, 10**7)


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    file: Path | None = argument(required=False, type=click.Path(path_type=Path))
    run: str | None = option("Only events of this run.", metavar="RUN")
    nodes: int | None = option("How many nodes were watched, if the record does not say.", type=_COUNT)
    days: float | None = option(
        "For how many days, if the record does not say.", type=FiniteRange(0.001, 10**5)
    )
    gpus_per_node: int | None = option("GPUs of a node, if the record only counts GPUs.", type=_COUNT)
    domains: Path | None = option(
        "The domain of each node: lines of `node,domain`.  [default: from names such as rack07-node3]",
        metavar="CSV",
    )
    lemon_faults: int = option(
        "Faults of a lemon.", type=click.IntRange(2, 10**6), default=5, show_default=True
    )
    flap_minutes: float = option(
        "Also count a node that fails again within this time after its return only once.",
        type=FiniteRange(0, 10**5),
        default=60.0,
        show_default=True,
    )
    burst_minutes: float = option(
        "Faults of different nodes within this time belong together.",
        type=FiniteRange(0, 10**4),
        default=10.0,
        show_default=True,
    )
    seed: int = option("Seed of the tests.", type=click.IntRange(0), default=0, show_default=True)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("fit")
@takes(_Flags)
def command(given: _Flags) -> None:
    """Fit failure rates, repair times and bad nodes to a record of faults.

    FILE is anything that `holdfast import` reads, such as sacct's output or the InfiniteHBD trace; it is not
    stored. Without FILE the whole store is read, or one run of it. Every verdict has the probability that
    chance would look the same. docs/fitting.md explains the tests.

    Example: holdfast plan fit sacct.txt --nodes 512
    """
    if given.file is not None and given.run is not None:
        raise InputError(
            "FILE is read by itself, and `--run` names a run of the store.", hint="Give one of them."
        )
    domains = None if given.domains is None else read_domains(given.domains)
    told = _fitted(_observed(given), domains, given)
    if given.as_json:
        print_json(told)
    else:
        from holdfast.cli.plan.fit_text import show

        show(told)


def _fitted(seen: Observation, domains: dict[str, str] | None, flags: _Flags) -> "FailureFit":
    # Imported here, because scipy takes longer to load than everything else, and help does not need it.
    import numpy as np

    from holdfast.economics.fitting.coincidences import domains_by_name
    from holdfast.economics.fitting.fitting import FitSettings, fit

    if domains is None:
        domains = domains_by_name([fault.node for fault in seen.faults if fault.node])
    settings = FitSettings(
        lemon_faults=flags.lemon_faults, flap_minutes=flags.flap_minutes, burst_minutes=flags.burst_minutes
    )
    return fit(seen, domains, settings, np.random.default_rng(flags.seed))


def _observed(flags: _Flags) -> Observation:
    known = OutageFacts(nodes=flags.nodes, days=flags.days, gpus_per_node=flags.gpus_per_node)
    if flags.file is None:
        with open_record(flags.store_url) as store:
            return observed(store, known, reading, run=flags.run, is_whole=False)
    with passing_store(flags.file, Options(gpus_per_node=flags.gpus_per_node)) as (store, skipped):
        if skipped:
            say(f"{skipped:,} lines of {flags.file} cannot be used.")
        return observed(store, known, reading, run=None, is_whole=True)
