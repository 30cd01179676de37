"""What ranks print, as messages bring it: lines that are missing, and lines that go on in the next message."""

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
        self._open: tuple[int, str] | None = None

    @property
    def is_open(self) -> bool:
        """True while the last line that was written has not ended."""
        return self._open is not None

    def missing(self, lines: LogLines) -> int:
        """Return how many lines are missing before these."""
        if lines.before is None:
            return max(0, lines.dropped)
        output = lines.rank, lines.stream, lines.generation
        expected = self._next.get(output, lines.before)
        self._next[output] = lines.before + len(lines.lines)
        # An agent that was started again counts from 0.
        return max(0, lines.before - expected)

    def text(self, lines: LogLines, shown: list[str], prefix: str) -> str:
        """Return what to write. `shown` are the lines as the output takes them, `prefix` what begins each line."""
        goes_on = self._open == (lines.rank, lines.stream)
        begin = "" if self._open is None or goes_on else "\n"
        self._open = (lines.rank, lines.stream) if lines.is_open else None
        prefixed = [f"{'' if goes_on and not at else prefix}{line}" for at, line in enumerate(shown)]
        return begin + "\n".join(prefixed) + ("" if lines.is_open else "\n")

    def end_line(self) -> bool:
        """Return True if a line was open, which ends now."""
        was_open, self._open = self._open is not None, None
        return was_open
