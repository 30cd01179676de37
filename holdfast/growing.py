"""Collections that grow by one element at a time, and share what they have in common with their earlier versions.

State is immutable: each event makes a new one. Copying a set of all nodes for each node that joins it costs the square
of their number; here a new version costs the same at any size, and so does its difference from an earlier one. Old
versions stay valid. Adding to a version that is not the newest copies it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import msgspec

V = TypeVar("V")


class _History(Generic[V]):
    """The values of all keys, each with the version since which it holds, and the keys by version."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.values: dict[str, list[tuple[int, V]]] = {}

    def add(self, key: str, value: V) -> None:
        self.keys.append(key)
        self.values.setdefault(key, []).append((len(self.keys), value))


class GrowingMap(Mapping[str, V]):
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
        if len(history.keys) != self._version or not self._version:
            # An empty one may be a default that many share.
            return type(self)({**self, key: value})
        is_new = key not in history.values
        history.add(key, value)
        after = object.__new__(type(self))
        after._history, after._version, after._size = history, self._version + 1, self._size + is_new
        return after

    def since(self, before: Self) -> dict[str, V] | None:
        """Return what was added to `before` or replaced in it; None if this is no later version of it."""
        if self._history is not before._history or self._version < before._version:
            return None
        return {key: self[key] for key in self._history.keys[before._version : self._version]}

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


class GrowingSet(Set[str]):
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
        """Return what was added to `before`; None if this is no later version of it."""
        added = self._keys.since(before._keys)
        return None if added is None else list(added)

    def to_array(self) -> list[str]:
        return list(self)

    @classmethod
    def from_array(cls, array: Any) -> Self:
        return cls(msgspec.convert(array, list[str]))

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


@runtime_checkable
class Growing(Protocol):
    """A collection that is stored as an array, and knows what was added since an earlier version."""

    def since(self, before: Any) -> list[Any] | None: ...

    def to_array(self) -> list[Any]: ...

    @classmethod
    def from_array(cls, array: Any) -> Self: ...


def to_json(value: Any) -> Any:
    """Return a growing collection as msgspec can encode it: an `enc_hook`."""
    if isinstance(value, Growing):
        return value.to_array()
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded")


def from_json(kind: Any, value: Any) -> Any:
    """Return a growing collection from what was encoded: a `dec_hook`."""
    if isinstance(kind, type) and issubclass(kind, Growing):
        return kind.from_array(value)
    raise NotImplementedError(f"{kind} cannot be decoded")
