"""Directories as a script may leave them: nested until no path leads to the innermost."""

from __future__ import annotations

import os
from pathlib import Path


def make_deep(folder: Path, levels: int) -> None:
    """Make nested directories, far longer than a path may be."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
