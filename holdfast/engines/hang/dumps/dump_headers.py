"""Lines between the dumps of one file that say whose the next ones are: `=== rank 3 on node-1 ===`. Pure."""

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
    """The section that holds where reading is. A line counts only right above a dump: a log names ranks too."""

    def __init__(self) -> None:
        self.name = ""
        self._last = ""

    def pass_over(self, line: str) -> None:
        """Take note of a line that belongs to no dump."""
        if line.strip() and not line.startswith(_BETWEEN):
            if _is_head(line):
                self._last = line.strip(_MARKS)
            elif not _OF_ENVIRONMENT.match(line):
                self._last = ""

    @property
    def is_pending(self) -> bool:
        """Whether the next dump begins a new section."""
        return bool(self._last)

    def begin(self) -> None:
        """A dump begins."""
        if self._last:
            self.name, self._last = self._last, ""


def _is_head(line: str) -> bool:
    if len(line) > _CHARS_MAX or not _HEAD.match(line):
        return False
    name = line.strip(_MARKS)
    return len(name.split()) <= _WORDS_MAX and (rank_in_name(name) is not None or bool(node_in_name(name)))
