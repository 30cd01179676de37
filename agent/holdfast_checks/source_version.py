"""Version of the test programs: a digest of their sources, so that answers of different versions are never compared."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_SOURCES = (
    "node_tests/alignment.py",
    "devices.py",
    "node_tests/gemm.py",
    "groups.py",
    "numbers.py",
    "node_tests/reference_model.py",
)
_DIGITS = 16


@cache
def program_of(test: str, workers: int) -> str:
    """Return the version of a test, with the number of devices where these compute together."""
    whole = hashlib.sha256()
    for name in _SOURCES:
        whole.update((Path(__file__).parent / name).read_bytes())
    together = f"/{workers}" if test == "alignment_parallel" else ""
    return f"{whole.hexdigest()[:_DIGITS]}{together}"
