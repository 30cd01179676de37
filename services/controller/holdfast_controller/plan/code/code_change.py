"""The change to a pending code version at a restart: an update, or a rollback. `updates.py` decides which version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.code.difference import Changes, changes_text, difference
from holdfast.code.manifest import Manifest
from holdfast.events import Event, HotUpdate, Rollback
from holdfast_controller.plan.draft import JobDraft


def apply_pending(draft: JobDraft, restart_reason: str) -> None:
    """Make the pending version the present one from the next generation on, and emit that."""
    state, code, pending = draft.state, draft.state.code, draft.state.code.pending
    new = code.known(pending.version) if pending else None
    if pending is None or new is None:
        draft.state = state.update(code=code.update(first_step=None))
        return
    changes = _changes(draft.rules.manifests, code.version, new.version, backwards=pending.goes_back)
    fields: dict[str, Any] = {
        "version": new.version,
        "number": new.number,
        "previous": code.version,
        "added": changes.added,
        "changed": changes.changed,
        "removed": changes.removed,
        "changed_files": changes.count,
    }
    if pending.goes_back and code.version:
        since = f"since {new.name}: {changes_text(changes)}"
        event: Event = draft.emit(
            Rollback, is_automatic=not pending.asked_by, reason=f"{pending.reason}; {since}", **fields
        )
    else:
        rides = state.incident is not None and not pending.is_urgent
        why = pending.reason if pending.is_urgent else f"{pending.reason}; {restart_reason}"
        event = draft.emit(HotUpdate, commit=new.commit, rides_on_failure=rides, reason=why, **fields)
    if state.incident is None:
        draft.cause = event.id
    else:
        # An error of the old code is no evidence against the new code.
        forgiven = msgspec.structs.replace(state.incident, user_error=None)
        state = state.update(incident=forgiven)
    generation = state.next_generation
    code = code.update(version=new.version, pending=None, since_generation=generation, first_step=None, failures=0)
    draft.state = state.update(code=code, settled=None, past_bad_numbers=())


def _changes(manifests: Mapping[str, Manifest], old: str | None, new: str, *, backwards: bool) -> Changes:
    before, after = manifests.get(old or ""), manifests.get(new)
    if before is None or after is None:
        return Changes()
    return difference(after, before) if backwards else difference(before, after)
