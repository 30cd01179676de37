"""Which version of a test computed an answer: its own source, so that no two versions are ever taken for one."""

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
    """The version of a test, with the number of devices where these compute together."""
    whole = hashlib.sha256()
    for name in _SOURCES:
        whole.update((Path(__file__).parent / name).read_bytes())
    together = f"/{workers}" if test == "alignment_parallel" else ""
    return f"{whole.hexdigest()[:_DIGITS]}{together}"
