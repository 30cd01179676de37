"""Reader for the text of `py-spy dump`: one process or many, with or without rank or host labels. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from holdfast.engines.hang.dumps.dump_headers import DumpHeaders
from holdfast.events.parts.traces import Frame, ThreadStack

_LABELLED = re.compile(r"^(?:\[([\w.:/-]+)\]:?|([\w.-]+):)(?: (.*)|)$")
_PROCESS = re.compile(r"^(?:Process|Stack dump for \S+) +(\d+)(?::? ?(.*))?$")
_PARENT = re.compile(r"^Parent Process (\d+)(?:: ?.*)?$")
_THREAD = re.compile(r"^Thread (0x[0-9A-Fa-f]+|\d+)(?: \(([\w+ ]+)\))?(?:: \"(.*)\")?$")
_FRAME = re.compile(r"^(\s+)(\S.*) \(([^()]*?)(?::(\d+))?\)$")
_VARIABLES = re.compile(r"^\s+(?:Arguments|Locals):$")
_ERROR = re.compile(r"^(?:Error|error|Failed|Permission Denied)\b:?\s*(.*)$")
_SEPARATOR = re.compile(r"^(?:-{8,}|={8,})$")


class DumpedProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process of a dump. `label`: rank or host before its lines. `section`: rank or host in a header above them."""

    pid: int = 0
    command: str = ""
    parent_pid: int = 0
    label: str = ""
    section: str = ""
    threads: tuple[ThreadStack, ...] = ()
    unread: str = ""


def is_py_spy_text(text: str) -> bool:
    return _is_plain(text) or _is_labelled(text)


def read_py_spy_text(text: str) -> list[DumpedProcess]:
    """Return the processes of the dump. Other lines are skipped; an error that py-spy printed is kept."""
    by_label: dict[str, _Reading] = {}
    has_labels = not _is_plain(text)
    for line in text.splitlines():
        label, rest = _unlabelled(line.rstrip()) if has_labels else ("", line.rstrip())
        by_label.setdefault(label, _Reading(label)).feed(rest)
    return [process for reading in by_label.values() for process in reading.end()]


class _Reading:
    """State of reading the lines of one label."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._done: list[DumpedProcess] = []
        self._head: DumpedProcess | None = None
        self._threads: list[ThreadStack] = []
        self._thread: ThreadStack | None = None
        self._frames: list[Frame] = []
        self._indent = 0
        self._is_in_variables = False
        self._headers = DumpHeaders()
        self._headless = DumpedProcess(label=label)

    def feed(self, line: str) -> None:
        if process := _PROCESS.match(line):
            self._close_process()
            self._headers.begin()
            self._head = self._empty(pid=int(process[1]), command=(process[2] or "").strip())
        elif (parent := _PARENT.match(line)) and self._head:
            self._head = msgspec.structs.replace(self._head, parent_pid=int(parent[1]))
        elif thread := _THREAD.match(line):
            self._close_thread()
            is_second = thread[3] == "MainThread" and any(known.is_main for known in self._threads)
            if not self._head and (is_second or self._headers.is_pending):
                self._close_process()
            self._headers.begin()
            self._headless = self._empty()
            self._thread = _thread(thread[2] or "", thread[3] or "")
        elif self._thread is not None and (frame := _FRAME.match(line)):
            self._feed_frame(frame)
        elif self._thread is not None and _VARIABLES.match(line):
            self._is_in_variables = True
        elif _SEPARATOR.match(line):
            self._close_process()
        elif (error := _ERROR.match(line)) and not self._threads and self._thread is None:
            self._headers.begin()
            head = self._head or self._empty()
            self._head = msgspec.structs.replace(head, unread=head.unread or error[0])
        else:
            self._headers.pass_over(line)

    def end(self) -> Iterator[DumpedProcess]:
        self._close_process()
        yield from self._done

    def _feed_frame(self, frame: re.Match[str]) -> None:
        indent = len(frame[1].expandtabs(4))
        if not self._frames:
            self._indent = indent
        if self._is_in_variables and indent > self._indent:
            return
        self._is_in_variables = False
        self._frames.append(Frame(function=frame[2], file=frame[3], line=int(frame[4] or 0)))

    def _empty(self, pid: int = 0, command: str = "") -> DumpedProcess:
        return DumpedProcess(pid=pid, command=command, label=self._label, section=self._headers.name)

    def _close_thread(self) -> None:
        if self._thread is not None:
            self._threads.append(msgspec.structs.replace(self._thread, frames=tuple(self._frames)))
        self._thread, self._frames, self._is_in_variables = None, [], False

    def _close_process(self) -> None:
        self._close_thread()
        if self._threads or (self._head and (self._head.unread or self._head.pid)):
            head = self._head or self._headless
            unread = head.unread or ("" if self._threads else "the dump has no threads of it")
            threads = tuple(thread for thread in self._threads if thread.frames)
            self._done.append(msgspec.structs.replace(head, threads=threads, unread=unread))
        self._head, self._threads = None, []


def _thread(state: str, name: str) -> ThreadStack:
    return ThreadStack(
        frames=(),
        name=name,
        is_main=name == "MainThread",
        holds_gil="gil" in state,
        is_idle="idle" in state if state else None,
    )


def _is_plain(text: str) -> bool:
    return any(_is_head(line.rstrip()) for line in text.splitlines())


def _is_labelled(text: str) -> bool:
    return any(_is_head(_unlabelled(line.rstrip())[1]) for line in text.splitlines())


def _is_head(line: str) -> bool:
    return line.startswith(("Process ", "Thread ", "Stack dump")) and bool(_PROCESS.match(line) or _THREAD.match(line))


def _unlabelled(line: str) -> tuple[str, str]:
    """Split a launcher's label (`12: `, `[rank3]: `, `node-7: `) from a line."""
    found = _LABELLED.match(line)
    return (found[1] or found[2], found[3] or "") if found else ("", line)
