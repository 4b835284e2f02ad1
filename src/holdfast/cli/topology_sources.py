"""How the verbs get the topology: from the file that was named or the one at home, and from live systems."""

import shlex
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli.collect_services import redfish_service
from holdfast.cli.credentials import access, spelled_out
from holdfast.cli.files import is_there, parsed
from holdfast.cli.record import home
from holdfast.cli.terminal import printable
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError, complaint
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.redfish_service import Connection, Service
from holdfast.signals.collectors.slurm import ask
from holdfast.signals.prometheus import Prometheus
from holdfast.signals.source import Source
from holdfast.signals.stepped import without_steps
from holdfast.signals.store import Store
from holdfast.topology import file
from holdfast.topology.discovery import kubernetes, prometheus, redfish, slurm
from holdfast.topology.file import Described, Page
from holdfast.topology.survey import Survey, merged

Verb = TypeVar("Verb", bound=Callable[..., Any])

TOPOLOGY_FILE = "topology.yaml"
COMMAND_WAIT_S = 30.0
"""Longer than a collector waits: all nodes of a large cluster are many pages."""
SERIES_WITHIN_NS = 600 * 10**9
"""How old a series' last sample may be for it to count as there."""


class Systems(msgspec.Struct, frozen=True, kw_only=True):
    """The live systems to ask, beside the file. at_ns: as of when, where it is not now and can be asked.

    signals: the embedded store, whose labels tell as much as a Prometheus'.
    """

    slurm: bool = False
    prometheus: str | None = None
    signals: Store | None = None
    at_ns: int | None = None
    redfish: tuple[str, ...] = ()
    kubernetes: Path | None = None


def topology_option(verb: Verb) -> Verb:
    return click.option(
        "--topology",
        "topology_path",
        type=click.Path(path_type=Path),
        envvar="HOLDFAST_TOPOLOGY",
        metavar="FILE",
        help="The cluster, as YAML.  [default: $HOLDFAST_TOPOLOGY, or topology.yaml in $HOLDFAST_HOME]",
    )(verb)


def systems_options(verb: Verb) -> Verb:
    """Options that add what live systems say; together they make a `Systems`."""
    for option in (
        click.option("--kubernetes", type=click.Path(path_type=Path), metavar="FILE", help=_KUBERNETES_HELP),
        click.option("--redfish", multiple=True, metavar="[NAME=]URL", help=_REDFISH_HELP),
        click.option("--prometheus", metavar="URL", help="Ask a Prometheus what its labels tell."),
        click.option("--slurm", is_flag=True, help="Ask Slurm for nodes, switches and running jobs."),
    ):
        verb = option(verb)
    return verb


_KUBERNETES_HELP = "Take in what `kubectl get nodes -o json` printed to this file."
_REDFISH_HELP = "Ask a Redfish service which racks its cooling units cool. NAME: what its unit is called."


def load_topology(path: Path | None, systems: Systems | None = None) -> Described:
    """The topology in this file, or in the one at home, with what live systems add to it."""
    systems = systems or Systems()
    page = _read(path, is_needed=systems == Systems())
    survey, doubts = merged([page.survey, *_surveys(systems)])
    return page.described(survey, doubts)


def known_topology(
    path: Path | None, prometheus_url: str | None, source: Source, at_ns: int | None = None
) -> Described:
    """The topology for a look at runs, with what the labels of the source in use add to it, as of then.

    Without a file there is still that: `remark_on_topology` says so.
    """
    base = without_steps(source)
    if isinstance(base, Store):
        return load_topology(path, Systems(signals=base, at_ns=at_ns))
    return load_topology(path, Systems(prometheus=prometheus_url, at_ns=at_ns))


def labelled_runs(cluster: Described) -> frozenset[str]:
    """The runs of which only the labels of series tell: jobs of Slurm, pods."""
    survey = cluster.survey
    labels = (prometheus.SOURCE, prometheus.STORED)
    return frozenset(run for run in survey.members if survey.source_of(run, "members") in labels)


def remark_on_topology(path: Path | None) -> None:
    """Say on stderr that there is no file, where that is so: for after all that could go wrong went well."""
    if _is_absent(path):
        sentence = (
            "There is no topology file: what machines have in common is known only as far as labels tell."
        )
        click.echo(complaint(sentence, printable(_beginning(home() / TOPOLOGY_FILE))), err=True)


def _is_absent(path: Path | None) -> bool:
    return path is None and not is_there(home() / TOPOLOGY_FILE)


def _read(path: Path | None, *, is_needed: bool) -> Page:
    if path is None:
        path = home() / TOPOLOGY_FILE
        if not is_needed and not is_there(path):
            return file.read("")
    name = path.name
    return parsed(path, lambda text: file.read(text, source=name), what="topology", hint=_beginning(path))


def _beginning(path: Path) -> str:
    """The hint on how to come by a file where it is looked for."""
    made = "" if is_there(path.parent) else f"mkdir -p {shlex.quote(str(path.parent))} && "
    command = f"{made}holdfast topology show --example > {shlex.quote(str(path))}"
    return f"`{command}` makes a file to begin with."


def _surveys(systems: Systems) -> list[Survey]:
    surveys = []
    if systems.slurm:
        surveys.append(_ask_slurm())
    if systems.kubernetes:
        surveys.append(kubernetes.survey(_contents(systems.kubernetes)))
    if systems.prometheus:
        surveys.append(_ask_prometheus(systems.prometheus, systems.at_ns))
    if systems.signals is not None:
        window_ns = _window_ns(systems.at_ns)
        series = systems.signals.series(prometheus.names_asked_for(), window_ns)
        surveys.append(prometheus.survey(series, prometheus.STORED))
    surveys.extend(_ask_redfish(redfish_service(text)) for text in systems.redfish)
    return surveys


def _ask_slurm() -> Survey:
    nodes = ask("scontrol", "show", "node", timeout_s=COMMAND_WAIT_S)
    try:
        switches = ask("scontrol", "show", "topology", timeout_s=COMMAND_WAIT_S)
    except Unavailable:  # where no tree is configured
        switches = ""
    jobs = ask("squeue", "--json", timeout_s=COMMAND_WAIT_S)
    return slurm.survey(nodes=nodes, switches=switches, jobs=jobs.encode())


def _ask_redfish(service: Service) -> Survey:
    with closing(Connection(service)) as connection:
        found = connection.read(lambda walk: redfish.survey(walk.get, name=service.name))
    if not found.kinds:
        raise Unavailable(
            f"{service.title} has no cooling unit that could be read.",
            hint=f"They are looked for under {redfish.CDUS_PATH}.",
        )
    return found


def _ask_prometheus(url: str, at_ns: int | None) -> Survey:
    with Prometheus(spelled_out(url, what="--prometheus"), access=access("PROMETHEUS")) as server:
        series = server.series(prometheus.SELECTORS, _window_ns(at_ns))
    return prometheus.survey(series)


def _window_ns(at_ns: int | None) -> tuple[int, int]:
    now_ns = SystemClock().now_ns() if at_ns is None else at_ns
    return now_ns - SERIES_WITHIN_NS, now_ns


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"The nodes cannot be read from {path}: {error.strerror}.",
            hint="Write them with `kubectl get nodes -o json`.",
        ) from None
