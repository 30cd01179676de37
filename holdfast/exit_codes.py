"""Exit codes that say more than that something failed."""

from __future__ import annotations

SUPERSEDED = 79
"""A newer generation has taken the checkpoints over from this rank's. The first code above those of sysexits.h."""

NOT_PERMITTED = 77
"""What was asked for must be allowed first. EX_NOPERM of sysexits.h."""

INTERRUPTED = 130
"""Of a command that Ctrl-C ended, or that left a job to itself, as shells have it."""
