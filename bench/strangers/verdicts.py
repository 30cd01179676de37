"""Verdicts: are the losses torchrun's, did the job come back, and is what Holdfast tells of it true."""

from __future__ import annotations

from typing import Any, NamedTuple

from strangers.cases import Case
from strangers.own_log import Note, Restart, restarts, same_losses
from strangers.runs import VICTIM, Ended, Struck
from strangers.slowing import Slowed

TOLERANCE_STEPS = 1.0
"""A rank may be struck between a step and the line about it, and ranks may differ by one step."""
SYMPTOMS = {"kill": "killed_by_signal", "stop": "hang"}
RIGHT, UNKNOWN, WRONG = "right", "unknown", "WRONG"


class Plain(NamedTuple):
    """Two undisturbed runs: notes with the same digits, and all notes of the reference."""

    same: int
    different: int
    wanted: int
    torchrun_s: float
    holdfast_s: float
    failure: str

    @property
    def is_right(self) -> bool:
        return not self.failure and self.different == 0 and self.same == self.wanted


class Told(NamedTuple):
    """A run that was struck: the truth, and what was told."""

    back_s: float | None
    is_complete: bool
    restarts: list[Restart]
    lost: float
    told_lost: int | None
    source: str
    symptom: str
    rank: int | None
    attempts: int
    is_same: bool | None
    failure: str
    verdict: str
    names_it: bool

    @property
    def is_right(self) -> bool:
        return self.is_complete and self.verdict != WRONG and self.names_it and self.is_same is not False


class Row(NamedTuple):
    """A script's results."""

    case: Case
    missing: str = ""
    plain: Plain | None = None
    told: dict[str, Told] | None = None
    slowed: Slowed | None = None

    @property
    def is_right(self) -> bool:
        told = (self.told or {}).values()
        is_same = self.plain is None or self.plain.is_right
        return is_same and all(one.is_right for one in told) and (self.slowed is None or self.slowed.is_right)

    def figures(self) -> dict[str, Any]:
        """Return the row for programs."""
        return {
            "script": self.case.name,
            "missing": self.missing or None,
            "plain": self.plain and self.plain._asdict(),
            "faults": {name: one._asdict() for name, one in (self.told or {}).items()},
            "slow": self.slowed and self.slowed._asdict(),
            "right": self.is_right,
        }


def judge_plain(reference: Ended, ended: Ended) -> Plain:
    """Compare an undisturbed job with torchrun's."""
    same, different = same_losses(reference.notes, ended.notes)
    failure = "".join(
        f"{name} ended with {one.code}: {one.stderr[-1500:]}"
        for name, one in (("torchrun", reference), ("holdfast run", ended))
        if one.code
    )
    return Plain(same, different, len(reference.notes), reference.took_s, ended.took_s, failure)


def judge_struck(case: Case, fault: str, reference: list[Note], struck: Struck) -> Told:
    """Compare what was told of a fault with the script's own log."""
    notes, incidents = struck.ended.notes, struck.incidents
    found = restarts(notes)
    # The log's first number is the script's own; steps of the job are those of its first optimizer.
    lost = sum(one.lost for one in found) * case.steps_per_line
    told_lost = None
    if incidents and all(one["lost_steps"] is not None for one in incidents):
        told_lost = sum(int(one["lost_steps"]) for one in incidents)
    first = incidents[0] if incidents else {}
    newest = struck.generations[-1] if struck.generations else {}
    different = same_losses(reference, notes)[1]
    is_complete = struck.ended.code == 0 and bool(notes) and bool(reference) and notes[-1].step == reference[-1].step
    wanted = SYMPTOMS[fault]
    rank = None if first.get("rank") is None else int(first["rank"])
    return Told(
        back_s=struck.back_s,
        is_complete=is_complete,
        restarts=found,
        lost=lost,
        told_lost=told_lost,
        source=str(newest.get("step_source_name") or newest.get("step_source") or ""),
        symptom=str(first.get("symptom") or ""),
        rank=rank,
        attempts=len(struck.generations),
        is_same=(different == 0) if case.is_exact else None,
        failure=struck.failure or ("" if is_complete else struck.ended.stderr[-1500:]),
        verdict=_verdict(case, lost, told_lost),
        names_it=first.get("symptom") == wanted and rank == (0 if case.child else VICTIM),
    )


def _verdict(case: Case, lost: float, told: int | None) -> str:
    if told is None:
        return WRONG if case.has_count else UNKNOWN
    return RIGHT if abs(told - lost) <= TOLERANCE_STEPS else WRONG
