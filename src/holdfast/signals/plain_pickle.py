"""Pickles of plain values: dicts, lists, tuples, strings, numbers, booleans and None, and nothing else.

Python's own unpickler calls whatever the data name, and a few bytes can make it reserve gigabytes. This one
knows only the opcodes that plain values need: none of them names or calls anything. An opcode of one byte can
take 72 bytes of memory; so the opcodes are counted, except those that repeat an earlier value.
"""

import struct
from collections.abc import Callable
from typing import Any

STEPS_MAX = 2_000_000
"""Opcodes, without repetitions. The calls of a rank take 53 each, and torch keeps 2,000 by default."""
DEFECTS = (IndexError, KeyError, TypeError, AttributeError, struct.error, ValueError)
"""What goes wrong inside for data that are cut off or make no sense."""


class NotPlain(ValueError):
    """Not a pickle, a damaged one, or one of more than plain values."""


def decode(content: bytes) -> object:
    """The pickled value. Raises `NotPlain`."""
    machine = _Machine(content)
    memo, stack, at, steps = machine.memo, machine.stack, 0, 0
    try:
        while (code := content[at]) != _STOP:
            # Half of the opcodes of a dump repeat an earlier value: these need no call.
            if code == _GET:
                stack.append(memo[content[at + 1]])
                at += 2
            elif code == _LONG_GET:
                stack.append(memo[_LONG.unpack_from(content, at + 1)[0]])
                at += 5
            else:
                if (steps := steps + 1) > STEPS_MAX:
                    raise NotPlain(f"it has more than {STEPS_MAX:,} values")
                machine.at = at + 1
                _OPCODES[code](machine)
                stack, at = machine.stack, machine.at
        (value,) = stack
    except NotPlain:
        raise
    except KeyError:
        raise NotPlain(f"byte {at} asks for more than plain values") from None
    except DEFECTS:
        raise NotPlain(f"it is damaged at byte {at}") from None
    return value


class _Machine:
    """The stack of the format; `outer` has what lies beneath each mark."""

    __slots__ = ("at", "content", "memo", "outer", "stack")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.memo: list[Any] = []

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.content):
            raise IndexError
        taken = self.content[self.at : end]
        self.at = end
        return taken

    def byte(self) -> int:
        found = self.content[self.at]
        self.at += 1
        return found

    def long(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.outer.pop()
        return items

    def put(self, place: int) -> None:
        """Writers number repeatable values in order, so a place is never far beyond the last."""
        if place == len(self.memo):
            self.memo.append(self.stack[-1])
        else:
            self.memo[place] = self.stack[-1]

    def text(self, count: int) -> None:
        self.stack.append(self.take(count).decode("utf-8", "surrogatepass"))

    def number(self, form: struct.Struct) -> None:
        self.stack.append(form.unpack(self.take(form.size))[0])

    def tuple_of(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        if len(items) < count:
            raise IndexError
        self.stack[-count:] = [items]

    def append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise TypeError
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        found = self.stack[-1]
        keys = items[::2]
        if type(found) is not dict or len(items) % 2 or not all(type(key) in (str, int) for key in keys):
            raise TypeError
        found.update(zip(keys, items[1::2], strict=True))


def _mark(machine: _Machine) -> None:
    machine.outer.append(machine.stack)
    machine.stack = []


def _marked_tuple(machine: _Machine) -> None:
    items = tuple(machine.since_mark())
    machine.stack.append(items)


def _set_one(machine: _Machine) -> None:
    items = [machine.stack.pop(), machine.stack.pop()]
    machine.set_items(items[::-1])


def _skip(count: int) -> Callable[[_Machine], object]:
    return lambda machine: machine.take(count)


_STOP, _GET, _LONG_GET = b".hj"
_INT, _LONG, _SHORT, _FLOAT = map(struct.Struct, ("<i", "<I", "<H", ">d"))
_OPCODES: dict[int, Callable[[_Machine], object]] = {
    0x80: _skip(1),  # the protocol's number
    0x95: _skip(8),  # the length of what follows
    ord("}"): lambda machine: machine.stack.append({}),
    ord("]"): lambda machine: machine.stack.append([]),
    ord(")"): lambda machine: machine.stack.append(()),
    ord("N"): lambda machine: machine.stack.append(None),
    0x88: lambda machine: machine.stack.append(True),
    0x89: lambda machine: machine.stack.append(False),
    ord("K"): lambda machine: machine.stack.append(machine.byte()),
    ord("M"): lambda machine: machine.number(_SHORT),
    ord("J"): lambda machine: machine.number(_INT),
    ord("G"): lambda machine: machine.number(_FLOAT),
    0x8A: lambda machine: machine.stack.append(
        int.from_bytes(machine.take(machine.byte()), "little", signed=True)
    ),
    ord("X"): lambda machine: machine.text(machine.long()),
    0x8C: lambda machine: machine.text(machine.byte()),
    ord("("): _mark,
    ord("a"): lambda machine: machine.append([machine.stack.pop()]),
    ord("e"): lambda machine: machine.append(machine.since_mark()),
    ord("s"): _set_one,
    ord("u"): lambda machine: machine.set_items(machine.since_mark()),
    ord("t"): _marked_tuple,
    0x85: lambda machine: machine.tuple_of(1),
    0x86: lambda machine: machine.tuple_of(2),
    0x87: lambda machine: machine.tuple_of(3),
    ord("q"): lambda machine: machine.put(machine.byte()),
    ord("r"): lambda machine: machine.put(machine.long()),
    0x94: lambda machine: machine.memo.append(machine.stack[-1]),
}
"""Those of protocols 2 to 5 that plain values need, besides the two in the loop. `pickletools` names them."""
