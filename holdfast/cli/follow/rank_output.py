"""Restores the output of ranks from messages: notes missing lines, and joins lines that two messages share."""

from __future__ import annotations

import msgspec


class LogLines(msgspec.Struct):
    """Lines of one output of a rank. `before`: how many it had before; None: an agent of an earlier release."""

    rank: int
    stream: str
    lines: list[str]
    generation: int = 0
    dropped: int = 0
    before: int | None = None
    is_open: bool = False
    """The last line goes on in the next message."""


class RankOutput:
    """The outputs of all ranks that are shown."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, str, int], int] = {}
        self._open: dict[str, int] = {}
        """The rank whose line has not ended, by stream."""

    @property
    def is_open(self) -> bool:
        """True while a line that was written has not ended."""
        return bool(self._open)

    def missing(self, lines: LogLines) -> int:
        """Return how many lines are missing before these."""
        if lines.before is None:
            return max(0, lines.dropped)
        output = lines.rank, lines.stream, lines.generation
        expected = self._next.get(output, lines.before)
        self._next[output] = lines.before + len(lines.lines)
        # An agent that was started again counts from 0.
        return max(0, lines.before - expected)

    def text(self, lines: LogLines, shown: list[str], prefix: str, *, on_terminal: bool = False) -> str:
        """Return the text to write. `shown` are the lines as the output takes them, `prefix` what begins each line.
        `on_terminal`: both streams appear at one place, where a line of the other one ends first.
        """
        goes_on = self._open.get(lines.stream) == lines.rank
        cuts = lines.stream in self._open or (on_terminal and self.is_open)
        if on_terminal:
            self._open.clear()
        self._open.pop(lines.stream, None)
        if lines.is_open:
            self._open[lines.stream] = lines.rank
        prefixed = [f"{'' if goes_on and not at else prefix}{line}" for at, line in enumerate(shown)]
        return ("\n" if cuts and not goes_on else "") + "\n".join(prefixed) + ("" if lines.is_open else "\n")

    def end_line(self, *, on_terminal: bool) -> bool:
        """Return True if a line that other text on the standard error would continue ends now."""
        was_open = "err" in self._open or (on_terminal and self.is_open)
        if was_open:
            self._open.clear()
        return was_open
