"""Nodes whose certificates other nodes refuse. Pure. A file has a line for each:

node-1                              # it is revoked: all its certificates are refused
node-2 2026-11-24T00:10:00+00:00    # its certificates that were made before this time are refused
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from holdfast.ids import checked_name


class Refusals:
    """The nodes whose certificates are refused: all of them (None), or those that were made before a time."""

    def __init__(self, nodes: Mapping[str, datetime | None]) -> None:
        self._nodes = dict(nodes)

    @classmethod
    def parse(cls, text: str) -> Refusals:
        """Return the nodes in a file; `#` begins a comment. Raises ValueError."""
        nodes: dict[str, datetime | None] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                node, *times = words
                since = [datetime.fromisoformat(time) for time in times]
                if len(since) > 1 or any(time.tzinfo is None for time in since):
                    raise ValueError("it is not of the form NODE or NODE TIME, the time with its zone")
                nodes[checked_name(node, "node")] = since[0].astimezone(UTC) if since else None
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
        return cls(nodes)

    def __str__(self) -> str:
        times = {
            node: "" if time is None else f" {time.astimezone(UTC).isoformat()}" for node, time in self._nodes.items()
        }
        return "".join(f"{node}{time}\n" for node, time in times.items())

    def why(self, names: Collection[str], made_at: datetime | None) -> str:
        """Return why a certificate with these names is refused, "" if it is not. `made_at` is None if there is none."""
        for name in names:
            if name not in self._nodes:
                continue
            since = self._nodes[name]
            if since is None:
                return f"node {name} is revoked"
            if made_at is not None and made_at < since:
                return (
                    f"the certificate of node {name} is from before {since:%Y-%m-%d %H:%M:%S %Z} and was revoked then"
                )
        return ""
