"""Where a rank's ring of collectives lies: beside its ledger."""

from __future__ import annotations

from pathlib import Path


def ring_path(ledger: str | Path) -> Path:
    """Where the rank with this ledger has its ring."""
    return Path(ledger).with_suffix(".collectives")
