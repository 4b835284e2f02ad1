"""The topology in the terminal: its parts, the dependencies of a subject, a path and its seams."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from holdfast import wording
from holdfast.cli.tables import figure, word
from holdfast.cli.terminal import printable
from holdfast.topology.graph import KINDS, Kind, Topology
from holdfast.topology.hostlist import fold

NAMES_SHOWN_MAX = 48
"""The most characters of a list of names in a tree; the rest is cut."""
OWNERS_SHOWN_MAX = 3
UNOWNED = "no owner"
DEPTH_SHOWN_MAX = 20
"""The most levels of a tree. A cluster has a dozen; a chain of thousands could not be shown."""


def show_all(topology: Topology, console: Console) -> None:
    """Print the subjects by kind and owner, and the seams."""
    console.print(wording.many(len(topology), "subject"), style="bold")
    console.print(_kinds_table(topology, topology.names))
    seams = topology.seam_counts()
    if seams:
        listed = Table("seam", "from", "to", box=None, pad_edge=False, header_style="dim")
        listed.add_column("dependencies", justify="right")
        for seam in seams:
            owners = (seam.cause_owner or UNOWNED, seam.symptom_owner or UNOWNED)
            listed.add_row(
                f"{seam.cause_kind} → {seam.symptom_kind}", *map(printable, owners), f"{seam.count:,}"
            )
        console.print("", listed)


def show_subject(topology: Topology, subject: str, console: Console) -> None:
    """Print what the subject depends on, as a tree, and what depends on it, by kind."""
    root = Tree(_label(topology, topology.kind(subject), [subject]), guide_style="dim")
    _grow(topology, root, [subject], {subject}, DEPTH_SHOWN_MAX)
    console.print("Depends on", style="bold")
    console.print(root)
    radius = topology.blast_radius(subject)
    console.print("\nBlast radius" if radius else "\nNothing depends on it.", style="bold")
    if radius:
        console.print(_kinds_table(topology, lambda kind: topology.blast_radius(subject, kind)))


def show_path(topology: Topology, path: Sequence[str], console: Console) -> None:
    """Print one subject on each line; a line between two of different owners is a seam."""
    seams = {*topology.seams(path)}
    width = max(len(printable(name)) for name in path)
    for index, name in enumerate(path):
        before = path[index - 1] if index else None
        if before is not None and (before, name) in seams:
            owners = f"{topology.owner(before) or UNOWNED} │ {topology.owner(name) or UNOWNED}"
            console.print(Text(f"  ── seam: {printable(owners)} ──", style="bold yellow"))
        line = Text("→ " if index else "  ", style="dim")
        line.append(f"{printable(name):{width}}", style="bold")
        line.append(f"  {topology.kind(name):9}  {printable(topology.owner(name)) or UNOWNED}")
        if before is not None and (why := topology.why(name, before)):
            line.append(f"  ({printable(why)})", style="dim")
        console.print(line)


def _grow(topology: Topology, branch: Tree, names: Sequence[str], seen: set[str], levels: int) -> None:
    """The dependencies of a group of subjects, nearest kinds first; each is shown once."""
    for kind, beneath in _beneath(topology, names):
        fresh = [name for name in beneath if name not in seen]
        if fresh and not levels:
            branch.add(Text("…", style="dim"))
            return
        if fresh:
            seen.update(fresh)
            _grow(topology, branch.add(_label(topology, kind, fresh)), fresh, seen, levels - 1)


def _beneath(topology: Topology, names: Sequence[str]) -> Iterator[tuple[Kind, list[str]]]:
    found = dict.fromkeys(other for name in names for other in topology.dependencies(name))
    for kind in reversed(KINDS):
        if of_kind := [name for name in found if topology.kind(name) == kind]:
            yield kind, of_kind


def _label(topology: Topology, kind: Kind, names: Sequence[str]) -> Text:
    label = Text(f"{kind} ", style="dim")
    label.append(wording.short(_names(names), NAMES_SHOWN_MAX), style="bold")
    if len(names) > 1:
        label.append(f" ({len(names):,})", style="dim")
    label.append(f"  {_owners(topology, names)}")
    return label


def _owners(topology: Topology, names: Sequence[str]) -> str:
    counts = Counter(topology.owner(name) or UNOWNED for name in names)
    if len(counts) == 1:
        return printable(next(iter(counts)))
    shown = [f"{printable(owner)} {count:,}" for owner, count in counts.most_common(OWNERS_SHOWN_MAX)]
    return ", ".join(shown) + ", …" * (len(counts) > OWNERS_SHOWN_MAX)


def _names(names: Sequence[str]) -> str:
    return printable(fold(names))


def _kinds_table(topology: Topology, names_of: Callable[[Kind], Sequence[str]]) -> Table:
    """The number of subjects of each kind, their owners, and as many names as fit."""
    names = Column("names", no_wrap=True, overflow="ellipsis", ratio=1)
    columns = (word("kind"), figure("count"), word("owner"), names)
    table = Table(*columns, box=None, pad_edge=False, header_style="dim", expand=True)
    for kind in KINDS:
        if found := names_of(kind):
            table.add_row(kind, f"{len(found):,}", _owners(topology, found), _names(found))
    return table
