"""The files of Holdfast's own modules, as they were when this process imported them."""

from __future__ import annotations

import os
import sys


class LoadedCode:
    """The state on disk of the modules of Holdfast that are loaded here."""

    def __init__(self) -> None:
        self._stamps: dict[str, tuple[int, int]] = {}
        self.note()

    def note(self) -> None:
        """Add the modules that were imported since."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name.startswith("holdfast") and file is not None and file not in self._stamps:
                self._stamps[file] = _stamp(file)

    def has_changed(self) -> bool:
        """Return True if a file has another time or size by now, or is gone."""
        try:
            return any(_stamp(file) != stamp for file, stamp in self._stamps.items())
        except FileNotFoundError:
            return True


def _stamp(file: str) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_mtime_ns, found.st_size
