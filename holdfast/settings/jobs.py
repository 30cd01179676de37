"""Section `[jobs]`: how nodes run the ranks of jobs."""

from __future__ import annotations

from holdfast.settings import Section


class JobsPolicy(Section, frozen=True, kw_only=True):
    """The ranks of jobs on their nodes."""

    run_as: str = "auto"
    """User that ranks of jobs run as, where the agent runs as root. "auto": a user of the job's own, or the agent's if
    files are closed to that; "own": a user of the job's own, whatever is closed to it; "agent": the agent's; else the
    name of a user."""
