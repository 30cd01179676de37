"""Reader for native stacks as gdb and pstack print them (`bt`, `thread apply all bt`). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.engines.hang.dumps.dump_headers import DumpHeaders
from holdfast.engines.hang.dumps.py_spy_text import DumpedProcess
from holdfast.events.parts.traces import Frame, ThreadStack

_LABEL = r"(?P<label>(?:\[[\w.:/-]+\]:?|[\w.-]+:) )?"
_THREAD = re.compile(rf"^{_LABEL}Thread (?P<number>\d+) \(.*?\b(?:LWP|process) (?P<pid>\d+)\).*:$")
_FRAME = re.compile(
    rf"^{_LABEL}#(?P<depth>\d+) +(?:0x[0-9a-f]+ in )?(?P<function>\S.*?) ?\(.*?\)"
    r"(?: (?P<kind>at|from) (?P<place>\S+?)(?::(?P<line>\d+))?)?$"
)
_PYTHON = re.compile(
    rf"^{_LABEL}#(?P<depth>\d+) +(?:<.*> )?Frame 0x[0-9a-f]+, for file (?P<file>\S+), line (?P<line>\d+),"
    r" in (?P<function>\S+)"
)


_LINE_MOST = 4096
_SURE = re.compile(r"#\d+ +(?:0x[0-9a-f]+ in \S|Frame 0x)|\) (?:at|from) \S+$")


def is_gdb_text(text: str) -> bool:
    """Return True if a text has a stack as gdb or pstack print it."""
    return any(
        _SURE.search(line) and (_FRAME.match(line) or _PYTHON.match(line)) for line in _lines(text) if "#" in line[:80]
    )


def _lines(text: str) -> Iterator[str]:
    return (line[:_LINE_MOST] for line in text.splitlines())


def read_gdb_text(text: str) -> list[DumpedProcess]:
    """Return the dump's processes. gdb prints the main thread as thread 1, and last: threads count down, so a number
    that is not lower begins another process. A backtrace without a thread's line is of the main thread."""
    processes: list[_Process] = []
    by_label: dict[str, _Process] = {}
    headers = DumpHeaders()
    for line in _lines(text):
        if head := _THREAD.match(line):
            headers.begin()
            label, number = head["label"] or "", int(head["number"])
            process = by_label.get(label)
            if process is None or number >= process.number or process.section != headers.name:
                process = by_label[label] = _Process(label, headers.name)
                processes.append(process)
            process.begin(number, int(head["pid"]))
        elif frame := _PYTHON.match(line) or _FRAME.match(line):
            label, depth = frame["label"] or "", int(frame["depth"])
            process = by_label.get(label)
            if process is None or (depth == 0 and process.is_bare and process.threads[-1][1]):
                headers.begin()
                process = by_label[label] = _Process(label, headers.name)
                processes.append(process)
            process.add(_frame(frame))
        else:
            headers.pass_over(line)
    return [process.end() for process in processes]


def _frame(found: re.Match[str]) -> Frame | None:
    parts = found.groupdict()
    if parts["function"] == "??":
        return None
    file = parts.get("file") or parts.get("place") or ""
    # A place in compiled code never counts as Python's, which a line without a file would.
    return Frame(function=parts["function"], file=file, line=int(parts["line"] or 0) if file else 0)


class _Process:
    def __init__(self, label: str, section: str) -> None:
        self.label = label
        self.section = section
        self.pid = 0
        self.number = 1 << 30
        self.is_bare = True
        self.threads: list[tuple[int, list[Frame]]] = [(1, [])]

    def begin(self, number: int, pid: int) -> None:
        if self.is_bare:
            self.threads.clear()
        self.is_bare = False
        self.number = number
        self.pid = pid
        self.threads.append((number, []))

    def add(self, frame: Frame | None) -> None:
        if frame is not None:
            self.threads[-1][1].append(frame)

    def end(self) -> DumpedProcess:
        threads = tuple(
            ThreadStack(frames=tuple(frames), is_main=number == 1) for number, frames in self.threads if frames
        )
        unread = "" if threads else "the dump has no frames with names"
        label = self.label.strip(" []:")
        return DumpedProcess(pid=self.pid, label=label, section=self.section, threads=threads, unread=unread)
