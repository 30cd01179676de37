"""The records of all nodes, found by node and by job.

What happened to a node is compared with what happened to others in the same jobs. Of ten thousand nodes few have failed
in a job, and these are found without a look at the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping

from holdfast.engines.record.history import Mark, NodeRecord


class NodeRecords(MutableMapping[str, NodeRecord]):
    """Records by node, the last changed last; or changes `on_top_of` others, which stay as they are."""

    def __init__(
        self, records: Mapping[str, NodeRecord] | None = None, *, on_top_of: NodeRecords | None = None
    ) -> None:
        self._below = on_top_of
        self._own: dict[str, NodeRecord] = {}
        self._nodes_of: dict[str, set[str]] = {}
        """Nodes whose records concern a job, by job."""
        self.update(records or {})

    def changes(self) -> tuple[NodeRecord, ...]:
        """Return the records that are not those below."""
        return tuple(self._own.values())

    def of_jobs(self, jobs: Iterable[str]) -> list[NodeRecord]:
        """Return the records of the nodes that failed in one of these jobs, or were evicted by one."""
        nodes = {node for job in jobs for node in self._nodes(job)}
        return [self[node] for node in sorted(nodes)]

    def accused_by(self, job: str) -> list[tuple[NodeRecord, Mark]]:
        """Return the evictions by a job that rest on nothing but what its ranks did, each with the node's record."""
        found = ((record, record.accusation) for record in self.of_jobs((job,)))
        return [(record, mark) for record, mark in found if mark is not None and mark.job == job]

    def accused_for(self, author: str) -> list[Mark]:
        """Return such evictions by all jobs of one user."""
        found = (record.accusation for record in self.values())
        return [mark for mark in found if mark is not None and mark.author == author]

    def _nodes(self, job: str) -> set[str]:
        own = self._nodes_of.get(job, set())
        return own if self._below is None else own | (self._below._nodes(job) - self._own.keys())

    def __getitem__(self, node: str) -> NodeRecord:
        if node in self._own or self._below is None:
            return self._own[node]
        return self._below[node]

    def __setitem__(self, node: str, record: NodeRecord) -> None:
        if node in self._own:
            del self[node]
        self._own[node] = record
        for job in _jobs(record):
            self._nodes_of.setdefault(job, set()).add(node)

    def __delitem__(self, node: str) -> None:
        """Delete a record, or the change of one below."""
        for job in _jobs(self._own.pop(node)):
            nodes = self._nodes_of[job]
            nodes.remove(node)
            if not nodes:
                del self._nodes_of[job]

    def __iter__(self) -> Iterator[str]:
        if self._below is not None:
            yield from (node for node in self._below if node not in self._own)
        yield from self._own

    def __len__(self) -> int:
        return len(self._own) if self._below is None else len(self._own.keys() | self._below.keys())


def _jobs(record: NodeRecord) -> set[str]:
    """Return the jobs that a record concerns: silence concerns none, so that a lost cluster costs no comparison."""
    accusation = record.accusation
    failed = {mark.job for mark in record.marks if mark.counts and mark.job}
    return failed | {accusation.job} if accusation else failed


NO_RECORDS = NodeRecords()
