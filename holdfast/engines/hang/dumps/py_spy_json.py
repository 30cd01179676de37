"""Reader for `py-spy dump --json`: a list of threads of one process or several. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.engines.hang.dumps.py_spy_text import DumpedProcess
from holdfast.events.parts.traces import Frame, ThreadStack


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str | None = None
    short_filename: str | None = None
    line: int | None = 0


class _Process(msgspec.Struct):
    pid: int | None = 0
    ppid: int | None = 0
    command_line: str | None = ""
    parent: Any = None


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    pid: int | None = 0
    os_thread_id: int | None = 0
    thread_name: str | None = ""
    active: bool | None = None
    owns_gil: bool | None = False
    process_info: _Process | None = None


def is_py_spy_threads(document: Any) -> bool:
    """Return True if a decoded JSON document is a list of threads as `py-spy dump --json` prints them."""
    return (
        isinstance(document, list)
        and bool(document)
        and all(isinstance(thread, dict) and isinstance(thread.get("frames"), list) for thread in document)
        and any("thread_id" in thread or "thread_name" in thread or "active" in thread for thread in document)
    )


def read_py_spy_threads(document: Any) -> list[DumpedProcess]:
    """Return the processes of decoded threads. Raises msgspec.ValidationError if a required field is missing."""
    by_pid: dict[int, list[_Thread]] = {}
    for thread in msgspec.convert(document, list[_Thread]):
        by_pid.setdefault(thread.pid or 0, []).append(thread)
    return [_process(pid, threads) for pid, threads in by_pid.items()]


def _process(pid: int, threads: list[_Thread]) -> DumpedProcess:
    info = next((thread.process_info for thread in threads if thread.process_info), _Process())
    parent = info.parent if isinstance(info.parent, dict) else {}
    return DumpedProcess(
        pid=pid,
        command=info.command_line or "",
        parent_pid=info.ppid or int(parent.get("pid") or 0),
        threads=tuple(_thread(thread, pid) for thread in threads if thread.frames),
    )


def _thread(thread: _Thread, pid: int) -> ThreadStack:
    name = thread.thread_name or ""
    return ThreadStack(
        frames=tuple(
            Frame(function=frame.name, file=frame.filename or frame.short_filename or "", line=frame.line or 0)
            for frame in thread.frames
        ),
        name=name,
        is_main=name == "MainThread" or (not name and bool(pid) and thread.os_thread_id == pid),
        holds_gil=bool(thread.owns_gil),
        is_idle=None if thread.active is None else not thread.active,
    )
