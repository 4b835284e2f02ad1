"""A topology file to start from, written from live systems the way people would write it."""

from collections.abc import Iterator

from holdfast.topology.graph import Kind, in_order
from holdfast.topology.hostlist import fold
from holdfast.topology.survey import Survey

SECTIONS: tuple[tuple[str, Kind, str, str], ...] = (
    ("racks", "rack", "which nodes stand in it: nodes suffer with their rack", '"rack-[00-15]": 4 each'),
    ("shelves", "shelf", "which racks a power shelf feeds", '"shelf-[00-15]": 1 each'),
    ("loops", "loop", "which racks a cooling unit cools", '"cdu-[0-1]": 8 each'),
    ("circuits", "circuit", "which cooling units share one facility water", "water-0: all"),
    ("leaves", "leaf", "which nodes, or which ports, are on a leaf switch", '"leaf-[0-3]": 16 each by rail'),
    ("spines", "spine", "which leaves are on a spine", '"spine-[0-3]": all'),
    ("mounts", "mount", "which nodes mount a filer", "fs-0: all"),
)
"""The sections in the order of the file, with the meaning of an entry, and an example."""


def draft(survey: Survey) -> str:
    """YAML for `file.read`. Unknown parts are comments with an example."""
    return "".join(f"{line}\n" for line in _lines(survey))


def _lines(survey: Survey) -> Iterator[str]:
    yield "# A topology file to start from, as live systems tell it. Correct it: where it speaks, it wins."
    alike: dict[tuple[int, str], list[str]] = {}
    for node in in_order(name for name, kind in survey.kinds.items() if kind == "node"):
        ports = fold(in_order(survey.ports.get(node, ())))
        alike.setdefault((len(survey.gpus.get(node, ())), ports), []).append(node)
    if alike:
        yield "nodes:"
    else:
        yield "nodes: {}  # none is known"
        yield '#   "n[000-063]": {gpus: 8, ports: "mlx5_[0-7]"}'
    for (gpus, ports), nodes in alike.items():
        parts = [f"gpus: {gpus}"] if gpus else []
        parts += [f'ports: "{ports}"'] if ports else []
        yield f"  {_quoted(fold(nodes))}: {{{', '.join(parts)}}}"
    for section, kind, says, example in SECTIONS:
        placed = _placed(survey, kind)
        if placed:
            yield f"{section}:"
            yield from (f"  {_quoted(head)}: {_quoted(fold(in_order(names)))}" for head, names in placed)
        else:
            yield f"# {section}:  # {says}"
            yield f"#   {example}"
    yield "# Runs are found by the labels of their series; name here what is not:"
    yield '# runs: {llama: {nodes: "n[000-063]"}}'


def _placed(survey: Survey, kind: Kind) -> list[tuple[str, list[str]]]:
    """Each subject of this kind, with the names placed on it."""
    found: dict[str, list[str]] = {}
    for name, places in survey.on.items():
        for on in places.get(kind, ()):
            found.setdefault(on, []).append(name)
    return [(head, found[head]) for head in in_order(found)]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
