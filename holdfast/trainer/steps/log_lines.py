"""The numbers that a script prints with its steps, for scripts that nothing else shows the step of.

A line counts if it names a step and a number, and no epoch: in an epoch steps may begin again. Two lines whose numbers
are as far apart as the optimizer's steps between them show which number the script gives to its steps. If later ones
show another, the numbers begin again, for instance in each pass over the data: then they show nothing, and later
generations learn that from a file in the job's directory.
"""

from __future__ import annotations

import io
import re
import sys

from holdfast.node.ledger.ledger_layout import Source
from holdfast.trainer.phases import binding
from holdfast.trainer.steps.guard import harmless
from holdfast.trainer.steps.notes import NUMBERS_BEGIN_AGAIN, is_marked, mark

LINE_CHARS_MAX = 512
LINES_MAX = 10_000
_NUMBERED = re.compile(r"\b(global[ _-]?step|iteration|iter|step)s?\b\W{0,16}(\d{1,12})(?![\d.])", re.IGNORECASE)
_EPOCH = re.compile("epoch", re.IGNORECASE)


class LineNumbers:
    """`is_wanted` until it is known what the numbers show, or something better is."""

    def __init__(self) -> None:
        self.is_wanted = True
        self._lines = 0
        self._last: dict[str, tuple[int, int]] = {}
        self._shown: tuple[str, int] | None = None

    def take(self, text: str) -> None:
        """Compare the number in a line with the steps made so far."""
        ledger = binding.ledger
        if ledger is None:
            return
        done = ledger.steps_done + (binding.unsettled_ns is not None)
        is_known = ledger.steps_done and (ledger.is_numbered or binding.start.is_counted)
        self._lines += 1
        if binding.explicit or binding.framework or is_known or self._lines > LINES_MAX:
            self.is_wanted = False
            return
        line = text[:LINE_CHARS_MAX]
        if not done or (found := _NUMBERED.search(line)) is None or _EPOCH.search(line):
            return
        name, number = found[1].lower(), int(found[2])
        before = self._last.get(name)
        self._last[name] = number, done
        if before is None or ledger.steps_done == 0 or done == before[1]:
            return
        first = number - done + 1
        if number - before[0] != done - before[1]:
            return
        if first < 0 or (self._shown is not None and self._shown[0] == name and first < self._shown[1]):
            self.is_wanted = False
            mark(NUMBERS_BEGIN_AGAIN)
        elif self._shown is None:
            self._shown = name, first
            if not is_marked(NUMBERS_BEGIN_AGAIN):
                ledger.begin_steps(first, Source.LOG, f"{name} in its output")


class _Watched(io.TextIOWrapper):
    """A stream of the process, whose lines are read on the way."""

    numbers: LineNumbers

    def write(self, text: str, /) -> int:
        if self.numbers.is_wanted:
            _take(self.numbers, text)
        return super().write(text)


_kept: list[_Watched] = []


@harmless
def watch() -> None:
    """Read what the script prints from now on. Streams that are not the interpreter's own are left alone."""
    if binding.ledger is None:
        return
    numbers = LineNumbers()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is not io.TextIOWrapper:
            continue
        stream.flush()
        watched = _Watched(
            stream.buffer,
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        watched.numbers = numbers
        # Its end would close the descriptor, should the script put another stream in its place.
        _kept.append(watched)
        setattr(sys, name, watched)


@harmless
def _take(numbers: LineNumbers, text: str) -> None:
    numbers.take(text)
