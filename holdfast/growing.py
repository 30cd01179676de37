"""Collections that grow by one element at a time, and share what they have in common with their earlier versions.

State is immutable: each event makes a new one. Copying a set of all nodes for each node that joins it costs the square
of their number; here a new version costs the same at any size, and so does its difference from an earlier one. Old
versions stay valid. Adding to a version that is not the newest copies it once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Generic, Self, TypeVar, get_args, get_origin

import msgspec

REPLACED_MAX = 8
"""Number of values that a key has had on average, from which the values before the present ones are forgotten."""

V = TypeVar("V")


class Growing(ABC):
    """A collection that knows what was added since an earlier version, and how it is stored."""

    __slots__ = ()

    @abstractmethod
    def since(self, before: Any) -> list[Any] | dict[str, Any] | None:
        """Return the elements that were added to `before`, of a mapping also those replaced; None if this is no later
        version of it."""

    @abstractmethod
    def to_plain(self) -> list[Any] | dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_plain(cls, plain: Any, *of: Any) -> Self:
        """Return the collection from its decoded JSON; `of`: the type's arguments."""


class _History(Generic[V]):
    """The values of all keys, each with the version since which it holds, and the keys by version."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.values: dict[str, list[tuple[int, V]]] = {}

    def add(self, key: str, value: V) -> None:
        self.keys.append(key)
        self.values.setdefault(key, []).append((len(self.keys), value))


class GrowingMap(Growing, Mapping[str, V]):
    """A mapping of which each version is immutable."""

    __slots__ = ("_history", "_size", "_version")

    def __init__(self, items: Mapping[str, V] | Iterable[tuple[str, V]] = ()) -> None:
        self._history: _History[V] = _History()
        for key, value in dict(items).items():
            self._history.add(key, value)
        self._version = self._size = len(self._history.keys)

    def having(self, key: str, value: V) -> Self:
        """Return the mapping with this value under `key`."""
        history = self._history
        # An empty one may be a default that many share. Values that were replaced are forgotten with the next copy.
        if len(history.keys) != self._version or not self._version or self._version > REPLACED_MAX * self._size:
            return type(self)({**self, key: value})
        is_new = key not in history.values
        history.add(key, value)
        after = object.__new__(type(self))
        after._history, after._version, after._size = history, self._version + 1, self._size + is_new
        return after

    def __or__(self, other: Mapping[str, V]) -> Self:
        after = self
        for key, value in other.items():
            after = after.having(key, value)
        return after

    def since(self, before: Self) -> dict[str, V] | None:
        if self._history is not before._history or self._version < before._version:
            return None
        return {key: self[key] for key in self._history.keys[before._version : self._version]}

    def to_plain(self) -> dict[str, V]:
        return dict(self)

    @classmethod
    def from_plain(cls, plain: Any, *of: Any) -> Self:
        return cls(msgspec.convert(plain, dict[str, of[0]], str_keys=True))  # type: ignore[valid-type]

    def __getitem__(self, key: str) -> V:
        for since, value in reversed(self._history.values.get(key, ())):
            if since <= self._version:
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (key for key, values in self._history.values.items() if values[0][0] <= self._version)

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        if isinstance(other, GrowingMap) and self._history is other._history:
            early, late = sorted((self, other), key=lambda it: it._version)
            added = self._history.keys[early._version : late._version]
            return len(early) == len(late) and all(early[key] == late[key] for key in added)
        return isinstance(other, Mapping) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"


class GrowingSet(Growing, Set[str]):
    """A set of which each version is immutable."""

    __slots__ = ("_keys",)

    def __init__(self, items: Iterable[str] = ()) -> None:
        self._keys: GrowingMap[None] = GrowingMap((item, None) for item in items)

    def __or__(self, other: Iterable[Any]) -> GrowingSet:
        keys = self._keys
        for item in other:
            if item not in keys:
                keys = keys.having(item, None)
        if keys is self._keys:
            return self
        after = object.__new__(GrowingSet)
        after._keys = keys
        return after

    def since(self, before: GrowingSet) -> list[str] | None:
        added = self._keys.since(before._keys)
        return None if added is None else list(added)

    def to_plain(self) -> list[str]:
        return list(self)

    @classmethod
    def from_plain(cls, plain: Any, *of: Any) -> Self:
        return cls(msgspec.convert(plain, list[str]))

    def __contains__(self, item: object) -> bool:
        return item in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, GrowingSet):
            return len(self) == len(other) and self._keys == other._keys
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"


def to_json(value: Any) -> Any:
    """Return a growing collection as msgspec can encode it: an `enc_hook`."""
    if isinstance(value, Growing):
        return value.to_plain()
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded")


def from_json(kind: Any, value: Any) -> Any:
    """Return a growing collection from what was encoded: a `dec_hook`."""
    of = get_origin(kind) or kind
    if isinstance(of, type) and issubclass(of, Growing):
        return of.from_plain(value, *get_args(kind))
    raise NotImplementedError(f"{kind} cannot be decoded")
