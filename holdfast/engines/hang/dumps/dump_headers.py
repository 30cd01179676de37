"""Header lines between dumps that name the rank or node of the next ones: `=== rank 3 on node-1 ===`. Pure."""

from __future__ import annotations

import re

from holdfast.engines.hang.dumps.process_kinds import node_in_name, rank_in_name

_MARKS = "=-#*<>[]: "
_CHARS_MAX = 160
_WORDS_MAX = 6
_HEAD = re.compile(r"^[=\-#*<>\[]|^(?:global[ _-]?)?(?:rank|node|host|machine|worker)\b", re.IGNORECASE)
_OF_ENVIRONMENT = re.compile(r"^(?:export )?\w+=\S*$")
_BETWEEN = ("Timeout (", "Fatal Python error", "Python v", "Collecting samples")


class DumpHeaders:
    """The header in force while reading. A line counts only directly above a dump, since logs name ranks too."""

    def __init__(self) -> None:
        self.name = ""
        self._last = ""

    def pass_over(self, line: str) -> None:
        """Record a line that belongs to no dump."""
        if line.strip() and not line.startswith(_BETWEEN):
            if _is_head(line):
                self._last = line.strip(_MARKS)
            elif not _OF_ENVIRONMENT.match(line):
                self._last = ""

    @property
    def is_pending(self) -> bool:
        """True if the next dump begins a new section."""
        return bool(self._last)

    def begin(self) -> None:
        if self._last:
            self.name, self._last = self._last, ""


def _is_head(line: str) -> bool:
    if len(line) > _CHARS_MAX or not _HEAD.match(line):
        return False
    name = line.strip(_MARKS)
    return len(name.split()) <= _WORDS_MAX and (rank_in_name(name) is not None or bool(node_in_name(name)))
