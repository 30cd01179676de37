"""Groups that were evicted because one of their nodes blocks the others (ByteRobust §5.1): each is a guess.

If the job hangs again without those nodes, in the same incident or at the same place of its mesh, the hang follows the
job: the guess was wrong, its nodes come back, and no other group is evicted for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from holdfast.events import EvictionRevoked, SuspectsTested
from holdfast.events.parts.job import Grant
from holdfast_controller.plan.doubt.doubt_records import GroupGuess
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.evidence.blame import explained_by
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.record.noting import note_cleared

GUESSES_MAX = 16
"""Guesses that a job remembers; the newest."""


def may_guess(draft: JobDraft, failure: Failure) -> bool:
    """Return True if no earlier guess of the job is refuted by this failure."""
    return not any(_refutes(draft, failure, guess) for guess in draft.state.guesses)


def refute(draft: JobDraft, failure: Failure) -> None:
    """Take the nodes of wrong guesses off the blocklist. Those whose test has begun are judged by it."""
    kept: list[GroupGuess] = []
    for guess in draft.state.guesses:
        if not guess.is_refuted and _refutes(draft, failure, guess):
            reason = f"the job hangs without {', '.join(guess.nodes)} as well: {failure.text}"
            for node, epoch in guess.nodes.items():
                draft.emit(EvictionRevoked, node=node, epoch=epoch, reason=reason)
                note_cleared(draft, node, reason)
            guess = msgspec.structs.replace(guess, is_refuted=True)
        kept.append(guess)
    draft.update(guesses=tuple(kept))


def note(draft: JobDraft, failure: Failure, held: Iterable[Grant]) -> None:
    """Remember a group that leaves the job; its nodes are still members."""
    nodes = {member.node: member.epoch for member in held}
    guess = GroupGuess(
        incident=draft.incident.id,
        generation=failure.generation,
        at=draft.now,
        nodes=nodes,
        places=_places(draft.state, nodes),
    )
    recent = tuple(it for it in draft.state.guesses if _is_recent(draft, it))
    draft.update(guesses=(*recent, guess)[-GUESSES_MAX:])


def suspects_tested(draft: JobDraft, event: SuspectsTested) -> None:
    """Forget a guess that tests proved right: it does not count against the next one at the same place. What its nodes
    showed is explained."""
    named = {suspect.node for suspect in event.at_fault}
    incident = draft.state.incident
    if incident is not None and event.incident == incident.id:
        draft.update(incident=explained_by(named, incident))
    if any(named & guess.nodes.keys() for guess in draft.state.guesses):
        draft.update(guesses=tuple(it for it in draft.state.guesses if not named & it.nodes.keys()))


def _refutes(draft: JobDraft, failure: Failure, guess: GroupGuess) -> bool:
    """Return True if the failure shows that a guess was wrong. A guess of long ago is no evidence about another
    hang."""
    state = draft.state
    if failure.generation <= guess.generation or guess.nodes.keys() & state.nodes.as_set:
        return False
    if not _is_recent(draft, guess):
        return False
    is_of_incident = state.incident is not None and state.incident.id == guess.incident
    return is_of_incident or bool(guess.places & _places(state, failure.group))


def _places(state: JobState, nodes: Iterable[str]) -> frozenset[int]:
    """Return the node ranks of these nodes."""
    wanted = frozenset(nodes)
    return frozenset(place for place, member in enumerate(state.members) if member and member.node in wanted)


def _is_recent(draft: JobDraft, guess: GroupGuess) -> bool:
    """Return True as long as its nodes may be on the blocklist."""
    return draft.now - guess.at < timedelta(seconds=draft.rules.timeouts.block_s)
