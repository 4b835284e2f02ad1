"""How the verbs get the topology: from the file that was named or the one at home, and from live systems."""

import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import httpx
import msgspec

from holdfast.cli.files import parsed
from holdfast.cli.record import home
from holdfast.record.errors import InputError
from holdfast.topology import file
from holdfast.topology.discovery import kubernetes, prometheus, redfish, slurm
from holdfast.topology.file import Described, Page
from holdfast.topology.survey import Survey, merged

Verb = TypeVar("Verb", bound=Callable[..., Any])

TOPOLOGY_FILE = "topology.yaml"
COMMAND_WAIT_S = 30
ANSWER_WAIT_S = 30
SERIES_WITHIN_S = 600
"""How old a series' last sample may be for it to count as there."""

_HINT = "`holdfast topology show --example > topology.yaml` makes a file to begin with."


class Systems(msgspec.Struct, frozen=True, kw_only=True):
    """The live systems to ask, beside the file."""

    slurm: bool = False
    prometheus: str | None = None
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
        click.option("--redfish", multiple=True, metavar="URL", help=_REDFISH_HELP),
        click.option("--prometheus", metavar="URL", help="Ask a Prometheus what its labels tell."),
        click.option("--slurm", is_flag=True, help="Ask Slurm for nodes, switches and running jobs."),
    ):
        verb = option(verb)
    return verb


_KUBERNETES_HELP = "Take in what `kubectl get nodes -o json` printed to this file."
_REDFISH_HELP = "Ask a Redfish service which racks its cooling units cool. May be repeated."


def load_topology(path: Path | None, systems: Systems | None = None) -> Described:
    """The topology in this file, or in the one at home, with what live systems add to it."""
    systems = systems or Systems()
    page = _read(path, is_needed=systems == Systems())
    survey, doubts = merged([page.survey, *_surveys(systems)])
    return page.described(survey, doubts)


def _read(path: Path | None, *, is_needed: bool) -> Page:
    if path is None:
        path = home() / TOPOLOGY_FILE
        if not path.exists() and not is_needed:
            return file.read("")
    name = path.name
    return parsed(path, lambda text: file.read(text, source=name), what="topology", hint=_HINT)


def _surveys(systems: Systems) -> list[Survey]:
    surveys = []
    if systems.slurm:
        surveys.append(_ask_slurm())
    if systems.kubernetes:
        surveys.append(kubernetes.survey(_contents(systems.kubernetes)))
    if systems.prometheus:
        surveys.append(prometheus.survey(_series(systems.prometheus)))
    for url in systems.redfish:
        with httpx.Client(base_url=url, timeout=ANSWER_WAIT_S, follow_redirects=True) as client:
            surveys.append(redfish.survey(partial(_answer, client)))
    return surveys


def _ask_slurm() -> Survey:
    return slurm.survey(
        nodes=_printed("scontrol", "show", "node"),
        switches=_printed("scontrol", "show", "topology", may_fail=True),  # where no tree is configured
        jobs=_printed("squeue", "--json").encode(),
    )


def _printed(*command: str, may_fail: bool = False) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_WAIT_S,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise InputError(
            f"There is no {command[0]} here.", hint="Run this where Slurm's commands are installed."
        ) from None
    except subprocess.TimeoutExpired:
        sentence = f"`{' '.join(command)}` did not end within {COMMAND_WAIT_S} s."
        raise InputError(sentence, hint="Does slurmctld answer? Try `scontrol ping`.") from None
    if done.returncode == 0 or may_fail:
        return done.stdout if done.returncode == 0 else ""
    reason = (done.stderr.strip().splitlines() or ["it did not say why"])[-1]
    raise InputError(
        f"`{' '.join(command)}` failed: {reason}.", hint="Does slurmctld answer? Try `scontrol ping`."
    )


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"The nodes cannot be read from {path}: {error.strerror}.",
            hint="Write them with `kubectl get nodes -o json`.",
        ) from None


class _Series(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of Prometheus to `/api/v1/series`."""

    data: list[dict[str, str]]


def _series(url: str) -> list[dict[str, str]]:
    since_s = time.time() - SERIES_WITHIN_S
    asked = [("match[]", selector) for selector in prometheus.SELECTORS] + [("start", f"{since_s:.0f}")]
    with httpx.Client(base_url=url, timeout=ANSWER_WAIT_S) as client:
        answer = _get(client, "/api/v1/series", asked)
    try:
        answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=_Series).data
    except (httpx.HTTPStatusError, msgspec.MsgspecError):
        raise InputError(
            f"{url} does not answer as Prometheus does (status {answer.status_code}).",
            hint="Give the address under which /api/v1/series is found, such as http://localhost:9090.",
        ) from None


def _answer(client: httpx.Client, path: str) -> bytes | None:
    answer = _get(client, path)
    return answer.content if answer.status_code == httpx.codes.OK else None


def _get(client: httpx.Client, path: str, asked: Sequence[tuple[str, str]] = ()) -> httpx.Response:
    try:
        return client.get(path, params=httpx.QueryParams(tuple(asked)))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{client.base_url} cannot be asked: {reason}.",
            hint="Is the address right, with http:// or https://?",
        ) from None
