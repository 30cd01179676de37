"""Streaming scan of a log that keeps, in bounded memory, the lines that may explain its end. Pure.

Lines after which training went on are dropped: an error followed by three further steps did not end the job. An earlier
attempt in the same file is dropped too, unless the last one shows nothing.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from holdfast.engines.crash.bad_steps import bad_steps
from holdfast.engines.crash.log import (
    END_CHARS,
    LINE_CHARS_MAX,
    QUIET,
    LogLine,
    cut,
    dissect,
    looks_labelled,
    progress,
    task_of,
)
from holdfast.engines.crash.rules import LineFilter
from holdfast.engines.crash.wrappers import prefix_before_traceback, unwrapped

if TYPE_CHECKING:
    from holdfast.engines.crash.rule_matches import RuleMatch
    from holdfast.engines.crash.rules import RuleBook

HEAD_LINES = 150
"""Relevant lines kept of each rank: the first ones, and below the last ones."""
TAIL_LINES = 250
STREAMS_MAX = 8192
_HEAD_BYTES = 8192
_TAIL_BYTES = 1 << 16
_ADVANCES = 3
"""Later steps that prove that training survived a line: ranks of a job are never that far apart."""
_AFTER_FRAME = 4

_RESTART = re.compile(
    r"will restart worker group|Restarting worker group|Setting OMP_NUM_THREADS environment variable for each process"
    r"|using world size: \d+, data-parallel|WORLD INFO DICT|\[launcher\] starting attempt"
)
_COMPLETED = re.compile(
    r"^\W*(?:training|Training|TRAINING)(?: is| has)? ?(?:complete|completed|finished|done|ended)\b"
)
_EXCEPTION_LIKE = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$")
_MARKS = (
    b"will restart",
    b"Restarting",
    b"OMP_NUM_THREADS",
    b"world size",
    b"WORLD INFO",
    b"starting attempt",
    b"raining",
)


class _KeptLines:
    __slots__ = ("head", "tail")

    def __init__(self) -> None:
        self.head: list[LogLine] = []
        self.tail: deque[LogLine] = deque(maxlen=TAIL_LINES)

    def add(self, line: LogLine) -> None:
        if len(self.head) < HEAD_LINES:
            self.head.append(line)
        else:
            self.tail.append(line)

    def drop_before(self, number: int) -> None:
        lines = [line for line in (*self.head, *self.tail) if line.number >= number]
        self.head = lines[:HEAD_LINES]
        self.tail = deque(lines[HEAD_LINES:], maxlen=TAIL_LINES)

    def lines(self) -> tuple[LogLine, ...]:
        return (*self.head, *self.tail)


Streams = dict[tuple[int | None, bool], _KeptLines]
Lines = dict[tuple[int | None, bool], tuple[LogLine, ...]]


class ScannedLog:
    """Result of a scan: lines by (rank, local) of the last attempt and of the one before. `overtaken`: lines followed
    by steps that are not later ones, from buffered output or two streams in one file. `overtaken_by`: the approximate
    number of such steps."""

    def __init__(self, file: str, attempts: list[Lines], lines: int, overtaken: Lines) -> None:
        self.file = file
        self.attempts = attempts
        self.lines = lines
        self.overtaken = overtaken
        self.overtaken_by = 0
        self.matches: dict[tuple[RuleBook, int], dict[tuple[int | None, bool], list[RuleMatch]]] = {}
        """Cached matches of a rule book in a collection of lines, by book and id of the collection (`diagnose.py`)."""
        self.tail: tuple[LogLine, ...] = ()
        self.bad_steps: tuple[LogLine, ...] = ()
        """The steps with which the log ends, if their numbers are not finite."""


class LogScan:
    """Scan of one log. `rank`: from the log's name; `line_filter` selects lines."""

    def __init__(self, file: str, line_filter: LineFilter, rank: int | None = None, *, local: bool = False) -> None:
        self._file = file
        self._line_filter = line_filter
        self._rank = rank
        self._local = local
        self._number = 0
        self._streams: Streams = {}
        self._earlier: Streams | None = None
        self._oldest: int | None = None
        self._advances: deque[tuple[int, int]] = deque(maxlen=_ADVANCES)
        self._step: int | None = None
        self._step_before: int | None = None
        self._overtaken: Lines = {}
        self._overtaken_by = 0
        self._by_task: bool | None = None
        self._tasks_are_nodes = False
        self._at: dict[int | None, float] = {}
        self._open: int = 0
        self._prefix: re.Pattern[str] | None = None
        self._last_blocks: deque[bytes] = deque(maxlen=2)
        self._cold_block = b""
        self._marked = False

    def feed(self, block: bytes) -> None:
        """Scan the next lines of the log; a block ends with a line, or with a carriage return inside one."""
        if self._by_task is None:
            head = block[:_HEAD_BYTES].decode(errors="replace").split("\n")[:40]
            self._by_task = self._rank is None and looks_labelled(head)
        if not self._open and not self._line_filter.in_block(block) and not _is_marked(block):
            if self._oldest is not None:
                self._look_for_steps(block)
            elif self._overtaken:
                self._overtaken_by += block.count(b"\n")
            self._number += block.count(b"\n")
            self._cold_block = block
        else:
            if self._oldest is None and self._cold_block:
                self._number -= self._cold_block.count(b"\n")
                self._look_for_steps(self._cold_block)
                self._number += self._cold_block.count(b"\n")
            self._cold_block = b""
            self._marked = _is_marked(block)
            for raw in block.split(b"\n")[: -1 if block.endswith(b"\n") else None]:
                self._number += 1
                # Progress bars draw many texts over one line; whatever follows them is on that line as well.
                for part in raw.split(b"\r"):
                    self._take(part)
            if block.endswith(b"\r"):
                self._number -= 1
        if block.strip():
            self._last_blocks.append(block)

    def end(self) -> ScannedLog:
        attempts = [_lines_of(streams) for streams in (self._streams, self._earlier or {}) if streams]
        overtaken = self._overtaken
        if self._by_task:
            attempts = [_with_tasks(lines, are_nodes=self._tasks_are_nodes) for lines in attempts]
            overtaken = _with_tasks(overtaken, are_nodes=self._tasks_are_nodes)
        scanned = ScannedLog(self._file, attempts or [{}], self._number, overtaken)
        scanned.overtaken_by = self._overtaken_by
        numbered = self._last_lines()
        scanned.tail = tuple(dissect(text, number) for number, text in numbered[-3:])
        steps = bad_steps([text for _, text in numbered])
        scanned.bad_steps = tuple(dissect(numbered[place][1], numbered[place][0]) for place in steps)
        return scanned

    def _last_lines(self) -> list[tuple[int, str]]:
        """Return the log's last lines, with their numbers, and each drawing of a progress bar as one."""
        raw = b"".join(self._last_blocks)[-_TAIL_BYTES:].removesuffix(b"\n").split(b"\n")
        return [
            (self._number - len(raw) + 1 + place, part[:LINE_CHARS_MAX].decode(errors="replace"))
            for place, line in enumerate(raw)
            for part in line.split(b"\r")
            if part.strip()
        ]

    def _look_for_steps(self, block: bytes) -> None:
        # Only the last lines show whether training has gone on.
        first = self._number + block.count(b"\n") - block[-_HEAD_BYTES:].count(b"\n")
        for place, raw in enumerate(block[-_HEAD_BYTES:].split(b"\n")):
            raw = raw.rstrip(b"\r").rpartition(b"\r")[2]
            self._progress(raw[:LINE_CHARS_MAX].decode(errors="replace"), first + place)

    def _take(self, raw: bytes) -> None:
        line_filter = self._line_filter.in_line(raw, LINE_CHARS_MAX)
        if not line_filter and len(raw) > LINE_CHARS_MAX:
            line_filter = self._line_filter.in_line(raw[-END_CHARS:], END_CHARS)
        if not line_filter and not self._open:
            if raw:
                text = raw[:LINE_CHARS_MAX].decode(errors="replace")
                self._progress(text, self._number)
                self._mark(text, raw)
            return
        parts = unwrapped(cut(raw))
        for part in parts:
            if len(parts) > 1:
                line_filter = self._line_filter.in_line(part.encode(errors="replace"), LINE_CHARS_MAX)
            self._take_line(part, raw, is_kept=line_filter)

    def _take_line(self, text: str, raw: bytes, *, is_kept: bool) -> None:
        task, text = task_of(text) if self._by_task else (None, text)
        line = self._without_prefix(dissect(text, self._number), text)
        if task is not None:
            if line.rank is None:
                # Negative until the end, when it is known whether tasks are ranks.
                line = line._replace(rank=-1 - task)
            elif line.rank != task or line.local:
                self._tasks_are_nodes = True
        if self._rank is not None and (line.rank is None or (line.local and not self._local)):
            line = line._replace(rank=self._rank, local=self._local)
        if line.at is not None:
            self._at[line.rank] = line.at
        else:
            line = line._replace(at=self._at.get(line.rank))
        is_frame = 'File "' in line.text
        if not is_kept:
            self._open -= 1
            self._progress(line.text, self._number)
            if line.text[:1] in (" ", "\t", "") or not _EXCEPTION_LIKE.match(line.text):
                return
        elif self._mark(line.text, raw):
            return
        if is_frame:
            self._open = _AFTER_FRAME
        self._keep(line)

    def _without_prefix(self, line: LogLine, whole: str) -> LogLine:
        """Remove a prefix that stood before a traceback above as it does here, if no pattern knows it here."""
        if "Traceback (most" in whole:
            self._prefix = prefix_before_traceback(line.text) or prefix_before_traceback(whole)
        if self._prefix is None or (found := self._prefix.match(line.text)) is None:
            return line
        # The level is that of the program that repeats the line.
        level = "" if line.level in QUIET else line.level
        return line._replace(text=line.text[found.end() :], level=level)

    def _keep(self, line: LogLine) -> None:
        key = (line.rank, line.local)
        kept = self._streams.get(key)
        if kept is None:
            if len(self._streams) >= STREAMS_MAX:
                return
            kept = self._streams[key] = _KeptLines()
        kept.add(line)
        if self._oldest is None:
            self._oldest = line.number
            self._advances.clear()
            self._step_before = self._step

    def _progress(self, text: str, number: int) -> None:
        step = progress(text)
        if step is None or step == self._step:
            return
        self._step = step
        self._advances.append((number, step))
        if len(self._advances) == _ADVANCES and self._oldest is not None and self._oldest < self._advances[0][0]:
            first, first_step = self._advances[0]
            overtaken = self._step_before is None or first_step <= self._step_before
            lines = _lines_of(self._streams)
            self._drop_before(first)
            self._overtaken = (self._overtaken or lines) if overtaken else {}
            self._overtaken_by = _ADVANCES
        elif self._overtaken:
            self._overtaken_by += 1

    def _drop_before(self, number: int) -> None:
        for key in list(self._streams):
            kept = self._streams[key]
            kept.drop_before(number)
            if not kept.head:
                del self._streams[key]
        self._oldest = min((kept.head[0].number for kept in self._streams.values()), default=None)
        self._earlier = None

    def _mark(self, text: str, raw: bytes) -> bool:
        """Start a new attempt, or note the end of a successful job; True if the line did either."""
        if not self._marked or not _is_marked(raw):
            return False
        if _RESTART.search(text):
            if self._streams:
                self._earlier = self._streams
                self._streams = {}
                self._oldest = None
            return True
        if _COMPLETED.search(text):
            self._drop_before(self._number)
            self._overtaken = {}
            return True
        return False


def _lines_of(streams: Streams) -> Lines:
    return {key: kept.lines() for key, kept in streams.items()}


def _with_tasks(streams: Lines, *, are_nodes: bool) -> Lines:
    """Assign labelled tasks' lines to their ranks; if tasks are nodes, whose launcher writes, to no rank."""
    found: dict[tuple[int | None, bool], list[LogLine]] = {}
    for (rank, local), lines in streams.items():
        named = rank if rank is None or rank >= 0 else None if are_nodes else -1 - rank
        found.setdefault((named, local), []).extend(line._replace(rank=named) for line in lines)
    return {key: tuple(sorted(lines, key=lambda line: line.number)) for key, lines in found.items()}


def _is_marked(data: bytes) -> bool:
    return any(mark in data for mark in _MARKS)
