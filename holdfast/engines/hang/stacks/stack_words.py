"""Lines of evidence: a process, its state and its calls in one line. Pure."""

from __future__ import annotations

from holdfast.engines.hang.stacks.process_state import ProcessState
from holdfast.events.parts.traces import ProcessStacks

_CALLS_SHOWN = 4


def line_of(process: ProcessStacks, state: ProcessState, whose: str = "") -> str:
    """Return the line of a process; `whose` names it in place of its rank."""
    whose = whose or (f"rank {process.rank}" if process.rank is not None else f"process {process.pid}")
    kind = "" if process.kind == "rank" else f", {process.kind.replace('_', ' ')} {process.pid}"
    seen = f", state {process.state}" if process.state else ""
    if not process.threads:
        return f"{whose}{kind}{seen}: {process.unread or 'no stack'}"
    others = (thread for thread in process.threads if thread.frames and not thread.is_main)
    holder = next((thread for thread in others if thread.holds_gil), None)
    held = f"; thread {holder.name} holds the interpreter lock in {holder.frames[0].function}" if holder else ""
    return f"{whose}{kind}{seen}: {_calls(state)}{held}"


def _calls(state: ProcessState) -> str:
    calls = [
        f"{call.function} ({call.file}:{call.line})" if call.line else str(call)
        for call in state.stack.calls[:_CALLS_SHOWN]
    ]
    return " < ".join(calls or state.stack.native[:_CALLS_SHOWN]) or "no calls"
