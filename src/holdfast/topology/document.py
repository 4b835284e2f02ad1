"""A YAML text as plain data with line numbers, so that mistakes can be reported with their line.

Numbers and truth values are read as such; dates stay text, as does everything else. A key that occurs twice
is refused: YAML would silently take the last.
"""

from typing import Any

import msgspec
import yaml

from holdfast.record.errors import InputError

Plain = dict[str, Any] | list[Any] | str | int | float | bool | None
Place = tuple[str | int, ...]
"""The keys and indices that lead to a value."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_AS_TYPED = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "null"))
DEPTH_MAX = 16
VALUES_MAX = 1_000_000
"""Including values that anchors repeat, which a short text can do without end."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """lines: the line of each value's key, or of each list entry, from 1."""

    data: dict[str, Any]
    lines: dict[Place, int]

    def line(self, place: Place) -> int:
        """The line of the value there, or of the nearest one around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def read(text: str) -> Document:
    lines: dict[Place, int] = {}
    try:
        _check_depth(text)
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            data = None if root is None else _plain(loader, root, (), lines)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error) from None
    except (yaml.YAMLError, RecursionError, UnicodeEncodeError) as error:
        raise InputError(f"This is not YAML: {' '.join(str(error).split())}.", hint=_HINT) from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise InputError("The file is not a table of sections, such as `nodes:`.", hint=_HINT)
    return Document(data=data, lines=lines)


def _check_depth(text: str) -> None:
    """Check the depth before values are built: the parser recurses into nested values in C, and would
    overflow the stack. Its events come one after the other."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_MAX + 1:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise InputError(f"line {line}: No topology is as large or as deep as this.", hint=_HINT)


_HINT = "`holdfast topology show --example` prints a file to begin with."


def _not_yaml(error: yaml.MarkedYAMLError) -> InputError:
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}: " if mark else ""
    return InputError(
        f"{where}This is not YAML: {error.problem or error.context}.",
        hint="Within { } and [ ] put host lists in quotes, as their brackets would be taken for a list.",
    )


def _plain(loader: Any, node: yaml.Node, place: Place, lines: dict[Place, int]) -> Plain:
    if len(place) > DEPTH_MAX or len(lines) > VALUES_MAX:
        raise InputError(f"line {_line(node)}: No topology is as large or as deep as this.", hint=_HINT)
    if isinstance(node, yaml.MappingNode):
        return _table(loader, node, place, lines)
    if isinstance(node, yaml.SequenceNode):
        entries = []
        for index, entry in enumerate(node.value):
            lines[*place, index] = _line(entry)
            entries.append(_plain(loader, entry, (*place, index), lines))
        return entries
    return _scalar(loader, node) if node.tag in _AS_TYPED else str(node.value)


def _table(loader: Any, node: yaml.MappingNode, place: Place, lines: dict[Place, int]) -> dict[str, Plain]:
    table: dict[str, Plain] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise InputError(f"line {_line(key_node)}: A name must be text.", hint="Put it in quotes.")
        key = key_node.value
        if key in table:
            raise InputError(f"line {_line(key_node)}: `{key}` occurs twice.", hint="Leave one of them out.")
        lines[*place, key] = _line(key_node)
        table[key] = _plain(loader, value_node, (*place, key), lines)
    return table


def _scalar(loader: Any, node: yaml.Node) -> Plain:
    """A number or truth value. The parser raises various errors for a wrong value with such a tag."""
    try:
        value: Plain = loader.construct_object(node)
    except (ValueError, LookupError):
        kind = node.tag.rpartition(":")[2]
        raise InputError(
            f"line {_line(node)}: This cannot be read as {kind}.",
            hint="Put it in quotes to have it as text.",
        ) from None
    return value


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
