"""Exit codes with a specific meaning."""

from __future__ import annotations

SUPERSEDED = 79
"""A newer generation has taken over the checkpoints of this rank's. First code above those of sysexits.h."""

NOT_PERMITTED = 77
"""The request needs a permission first. EX_NOPERM of sysexits.h."""

INTERRUPTED = 130
"""A command was ended by Ctrl-C, or left its job running; as in shells."""
