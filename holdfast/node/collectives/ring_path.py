"""The path of a rank's ring of collectives, beside its ledger."""

from __future__ import annotations

from pathlib import Path


def ring_path(ledger: str | Path) -> Path:
    """Return the path of the ring of the rank with this ledger."""
    return Path(ledger).with_suffix(".collectives")
