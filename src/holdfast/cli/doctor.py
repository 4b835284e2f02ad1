"""`holdfast doctor`: which metrics a cluster has, which are missing, and which names disagree."""

from pathlib import Path

import click
import msgspec

from holdfast.cli.doctor_text import show
from holdfast.cli.flags import option, shared, takes
from holdfast.cli.pages import writable
from holdfast.cli.record import json_option
from holdfast.cli.signal_sources import SignalFlags, open_signals, signals_options
from holdfast.cli.terminal import print_json
from holdfast.cli.topology_sources import known_topology, topology_option
from holdfast.cli.values import past_moment_ns
from holdfast.diagnose.checkup import check_up
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.signals.stepped import last_step_ns, runs_in
from holdfast.topology.draft import draft

STEPS_WITHIN_NS = 1_800 * 10**9
FINEST_S = 1.0
"""The step of the grid: this fine, it shows the scrape interval of exporters, not our own."""


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    write: Path | None = option(
        "Write a topology file to start from.", callback=writable("topology", is_new=True)
    )
    check: bool = option("Exit with code 1 if nothing is seen, a name is unknown or a node is dark.")
    at_ns: int | None = option(
        "--at", "As of this time.  [default: now]", callback=past_moment_ns, metavar="TIME"
    )
    signals: SignalFlags = shared(signals_options)
    topology_path: Path | None = shared(topology_option)
    as_json: bool = shared(json_option)


@click.command("doctor")
@takes(_Flags)
def command(given: _Flags) -> int:
    """Show which metrics of the cluster are seen, which are not, and how to switch them on.

    For each missing exporter and metric it says what would become visible. Names that exporters, topology
    and scheduler spell differently are listed with the node that they were matched to.
    """
    at_ns = SystemClock().now_ns() if given.at_ns is None else given.at_ns
    fine = msgspec.structs.replace(given.signals, step_s=FINEST_S)
    with open_signals(fine, given.at_ns, window_s=STEPS_WITHIN_NS / 1e9, may_lack=True) as source:
        cluster = known_topology(given.topology_path, fine.prometheus_url, source, given.at_ns)
        steps = runs_in(source, (at_ns - STEPS_WITHIN_NS, at_ns + 1))
        logged = {run: last_step_ns(source, run, at_ns) for run in fine.logged_runs}
        found = check_up(source, cluster, steps, at_ns, logged)
    if given.as_json:
        print_json(found)
    else:
        show(found)
    if given.write is not None:
        _write(given.write, draft(cluster.survey))
    return int(given.check and not found.is_well)


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}.", hint="Name a file that you may write to."
        ) from None
    click.echo(f"holdfast: Wrote {path}. Correct it, then give it with --topology {path}.", err=True)
