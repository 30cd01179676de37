"""Answers of alignment tests that several machines agreed on: a voter that was there before. Pure.

Floating-point sums differ between kinds of hardware, libraries and versions of the test itself, so an answer is known
by all of them and speaks of nothing else. It is kept only where no machine could have made it up alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.events import DiagnosticResult

MACHINES_MIN = 2
"""So many that gave the same answer, told apart by their boots: two nodes of one machine share its processors."""


class AnswerKey(msgspec.Struct, frozen=True):
    """What an answer is of; `program` is the version of the test, "" if the agent did not say it."""

    test: str
    hardware: str
    program: str

    def __str__(self) -> str:
        return f"{self.test} {self.program} on {self.hardware}"


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and the nodes that gave it."""

    key: AnswerKey
    digest: str
    nodes: tuple[str, ...]


References = Mapping[AnswerKey, str]
"""The digests that are known."""

NO_REFERENCES: References = {}


def key_of(result: DiagnosticResult) -> AnswerKey:
    """What this result's answer may be compared with."""
    return AnswerKey(result.test, result.hardware, result.program)


def agreed(results: Iterable[DiagnosticResult], suspects: Collection[str]) -> tuple[Reference, ...]:
    """What is to be remembered of a run whose verdict leaves nothing open, but for what `suspects` said."""
    said: dict[AnswerKey, dict[str, list[DiagnosticResult]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result.digest and result.status == "passed" and result.program and result.node not in suspects:
            said[key_of(result)][result.digest].append(result)
    found = []
    for key, by_digest in said.items():
        machines = {result.boot_id for answers in by_digest.values() for result in answers} - {""}
        if len(by_digest) == 1 and len(machines) >= MACHINES_MIN:
            ((digest, answers),) = by_digest.items()
            found.append(Reference(key=key, digest=digest, nodes=tuple(dict.fromkeys(a.node or "" for a in answers))))
    return tuple(found)
