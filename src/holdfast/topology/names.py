"""How subjects are called that have no name of their own in the cluster, and how labels tell names.

The one place for it: what discovery calls a subject, signals must call it too, or a finding is about nobody.
"""

import re
from collections.abc import Mapping

FIRST_PORT = "1"

_INSTANCE = re.compile(r"(?:\w+://)?(\[[^\]]+\]|[^:/\[\]]+)(?::\d+)?(?:/.*)?")
_NUMBER = re.compile(r"[0-9]{1,9}$")


def member_name(run: str, member: str) -> str:
    """A member is unique only within its run."""
    return f"{run}/{member}"


def gpu_name(node: str, gpu: str) -> str:
    return f"{node}.{gpu}"


def port_name(node: str, port: str) -> str:
    return f"{node}/{port}"


def node_of_port(port: str) -> str:
    return port.partition("/")[0]


def link_name(source: str, target: str) -> str:
    """The way from one node to another, over whatever lies between."""
    return f"{source}>{target}"


def unit_name(given: str, identity: str, *, is_only: bool) -> str:
    """Of a cooling unit or power shelf. given: what people call its service, as many units are just `1`."""
    return f"{given}-{identity}" if given and not is_only else given or identity


def host_of(labels: Mapping[str, str]) -> str:
    """The name that a host gives itself, else the one that it is scraped under; empty where there is none."""
    if named := labels.get("hostname") or labels.get("Hostname"):
        return named
    instance = _INSTANCE.fullmatch(labels.get("instance", ""))
    return instance[1].strip("[]") if instance else ""


def gpu_of(text: str) -> str:
    """The number of a GPU in what an exporter calls it, `3` or `GPU3`; empty where there is none."""
    number = _NUMBER.search(text)
    return str(int(number[0])) if number else ""


def port_of(labels: Mapping[str, str]) -> str:
    """A port by its device, `mlx5_0`, with its number where it is not the first; empty where none is told."""
    device, number = labels.get("device", ""), labels.get("port", FIRST_PORT)
    return device if number == FIRST_PORT or not device else f"{device}/{number}"
