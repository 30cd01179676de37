"""Blame of nodes within an incident: each generation that failed first hand on a node counts once."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.symptoms import Symptom
from holdfast_controller.plan.incident.classify import FIRST_HAND_OF_NODE, OF_STORAGE
from holdfast_controller.plan.incident.incident import Failure, Incident, Recurrence

TRAITS_MAX = 16
"""Maximum number of traits that an incident remembers; the newest."""


def trait(failure: Failure) -> str | None:
    """Return the key under which the same failure is recognized on another node; None if it has none."""
    return failure.error.trait if failure.error and failure.symptom in FIRST_HAND_OF_NODE else None


def blame(incident: Incident, failure: Failure, members: frozenset[str]) -> Incident:
    """Return the incident with this failure counted, at most once per node of the job and generation."""
    if failure.symptom is Symptom.SERVICE_ELSEWHERE and failure.named in OF_STORAGE and failure.node is not None:
        return msgspec.structs.replace(incident, cut_off=incident.cut_off | {failure.node})
    if failure.symptom not in FIRST_HAND_OF_NODE or failure.node is None:
        return incident
    if failure.may_be_outage:
        generations = incident.unjudged.get(failure.node, frozenset()) | {failure.generation}
        return msgspec.structs.replace(incident, unjudged=incident.unjudged | {failure.node: generations})
    if shows := trait(failure):
        # The nodes of an earlier generation are not recorded: the remaining ones count, and the one that failed.
        here = members if failure.node in members else members | {failure.node}
        seen = incident.recurrences.get(shows, Recurrence(by={}, each_time=here))
        by = seen.by | {failure.generation: seen.by.get(failure.generation, frozenset()) | {failure.node}}
        shown = incident.recurrences | {shows: Recurrence(by=by, each_time=seen.each_time & here)}
        newest = sorted(shown.items(), key=lambda entry: max(entry[1].by))[-TRAITS_MAX:]
        incident = msgspec.structs.replace(incident, recurrences=dict(newest))
    if failure.is_shared:
        return _exonerated(incident, failure.generation)
    if incident.blamed_generation.get(failure.node) == failure.generation:
        return incident
    return msgspec.structs.replace(
        incident,
        blamed={**incident.blamed, failure.node: incident.blamed.get(failure.node, 0) + 1},
        blamed_generation={**incident.blamed_generation, failure.node: failure.generation},
    )


def explained_by(nodes: Iterable[str], incident: Incident) -> Incident:
    """Return the incident without what these nodes showed: tests or alerts prove a fault of theirs, which explains it.

    If the next node shows the same at that step, it is one more broken machine, or the first sign that it is the job.
    """
    proven = frozenset(nodes)
    left = {
        shows: msgspec.structs.replace(seen, by={of: rest for of, here in seen.by.items() if (rest := here - proven)})
        for shows, seen in incident.recurrences.items()
    }
    return msgspec.structs.replace(
        incident,
        recurrences={shows: seen for shows, seen in left.items() if seen.by},
        accused={rule: nodes - proven for rule, nodes in incident.accused.items()},
    )


def _exonerated(incident: Incident, generation: int) -> Incident:
    """Return the incident without the blame of this generation."""
    innocent = {node for node, last in incident.blamed_generation.items() if last == generation}
    times = {node: count - (node in innocent) for node, count in incident.blamed.items()}
    return msgspec.structs.replace(
        incident,
        blamed={node: count for node, count in times.items() if count},
        blamed_generation={node: last for node, last in incident.blamed_generation.items() if node not in innocent},
    )


def judge_outage(incident: Incident, members: frozenset[str]) -> Incident:
    """Return the incident of a job that runs again, with its unjudged failures counted or excused.

    Machines that went together have a cause in common, and no one of them is at fault, nor for what was seen on the way
    down. The job runs, so each machine has reported by now.
    """
    if not incident.unjudged:
        return incident
    if len(incident.unjudged) > 1 or incident.unjudged.keys() >= members:
        return msgspec.structs.replace(
            incident,
            unjudged={},
            excused=incident.attempts - len(incident.paused),
            blamed={},
            blamed_generation={},
            recurrences={},
        )
    times = {node: incident.blamed.get(node, 0) + len(generations) for node, generations in incident.unjudged.items()}
    return msgspec.structs.replace(incident, unjudged={}, blamed=incident.blamed | times)
