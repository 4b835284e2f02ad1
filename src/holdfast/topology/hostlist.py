"""Host lists as Slurm writes them: `n[000-063],login1` for 65 names, and back."""

import re
from collections.abc import Iterable, Iterator
from itertools import product

from holdfast.record.errors import InputError

NAMES_MAX = 2_000_000
"""More names than any cluster has: a list that stands for more is a typing mistake."""

_HINT = (
    "Host lists are written as Slurm writes them: `n[00-15,20]` for n00 to n15 and n20, with commas between."
)
_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
DIGITS_MAX = 18
"""The most digits of a number in a name; of longer ones only the last digits count as a number."""
_RANGE = re.compile(rf"([0-9]{{1,{DIGITS_MAX}}})(?:-([0-9]{{1,{DIGITS_MAX}}}))?")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_LAST_NUMBER = re.compile(rf"(.*?)([0-9]{{1,{DIGITS_MAX}}})([^0-9]*)", re.DOTALL)


def expand(text: str) -> list[str]:
    """The names in the order of the text; a name may occur twice."""
    names: list[str] = []
    end = 0
    for item in _ITEM.finditer(text):
        if text[end : item.start()].strip() not in ("", ",") or (end and "," not in text[end : item.start()]):
            raise _unreadable(text)
        end = item.end()
        if len(names) + _item_count(item[0]) > NAMES_MAX:
            raise _too_many(text)
        names += _expand_item(item[0], text)
    if text[end:].strip() or not names:
        raise _unreadable(text)
    return names


def count(text: str) -> int:
    """How many names the lists in a text stand for, without making them; other text counts as one."""
    return sum(_item_count(item[0]) for item in _ITEM.finditer(text))


def fold(names: Iterable[str]) -> str:
    """A short list that stands for these names, each once: `n[00-15].[0-7]` for 128 of them."""
    return ",".join(_folded(dict.fromkeys(names)))


def _folded(names: Iterable[str]) -> list[str]:
    """Fold names with the same last numbers together, and then the parts before them in the same way."""
    alike: dict[tuple[str, str], list[str]] = {}
    for before, inner, after in _ranges(names):
        alike.setdefault((inner, after), []).append(before)
    items: list[str] = []
    for (inner, after), befores in alike.items():
        shorter = _folded(befores) if len(befores) > 1 and inner else befores
        items += [f"{before}{inner}{after}" for before in shorter]
    return items


def _ranges(names: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Split names at their last number: the part before, the folded numbers, and the part after."""
    split = {name: _LAST_NUMBER.fullmatch(name) for name in names}
    # 10 goes with the zero-padded 08 and 09 if those occur, else with 8 and 9.
    padded = {(found[1], len(found[2]), found[3]) for found in split.values() if found and found[2][0] == "0"}
    groups: dict[tuple[str, int, str], list[int]] = {}
    for name, found in split.items():
        before, digits, after = found.groups() if found else (name, "", "")
        if not digits:
            groups[before, 0, after] = []
            continue
        width = len(digits) if (before, len(digits), after) in padded else 1
        groups.setdefault((before, width, after), []).append(int(digits))
    for (before, width, after), numbers in groups.items():
        yield before, _bracketed(sorted(numbers), width) if numbers else "", after


def _bracketed(numbers: list[int], width: int) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    parts = [f"{low:0{width}}" if low == high else f"{low:0{width}}-{high:0{width}}" for low, high in ranges]
    return parts[0] if len(numbers) == 1 else f"[{','.join(parts)}]"


def _expand_item(item: str, text: str) -> list[str]:
    pieces = _BRACKETS.split(item)
    if len(pieces) == 1:
        return pieces
    choices = [[piece] if index % 2 == 0 else _numbers(piece, text) for index, piece in enumerate(pieces)]
    return ["".join(combination) for combination in product(*choices)]


def _item_count(item: str) -> int:
    count = 1
    for inside in _BRACKETS.findall(item):
        ranges = [_RANGE.fullmatch(part.strip()) for part in inside.split(",")]
        count *= sum(
            max(1, int(found[2] or found[1]) - int(found[1]) + 1) if found else 1 for found in ranges
        )
    return count


def _numbers(inside: str, text: str) -> list[str]:
    """`0-3,08` as its numbers; as many digits as the lower end of a range has."""
    numbers: list[str] = []
    for part in inside.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise _unreadable(text)
        low, high = found[1], found[2] or found[1]
        if int(high) < int(low):
            raise InputError(f"The range {part.strip()} in {text!r} goes nowhere.", hint=_HINT)
        if len(numbers) + int(high) - int(low) >= NAMES_MAX:
            raise _too_many(text)
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return numbers


def _unreadable(text: str) -> InputError:
    return InputError(f"{text!r} is not a list of names.", hint=_HINT)


def _too_many(text: str) -> InputError:
    return InputError(f"{text!r} stands for more than {NAMES_MAX:,} names.", hint="Check its numbers.")
