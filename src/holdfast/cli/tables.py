"""Tables without lines, as the verbs print them."""

from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Column, Table

from holdfast.cli.terminal import printable

GAP_CHARS = 2


def word(heading: str = "", style: str = "") -> Column:
    """A column of words that do not wrap."""
    return Column(heading, no_wrap=True, style=style)


def figure(heading: str = "") -> Column:
    return Column(heading, no_wrap=True, justify="right")


def table(
    *columns: Column | str,
    rows: Iterable[Sequence[RenderableType]] = (),
    header_style: str = "bold",
    gap: int = GAP_CHARS,
    width: int | None = None,
) -> Table:
    """A table of these columns, a gap apart. A plain string heads a column that may wrap, by words: only a
    word without room on a line of its own goes on in the next one. Without any heading there is no header.
    """
    has_header = any(column if isinstance(column, str) else column.header for column in columns)
    shown = Table(
        *(Column(column, overflow="fold") if isinstance(column, str) else column for column in columns),
        box=None,
        pad_edge=False,
        padding=(0, gap, 0, 0),
        show_header=has_header,
        header_style=header_style,
        width=width,
    )
    for row in rows:
        shown.add_row(*row)
    return shown


def print_bullets(console: Console, lines: Iterable[str], heading: str = "") -> None:
    """Print each text on its own line, under the heading if there is one."""
    rows = [("•", printable(line)) for line in lines]
    if heading and rows:
        console.print(heading, style="bold")
    if rows:
        console.print(table(word(), "", rows=rows, gap=1))
