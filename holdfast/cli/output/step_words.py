"""Words for the steps of a job: how many were lost, and where their numbers come from."""

from __future__ import annotations

_SOURCES = {
    "script": "as the script reports them",
    "framework": "as {name} counts them",
    "restored": "counted optimizer steps, from the number in {name}",
    "log": "counted optimizer steps, numbered by the script's output ({name})",
    "optimizer": "counted optimizer steps of this generation",
}


def steps_lost(steps: int | None) -> str:
    """Return a number of lost steps as text; "unknown" is not 0."""
    return "unknown" if steps is None else str(steps)


def steps_from(source: str | None, name: str | None) -> str:
    """Return where numbers of steps come from, "" if nothing is recorded."""
    words = _SOURCES.get(source or "", "").format(name=name or "what was restored")
    return f"{words} ({name})" if source == "optimizer" and name else words
