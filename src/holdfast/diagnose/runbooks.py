"""Runbooks: what to do about an incident, filled in with its own subjects, evidence, times and commands.

Each is a Markdown file in the folder `runbooks` beside this module, named after a mechanism or a seam. A file
may use the fields of `Facts`; any other name is an error, and the tests render every file.
"""

import re
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from holdfast import wording
from holdfast.diagnose.alerts import cost, runtime, severity, slowness
from holdfast.diagnose.host_labels import Series, host_labels
from holdfast.diagnose.incident import Evidence, Incident
from holdfast.diagnose.wording import moment, share
from holdfast.signals.domains import Seam
from holdfast.topology.hostlist import fold
from holdfast.wording import listed
from holdfast.wording.units import SECOND_NS

FOLDER = Path(__file__).parent / "runbooks"
SEAMS: tuple[Seam, ...] = ("facilities-ml", "gpu-fabric-pool", "runtime-schedule-finance")
UNKNOWN = "unknown"
MARGIN_S = 600
"""Graphs and logs begin this long before the incident: what came first is what matters."""

_GPU = re.compile(r"(?P<host>.+)\.(?P<index>[0-9]+)")
_PORT = re.compile(r"(?P<host>[^/]+)/(?P<device>[^/]+)(?:/(?P<port>[0-9]+))?")
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a runbook may say about an incident.

    subject     where the cause is; `host`, `gpu`, `device` and `port` as far as its name tells them: the host
                is the first one affected if the cause is not part of a host, the GPU is empty if the cause is
                not one. These four are safe in a command as they are; everything else goes through `quote` or
                `argument` there, and through `label` in a query
    hosts       the hosts of the late members; `hostlist` all of them in Slurm's notation
    gpus_there, nodes_there, targets_there  in PromQL, what chooses the first of these hosts in the series of
                GPUs, of nodes, and in `up`; `gpu_label` names a host in the series of GPUs
    range       in PromQL, from before the beginning until now, or until the end
    since, until  the same stretch as moments
    """

    incident: Incident
    subject: str
    host: str
    gpu: str
    device: str
    port: str
    hosts: tuple[str, ...]
    hostlist: str
    gpus_there: str
    nodes_there: str
    targets_there: str
    gpu_label: str
    run: str
    began: str
    noticed: str
    ended: str
    since: str
    until: str
    range: str
    severity: str
    slowness: str
    runtime: str
    cost: str
    hourly: str


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A runbook in Markdown. name: of its mechanism or seam."""

    name: str
    text: str


def names() -> tuple[str, ...]:
    """Every runbook: those of the mechanisms and of the seams."""
    return tuple(sorted(path.stem for path in FOLDER.glob("[a-z]*.md")))


def runbook(incident: Incident, *, now_ns: int, series: Iterable[Series] = ()) -> Rendered:
    """What to do about an incident. A mechanism without a runbook gets that of `unknown`. series: of the
    cluster's exporters, for the labels in queries.
    """
    wanted = incident.runbook or incident.cause.mechanism
    return _rendered(wanted if wanted in names() else UNKNOWN, incident, now_ns, series)


def seam_runbook(incident: Incident, *, now_ns: int, series: Iterable[Series] = ()) -> Rendered | None:
    """Who calls whom; None if the incident crosses no seam."""
    return _rendered(incident.seam, incident, now_ns, series) if incident.seam in SEAMS else None


def facts(incident: Incident, now_ns: int, series: Iterable[Series] = ()) -> Facts:
    subject = incident.cause.subject
    host, gpu, device, port = _parts(incident)
    there = host_labels(incident.affected or (host,), series)
    host = there.machine(host)
    hosts = tuple(dict.fromkeys(map(there.machine, incident.affected))) or (host,)
    until_ns = max(now_ns if incident.ended_ns is None else incident.ended_ns, incident.began_ns)
    since_ns = max(0, incident.began_ns - MARGIN_S * SECOND_NS)
    return Facts(
        incident=incident,
        subject=subject,
        host=_plain(host, "HOST"),
        gpu=gpu,
        device=_plain(device, "DEVICE"),
        port=port,
        hosts=hosts,
        hostlist=shlex.quote(fold([name for name in hosts if _PLAIN.fullmatch(name)]) or "HOST"),
        gpus_there=there.gpus,
        nodes_there=there.nodes,
        targets_there=there.targets,
        gpu_label=there.gpu_label,
        run=incident.run,
        began=moment(incident.began_ns),
        noticed=moment(incident.noticed_ns),
        ended="" if incident.ended_ns is None else moment(incident.ended_ns),
        since=moment(since_ns),
        until=moment(until_ns),
        range=f"{-(-(until_ns - since_ns) // (60 * SECOND_NS))}m",
        severity=severity(incident),
        slowness=slowness(incident),
        runtime=runtime(incident),
        cost=cost(incident),
        hourly=_hourly(incident),
    )


def _hourly(incident: Incident) -> str:
    """The cost of waiting, as a clause."""
    if incident.cost is None:
        return "the cost of an hour of it is not known"
    if incident.cost.usd_per_hour is None:
        return f"an hour of it costs {incident.cost.gpu_hours_per_hour:,.1f} {incident.cost.counted}-hours"
    return f"an hour of it costs {wording.usd(incident.cost.usd_per_hour)}"


def _rendered(name: str, incident: Incident, now_ns: int, series: Iterable[Series]) -> Rendered:
    known = facts(incident, now_ns, series)
    text = _templates().get_template(f"{name}.md").render(msgspec.structs.asdict(known))
    return Rendered(name=name, text=re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


@cache
def _templates() -> Environment:
    # Markdown for people, not HTML: no escaping, but texts from outside stay on one line.
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        finalize=_one_line,
    )
    environment.filters.update(moment=moment, listed=listed, share=share, bans=_bans)
    environment.filters.update(quote=shlex.quote, argument=_argument, label=_label)
    return environment


def _one_line(value: object) -> object:
    """Names and notes come from outside: a newline in one could pass for an instruction of ours."""
    return " ".join(value.split()) if isinstance(value, str) else value


def _plain(name: str, placeholder: str) -> str:
    """A host or a device that is safe in a command, also inside a remote command. Text that is not like a
    name could be an option or a list, so a placeholder replaces it.
    """
    return name if _PLAIN.fullmatch(name) else placeholder


def _argument(text: str, placeholder: str) -> str:
    """The text as one shell word. Quoting does not keep a leading dash from being an option."""
    return placeholder if text.startswith("-") else shlex.quote(text)


def _bans(evidence: Evidence) -> str:
    return f"{'for' if evidence.weight >= 0 else 'against'}, {abs(evidence.weight):.1f}"


def _parts(incident: Incident) -> tuple[str, str, str, str]:
    """Host, GPU, device and port of the cause. If it is on no host, the first affected host."""
    subject, kind = incident.cause.subject, incident.cause.kind
    first = incident.affected[0] if incident.affected else "HOST"
    if kind == "port" and (found := _PORT.fullmatch(subject)):
        return found["host"], "", found["device"], found["port"] or "1"
    if kind == "gpu" and (found := _GPU.fullmatch(subject)):
        return found["host"], found["index"], "mlx5_0", "1"
    return (subject if kind in ("node", "member", "engine") else first), "", "mlx5_0", "1"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
