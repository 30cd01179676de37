"""Answers of alignment tests that several machines agreed on earlier, used as one more vote. Pure.

Floating-point sums differ between hardware, libraries and versions of the test, so an answer is valid only for equal
hardware and program. It is kept only if at least two machines gave it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.engines.checks.folding import unfolded
from holdfast.events import DiagnosticResult

MACHINES_MIN = 2
"""Machines that must agree, identified by boot id: two nodes on one machine share its processors."""


class AnswerKey(msgspec.Struct, frozen=True):
    """Identity of a test's answer; `program`: version of the test, "" if the agent did not report it."""

    test: str
    hardware: str
    program: str

    def __str__(self) -> str:
        return f"{self.test} {self.program} on {self.hardware}"


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    key: AnswerKey
    digest: str
    nodes: tuple[str, ...]


References = Mapping[AnswerKey, str]
"""Known digests."""

NO_REFERENCES: References = {}


def key_of(result: DiagnosticResult) -> AnswerKey:
    """Return the key of a result's answer: answers with equal keys are comparable."""
    return AnswerKey(result.test, result.hardware, result.program)


def agreed(results: Iterable[DiagnosticResult], suspects: Collection[str]) -> tuple[Reference, ...]:
    """Return the answers to keep of a run whose verdict leaves nothing open, without those of `suspects`."""
    by_key: dict[AnswerKey, dict[str, list[DiagnosticResult]]] = defaultdict(lambda: defaultdict(list))
    for result in unfolded(results):
        if result.digest and result.status == "passed" and result.program and result.node not in suspects:
            by_key[key_of(result)][result.digest].append(result)
    found = []
    for key, by_digest in by_key.items():
        machines = {result.boot_id for answers in by_digest.values() for result in answers} - {""}
        if len(by_digest) == 1 and len(machines) >= MACHINES_MIN:
            ((digest, answers),) = by_digest.items()
            found.append(Reference(key=key, digest=digest, nodes=tuple(dict.fromkeys(a.node or "" for a in answers))))
    return tuple(found)
