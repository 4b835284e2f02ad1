"""Markdown as plain text for a terminal: wrapped by words, and commands whole, so that they can be copied."""

import re
import textwrap
from collections.abc import Iterable, Iterator

import click

COLUMNS_MAX = 100
"""Longer lines of prose are hard to read."""
CODE_INDENT = "    "
_ITEM = re.compile(r"(?P<sign>-|[0-9]+\.) +(?P<text>.*)")
_HEADING = re.compile(r"#+ +(?P<text>.*)")
_FENCE = re.compile(r"(?P<indent> *)```")
_ROW = re.compile(r"\| (?P<name>[^|]*) \| (?P<text>.*) \|")


def text_lines(markdown: str, columns: int) -> Iterator[str]:
    """The lines of headings, paragraphs, lists, code and tables of two columns."""
    columns = min(columns, COLUMNS_MAX)
    for block in _blocks(markdown.splitlines()):
        yield from _shown(block, columns)
        yield ""


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """What empty lines and headings separate; code stays whole, and so does each item of a list."""
    block: list[str] = []
    fence = ""
    for line in lines:
        found = _FENCE.match(line)
        begins = bool(found) or bool(_HEADING.match(line)) or (not line.strip())
        if not fence and begins and block:
            yield block
            block = []
        if found:
            block.append(line)
            if fence:
                yield block
                block = []
            fence = "" if fence else line
        elif fence or line.strip():
            block.append(line)
    if block:
        yield block


def _shown(block: list[str], columns: int) -> Iterator[str]:
    first = block[0]
    if fence := _FENCE.match(first):
        indent = len(fence["indent"])
        yield from (CODE_INDENT + line[indent:] for line in block[1:-1])
    elif heading := _HEADING.match(first):
        yield click.style(heading["text"], bold=True)
    elif _ROW.match(first) or first.startswith("|"):
        rows = [found for line in block if (found := _ROW.fullmatch(line)) and found["name"].strip()]
        width = max((len(row["name"]) for row in rows), default=0)
        for row in rows:
            yield from _wrapped(row["text"], columns, f"{row['name']:{width}}  ", " " * (width + 2))
    else:
        yield from _paragraphs(block, columns)


def _paragraphs(block: Iterable[str], columns: int) -> Iterator[str]:
    """The items of a list and the paragraphs, which may be below an item."""
    sign, words = "", list[str]()
    for line in (*block, None):
        item = None if line is None else _ITEM.match(line)
        if words and (line is None or item):
            yield from _wrapped(" ".join(words), columns, sign, " " * len(sign))
            words = []
        if item:
            sign, words = f"{item['sign']} ", [item["text"]]
        elif line is not None:
            if not words and line.startswith(" "):
                sign = " " * (len(line) - len(line.lstrip()))
            words.append(line.strip())


def _wrapped(text: str, columns: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text.replace("**", ""),
        columns,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
