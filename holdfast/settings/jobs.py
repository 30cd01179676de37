"""Section `[jobs]`: how nodes run the ranks of jobs."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within


class JobsPolicy(Section, frozen=True, kw_only=True):
    """The ranks of jobs on their nodes."""

    run_as: str = "auto"
    """User that ranks of jobs run as, where the agent runs as root. "auto": a user of the job's own, or the agent's if
    files are closed to that; "own": a user of the job's own, whatever is closed to it; "agent": the agent's; else the
    name of a user."""
    context_room_bytes: Annotated[int, Within(0, 1 << 53)] = 4 << 30
    """Free memory of a rank's accelerator from which a process with a context is made ahead, for a restart without that
    of the context; it takes some hundred MB there. It is ended once less than half of this is free. 0: none is made."""
