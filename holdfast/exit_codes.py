"""Exit codes by which a rank says more than that it failed."""

from __future__ import annotations

SUPERSEDED = 79
"""A newer generation has taken the checkpoints over from this rank's. The first code above those of sysexits.h."""
