"""Nodes that leave a job only once others are there to replace them.

A job that trains on loses nothing while it waits for a replacement, and everything if there is none. A job that failed
on a node whose record calls for its eviction asks whether another one is free before tests stop it. A job that hangs
gives up only as many nodes of a group as can be replaced, the most suspect first: it is restarted in any case, and the
test of the nodes that left costs it nothing. It keeps them if they are fewer than three and not the whole group:
without a witness no test tells them apart.
"""

from __future__ import annotations

import msgspec

from holdfast.events import NodesAwaited, Withheld
from holdfast.events.parts.job import Grant
from holdfast_controller.plan.doubt.doubt_records import SUSPECTS_TESTED_MIN, Doubt, Replacement, leaving
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.incident import Failure, Rung
from holdfast_controller.plan.incident.recovery import handle_failure, new_incident_id
from holdfast_controller.plan.incident.rung_choice import RungChoice
from holdfast_controller.plan.incident.rungs import may_evict
from holdfast_controller.plan.phase import LIVE, Running

NO_REPLACEMENT = "no_replacement"
"""Mechanism that withholds an eviction: no other node is free."""


def replace_when_possible(draft: JobDraft, failure: Failure, mechanism: str) -> bool:
    """Evict the nodes once others are granted, or at once if the job does not train. Return False if it is withheld."""
    nodes = leaving(failure)
    if not may_evict(draft, RungChoice(rung=Rung.EVICT, reason=failure.text, nodes=nodes, mechanism=mechanism)):
        return False
    if not isinstance(draft.state.phase, Running):
        handle_failure(draft, failure)
    else:
        reason = f"to replace {', '.join(nodes)}; the job trains on until then: {failure.text}"
        # One that is open now may be over when the nodes come.
        to_open = "" if draft.state.incident else new_incident_id(draft)
        request = draft.request_nodes(reason, len(nodes), incident=to_open or draft.incident.id)
        draft.update(replacement=Replacement(failure=failure, claim=request.id, incident=to_open))
    return True


def awaited(draft: JobDraft, event: NodesAwaited) -> None:
    """Report that no node leaves the job for now: it trains, and nothing is free to go on with."""
    replacement = draft.state.replacement
    if replacement is None or event.claim != replacement.claim:
        return
    if replacement.until is not None:
        free = 0 if event.behind else event.available
        _narrow(draft, replacement, free, f"{free} of {event.wanted} nodes in their place are free")
        return
    for node in replacement.leaving:
        doubt = draft.state.doubts.get(node)
        if doubt is None or not doubt.is_withheld:
            reason = (
                f"{replacement.failure.text}; the job trains, and no free node can replace {node}: it stays for now"
            )
            draft.emit(Withheld, mechanism=NO_REPLACEMENT, rung=Rung.EVICT, node=node, reason=reason)
        if doubt is not None:
            draft.update(doubts=draft.state.doubts | {node: _withheld(doubt)})


def granted(draft: JobDraft, grants: tuple[Grant, ...]) -> None:
    """Evict the nodes whose replacements are here; give these back if it is not wanted any more."""
    replacement = draft.state.replacement
    assert replacement is not None
    draft.update(replacement=None)
    failure = replacement.failure
    if _is_wanted(draft, replacement):
        draft.update(spares=grants)
        handle_failure(draft, failure, replacement.incident)
        grants = draft.state.spares
        draft.update(spares=())
    if grants:
        draft.release(grants, "they are not needed to replace a node any more")


def unanswered(draft: JobDraft) -> None:
    """Go on without the standby service, which has not answered for too long."""
    replacement = draft.state.replacement
    assert replacement is not None
    draft.cause = replacement.claim
    _narrow(draft, replacement, 0, "it is not known whether others are free")


def _narrow(draft: JobDraft, replacement: Replacement, free: int, why: str) -> None:
    """Evict as much of a group as can be replaced. If that is too little, the job is restarted with it."""
    draft.update(replacement=None)
    failure = replacement.failure
    if not _is_wanted(draft, replacement):
        draft.release((), "they are not needed to replace a node any more", withdraws_claim=True)
        return
    if failure.of_warm_up and not free:
        stays = "stays" if len(failure.group) == 1 else "stay"
        reason = f"{failure.text}; {', '.join(failure.group)} {stays} for now: {why}"
        draft.release((), reason, withdraws_claim=True)
        draft.emit(Withheld, mechanism=NO_REPLACEMENT, rung=Rung.EVICT, node=failure.node, reason=reason)
        draft.update(unfit=draft.state.unfit | dict.fromkeys(failure.group, failure))
        return
    if failure.group and not failure.suspects and free >= (1 if failure.of_warm_up else SUSPECTS_TESTED_MIN):
        failure = msgspec.structs.replace(failure, group=failure.group[:free])
    else:
        leaving = replacement.leaving
        reason = f"{failure.text}; {', '.join(leaving)} {'stays' if len(leaving) == 1 else 'stay'} for now: {why}"
        draft.release((), reason, withdraws_claim=True)
        node = leaving[0] if len(leaving) == 1 else None
        draft.emit(Withheld, mechanism=NO_REPLACEMENT, rung=Rung.EVICT, node=node, reason=reason)
        lacks_witness = free >= len(leaving)
        failure = msgspec.structs.replace(
            failure, is_convincing=False, is_irreplaceable=True, lacks_witness=lacks_witness
        )
    handle_failure(draft, failure, replacement.incident)


def withdraw(draft: JobDraft, nodes: tuple[str, ...], reason: str) -> None:
    """Forget that these nodes were to be replaced."""
    replacement = draft.state.replacement
    if replacement is not None and replacement.leaving == nodes:
        draft.update(replacement=None)
        draft.release((), reason, withdraws_claim=True)


def _is_wanted(draft: JobDraft, replacement: Replacement) -> bool:
    state, failure = draft.state, replacement.failure
    if replacement.until is not None:
        is_same = isinstance(state.phase, LIVE) and failure.generation == state.generation
        goes_on = state.step > failure.step and not state.has_ended_ranks
        return is_same and set(replacement.leaving) <= state.nodes.as_set and not goes_on
    is_present = isinstance(state.phase, Running) and set(replacement.leaving) <= state.nodes.as_set
    # Slowness is that of one generation.
    return is_present and (not failure.group or failure.generation == state.generation)


def _withheld(doubt: Doubt) -> Doubt:
    return Doubt(failure=doubt.failure, key=doubt.key, since=doubt.since, due_at=doubt.due_at, is_withheld=True)
