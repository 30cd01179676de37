"""The results of a run of checks so far, by node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

import msgspec

from holdfast.engines.checks.suites import END
from holdfast.events import DiagnosticResult
from holdfast.growing import Growing, GrowingMap


class ResultLog(Growing):
    """The results of a run; each version is immutable, and the same result counts once. Adding one costs the same at
    any number of nodes."""

    __slots__ = ("_by_node",)

    def __init__(self, results: Iterable[DiagnosticResult] = ()) -> None:
        by_node: dict[str, tuple[DiagnosticResult, ...]] = {}
        for result in results:
            by_node[result.node or ""] = (*by_node.get(result.node or "", ()), result)
        self._by_node: GrowingMap[tuple[DiagnosticResult, ...]] = GrowingMap(by_node)

    def having(self, result: DiagnosticResult) -> ResultLog:
        node = result.node or ""
        known = self._by_node.get(node, ())
        if any(result.id == other.id for other in known):
            return self
        after = object.__new__(ResultLog)
        after._by_node = self._by_node.having(node, (*known, result))
        return after

    def has_all(self, node: str) -> bool:
        """Return True if all results of this node are here: the end of its run may overtake some."""
        own = self._by_node.get(node, ())
        return any(result.test == END and len(own) > result.results for result in own)

    def since(self, before: Self) -> list[DiagnosticResult] | None:
        added = self._by_node.since(before._by_node)
        if added is None:
            return None
        return [result for node, own in added.items() for result in own[len(before._by_node.get(node, ())) :]]

    def to_plain(self) -> list[DiagnosticResult]:
        return list(self)

    @classmethod
    def from_plain(cls, plain: Any, *of: Any) -> Self:
        return cls(msgspec.convert(plain, list[DiagnosticResult]))

    def __iter__(self) -> Iterator[DiagnosticResult]:
        return (result for own in self._by_node.values() for result in own)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResultLog) and self._by_node == other._by_node

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ResultLog({list(self)!r})"
