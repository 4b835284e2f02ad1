"""Loads the topology for the verbs: from the named file or the one at home, and from live systems."""

import shlex
from pathlib import Path

import click
import msgspec

from holdfast.cli.flags import option, together
from holdfast.cli.record import home
from holdfast.cli.terminal import tell
from holdfast.record.files import is_there, parsed
from holdfast.signals.source import Source
from holdfast.signals.stepped import without_steps
from holdfast.signals.store import SignalStore
from holdfast.signals.surveys import Systems, surveys
from holdfast.topology import file
from holdfast.topology.file import Described, TopologyPage
from holdfast.topology.survey import merged

TOPOLOGY_FILE = "topology.yaml"


topology_option = click.option(
    "--topology",
    "topology_path",
    type=click.Path(path_type=Path),
    envvar="HOLDFAST_TOPOLOGY",
    metavar="FILE",
    help="The cluster, as YAML.  [default: $HOLDFAST_TOPOLOGY, or topology.yaml in $HOLDFAST_HOME]",
)


class _Systems(msgspec.Struct, frozen=True, kw_only=True):
    """The flags for the live systems to ask, as in `Systems`."""

    slurm: bool = option("Ask Slurm for nodes, switches and running jobs.")
    prometheus: str | None = option("Read the labels of a Prometheus.", metavar="URL")
    redfish: tuple[str, ...] = option(
        "Ask a Redfish service which racks its cooling units cool. NAME: of the unit.",
        metavar="[NAME=]URL",
    )
    kubernetes: Path | None = option("Read the output of `kubectl get nodes -o json` from this file.")


systems_options = together(_Systems, "systems", lambda asked: Systems(**msgspec.structs.asdict(asked)))


def load_topology(path: Path | None, systems: Systems | None = None) -> Described:
    """The topology in this file, or in the one at home, completed by live systems."""
    systems = systems or Systems()
    page = _read(path, is_needed=systems == Systems())
    survey, doubts = merged([page.survey, *surveys(systems)])
    return page.described(survey, doubts)


def known_topology(
    path: Path | None, prometheus_url: str | None, source: Source, at_ns: int | None = None
) -> Described:
    """The topology for a look at runs, completed by the labels of the source at that time.

    Without a file it has only the labels: `remark_on_topology` says so.
    """
    base = without_steps(source)
    if isinstance(base, SignalStore):
        return load_topology(path, Systems(signals=base, at_ns=at_ns))
    return load_topology(path, Systems(prometheus=prometheus_url, at_ns=at_ns))


def remark_on_topology(path: Path | None) -> None:
    """Say on stderr if there is no file. Call it after everything that can fail."""
    if path is None and not is_there(home() / TOPOLOGY_FILE):
        sentence = "There is no topology file: only labels show what machines have in common."
        tell(sentence, _beginning(home() / TOPOLOGY_FILE))


def _read(path: Path | None, *, is_needed: bool) -> TopologyPage:
    if path is None:
        path = home() / TOPOLOGY_FILE
        if not is_needed and not is_there(path):
            return file.read("")
    name = path.name
    return parsed(path, lambda text: file.read(text, source=name), what="topology", hint=_beginning(path))


def _beginning(path: Path) -> str:
    """The hint on how to make a file at this path."""
    made = "" if is_there(path.parent) else f"mkdir -p {shlex.quote(str(path.parent))} && "
    command = f"{made}holdfast topology show --example > {shlex.quote(str(path))}"
    return f"`{command}` makes a file to begin with."
