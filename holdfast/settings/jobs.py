"""Section `[jobs]`: how nodes run the ranks of jobs."""

from __future__ import annotations

from holdfast.settings import Section


class JobsPolicy(Section, frozen=True, kw_only=True):
    """The ranks of jobs on their nodes."""

    run_as: str = ""
    """Name of the user that ranks of jobs run as, where the agent runs as root; "": the agent's user."""
