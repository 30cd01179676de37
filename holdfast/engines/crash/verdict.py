"""Types of a crash diagnosis. Pure."""

from __future__ import annotations

import msgspec

from holdfast.symptoms import Root, Symptom


class EvidenceLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of evidence. `line` counts from 1, 0 for an exit code; `file` as given."""

    rank: int | None
    file: str
    line: int
    text: str


class CascadeRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that ended because of another one, and its matching line."""

    rank: int
    rule: str
    text: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """One symptom for the end of a job."""

    symptom: Symptom
    table_one: str | None
    root: Root
    first_rank: int | None
    """None if no evidence shows which rank failed first."""
    first_local_rank: int | None = None
    """Set if a log names a rank only within its node."""
    confidence: float
    """0 for unknown, at most 1."""
    rule: str
    """The deciding rule."""
    likely: Symptom | None = None
    """The symptom that the words of the last error of an unknown end point to, which prove nothing."""
    summary: str
    advice: str
    evidence: tuple[EvidenceLine, ...] = ()
    others: tuple[CascadeRank, ...] = ()
    """Ranks of the cascade."""


NOTHING = "Nothing here proves a cause. Give the logs of all ranks with their exit codes, and the nodes' kernel logs."


def unknown(summary: str, evidence: tuple[EvidenceLine, ...] = (), others: tuple[CascadeRank, ...] = ()) -> Diagnosis:
    """Return the diagnosis of a crash that no rule explains."""
    return Diagnosis(
        symptom=Symptom.UNKNOWN,
        table_one=None,
        root=Root.UNKNOWN,
        first_rank=None,
        confidence=0.0,
        rule="",
        summary=summary,
        advice=NOTHING,
        evidence=evidence,
        others=others,
    )
