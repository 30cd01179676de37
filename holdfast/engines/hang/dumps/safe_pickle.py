"""Pickles read as plain data: dicts, lists, tuples, texts, numbers. Nothing is imported or called. Pure.

The interpreter knows only the opcodes that build such values. Opcodes that can run code (GLOBAL, REDUCE, BUILD, INST,
persistent ids, extensions) are refused by name.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any, Final

VALUES_MAX: Final = 20_000_000
"""Maximum number of values, shared ones counted at each use: about 100,000 collectives."""
DEPTH_MAX: Final = 100
INTEGER_BYTES_MAX: Final = 64

_MARK: Final = object()
_NAMES: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}


class UnsafePickleError(ValueError):
    """A pickle that is broken, too large, or more than plain data. The message names the cause and the byte."""


def loads(data: bytes) -> object:
    """Return the value of a pickle, protocols 0 to 5. Raises UnsafePickleError if it is not plain data, is broken, or
    is larger than a flight recorder's dump can be."""
    machine = _Machine(data)
    try:
        value = machine.run()
    except (IndexError, struct.error, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UnsafePickleError):
            raise
        raise UnsafePickleError(f"the pickle is broken at byte {machine.at}: {error!r}") from None
    _check_size(value)
    return value


class _Machine:
    """One pass over a pickle. `at`: the current byte."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> object:
        data, stack, memo, steps = self.data, self.stack, self.memo, _STEPS
        at = 0
        # These opcodes make up nearly all of a dump and are executed inline: a call for each would double the time.
        while True:
            code = data[at]
            at += 1
            if code == 0x68:  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif code == 0x71:  # BINPUT
                memo[data[at]] = stack[-1]
                at += 1
            elif code == 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            elif code == 0x28:  # MARK
                stack.append(_MARK)
            elif code == 0x4E:  # NONE
                stack.append(None)
            elif code == 0x5D:  # EMPTY_LIST
                stack.append([])
            elif code == 0x6A:  # LONG_BINGET
                stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
                at += 4
            elif code == 0x72:  # LONG_BINPUT
                memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
                at += 4
            elif code == 0x2E:  # STOP
                if len(stack) != 1:
                    raise UnsafePickleError(f"the pickle ends with {len(stack)} values instead of one")
                return stack[0]
            else:
                self.at = at
                step = steps.get(code)
                if step is None:
                    raise UnsafePickleError(_refusal(code, at - 1))
                step(self)
                at = self.at

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise UnsafePickleError(f"the pickle is cut off: byte {self.at} announces {count} more")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        end = self.data.index(b"\n", self.at)
        taken = self.data[self.at : end]
        self.at = end + 1
        return taken

    def since_mark(self) -> list[Any]:
        stack = self.stack
        for index in range(len(stack) - 1, -1, -1):
            if stack[index] is _MARK:
                values = stack[index + 1 :]
                del stack[index:]
                return values
        raise UnsafePickleError(f"the pickle is broken at byte {self.at}: a mark is missing")


def _refusal(code: int, at: int) -> str:
    name = _NAMES.get(code)
    what = f"opcode {name}, which plain data does not need" if name else f"byte {code:#04x}, no opcode"
    return (
        f"the pickle has {what} at byte {at}: it is refused, since reading it could run code;"
        " a flight recorder's dump holds only dicts, lists, texts and numbers"
    )


def _list(machine: _Machine) -> list[Any]:
    value = machine.stack[-1]
    if not isinstance(value, list):
        raise UnsafePickleError(f"the pickle appends to something that is no list at byte {machine.at}")
    return value


def _dict(machine: _Machine) -> dict[Any, Any]:
    value = machine.stack[-1]
    if not isinstance(value, dict):
        raise UnsafePickleError(f"the pickle sets an item of something that is no dict at byte {machine.at}")
    return value


def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    _list(machine).append(value)


def _appends(machine: _Machine) -> None:
    values = machine.since_mark()
    _list(machine).extend(values)


def _setitem(machine: _Machine) -> None:
    pair = machine.stack[-2:]
    del machine.stack[-2:]
    _dict(machine).update(_items(pair))


def _setitems(machine: _Machine) -> None:
    values = machine.since_mark()
    _dict(machine).update(_items(values))


def _new_dict(machine: _Machine) -> None:
    machine.stack.append(_items(machine.since_mark()))


def _items(values: list[Any]) -> dict[Any, Any]:
    keys = values[::2]
    for key in keys:
        # Hashing a tuple of shared tuples can take exponential time.
        if not isinstance(key, str | int):
            raise UnsafePickleError(f"the pickle has a dict with a {type(key).__name__} as key")
    return dict(zip(keys, values[1::2], strict=True))


def _new_tuple(count: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        values = tuple(machine.stack[-count:])
        if len(values) < count:
            raise UnsafePickleError(f"the pickle is broken at byte {machine.at}: a tuple lacks values")
        del machine.stack[-count:]
        machine.stack.append(values)

    return step


def _constant(value: object) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value)


def _unsigned(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.number(size))


def _signed(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.take(4), "little", signed=True))


def _long(size: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        count = machine.number(size)
        if count > INTEGER_BYTES_MAX:
            raise UnsafePickleError(f"the pickle has an integer of {count} bytes at byte {machine.at}")
        machine.stack.append(int.from_bytes(machine.take(count), "little", signed=True))

    return step


def _integer_line(machine: _Machine) -> None:
    text = machine.line().removesuffix(b"L")
    if len(text) > INTEGER_BYTES_MAX:
        raise UnsafePickleError(f"the pickle has an integer of {len(text)} digits at byte {machine.at}")
    # Protocol 0 writes False and True as these two.
    machine.stack.append({b"00": False, b"01": True}.get(text) if text in (b"00", b"01") else int(text))


def _float(machine: _Machine) -> None:
    machine.stack.append(struct.unpack(">d", machine.take(8))[0])


def _text(size: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        machine.stack.append(machine.take(machine.number(size)).decode("utf-8", "surrogatepass"))

    return step


def _old_text(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(size)).decode("latin-1"))


def _bytes(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(size)))


def _skip(size: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        machine.take(size)

    return step


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


_STEPS: Final[dict[int, Callable[[_Machine], None]]] = {
    ord("g"): lambda machine: machine.stack.append(machine.memo[int(machine.line())]),
    ord("p"): lambda machine: machine.memo.__setitem__(int(machine.line()), machine.stack[-1]),
    0x94: _memoize,
    ord("X"): _text(4),
    0x8C: _text(1),
    0x8D: _text(8),
    ord("V"): lambda machine: machine.stack.append(machine.line().decode("raw-unicode-escape")),
    ord("U"): _old_text(1),
    ord("T"): _old_text(4),
    ord("C"): _bytes(1),
    ord("B"): _bytes(4),
    ord("M"): _unsigned(2),
    ord("J"): _signed,
    0x8A: _long(1),
    0x8B: _long(4),
    ord("I"): _integer_line,
    ord("L"): _integer_line,
    ord("G"): _float,
    ord("F"): lambda machine: machine.stack.append(float(machine.line())),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("}"): lambda machine: machine.stack.append({}),
    ord(")"): _constant(()),
    ord("l"): lambda machine: machine.stack.append(machine.since_mark()),
    ord("d"): _new_dict,
    ord("t"): lambda machine: machine.stack.append(tuple(machine.since_mark())),
    0x85: _new_tuple(1),
    0x86: _new_tuple(2),
    0x87: _new_tuple(3),
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _setitem,
    ord("u"): _setitems,
    ord("0"): lambda machine: machine.stack.pop(),
    ord("2"): lambda machine: machine.stack.append(machine.stack[-1]),
    0x80: _skip(1),
    0x95: _skip(8),
}


def _check_size(value: object) -> None:
    """Reject values that need too much memory: a few bytes of references can describe any number of values."""
    sizes: dict[int, int] = {}
    open_: set[int] = set()
    todo: list[tuple[object, bool]] = [(value, False)]
    while todo:
        here, seen = todo.pop()
        if not isinstance(here, list | tuple | dict) or (not seen and id(here) in sizes):
            continue
        parts = list(here.values()) if isinstance(here, dict) else here
        if seen:
            open_.discard(id(here))
            sizes[id(here)] = total = 1 + sum(sizes.get(id(part), 1) for part in parts)
            if total > VALUES_MAX:
                raise UnsafePickleError(f"the pickle describes more than {VALUES_MAX:,} values")
            continue
        if id(here) in open_:
            raise UnsafePickleError("the pickle has a value that contains itself")
        if len(open_) >= DEPTH_MAX:
            raise UnsafePickleError(f"the pickle is nested more than {DEPTH_MAX} deep")
        open_.add(id(here))
        todo.append((here, True))
        todo += [(part, False) for part in parts if isinstance(part, list | tuple | dict)]
