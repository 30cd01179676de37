"""The members of a job, in the order of their node ranks, and their names.

They are tuples that know where each node is: nearly every event names a node, and a job may have ten thousand.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import SupportsIndex

from holdfast.events.parts.job import Grant


class Names(tuple[str, ...]):
    """Names of nodes, all different."""

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self)}

    @cached_property
    def as_set(self) -> frozenset[str]:
        return frozenset(self)

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def index(self, name: str, start: SupportsIndex = 0, stop: SupportsIndex | None = None) -> int:
        if start or stop is not None:
            return super().index(name, start, len(self) if stop is None else stop)
        return self.places[name]


class Members(tuple[Grant | None, ...]):
    """The node of each node rank; None where one is missing."""

    @cached_property
    def nodes(self) -> Names:
        return Names(member.node for member in self if member)

    @cached_property
    def by_node(self) -> dict[str, Grant]:
        return {member.node: member for member in reversed(self) if member}

    @cached_property
    def by_rack(self) -> Counter[str]:
        """The number of nodes in each rack."""
        return Counter(member.rack for member in self if member)

    @cached_property
    def vacancies(self) -> int:
        return len(self) - len(self.nodes)
