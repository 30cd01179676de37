"""The path of a rank's ring of collectives, beside its ledger."""

from __future__ import annotations

from pathlib import Path


def ring_path(ledger: str | Path) -> Path:
    return Path(ledger).with_suffix(".collectives")
