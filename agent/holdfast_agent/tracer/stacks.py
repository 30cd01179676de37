"""Python stacks of one process by py-spy, which also reads processes that are stopped or hold the GIL."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from pathlib import Path

import msgspec

from holdfast.decoding import UNREADABLE
from holdfast.events.parts.traces import Frame, ProcessKind, ThreadStack

TRIES = 2
"""A process is not paused while its stacks are read. They may change meanwhile, and then a read fails."""

THREADS_MAX = 64
FRAMES_MAX = 80
_TEXT_CHARS_MAX = 240
_REASON_CHARS_MAX = 300
_ENDING_S = 0.2
_NO_RIGHT = "not permitted"


class StacksUnread(Exception):
    """The stacks are unreadable; the message gives the reason."""


class StacksSkipped(StacksUnread):
    """The stacks were not read for lack of time, rights or py-spy: this shows nothing about the process."""


class _Frame(msgspec.Struct, frozen=True):
    name: str
    filename: str = ""
    line: int = 0


class _Thread(msgspec.Struct, frozen=True):
    frames: tuple[_Frame, ...] = ()
    os_thread_id: int | None = None
    thread_name: str | None = None
    active: bool | None = None
    owns_gil: bool = False


_decoder = msgspec.json.Decoder(tuple[_Thread, ...])


async def stacks_of(pid: int, *, native: bool, within_s: float) -> tuple[ThreadStack, ...]:
    """Return a process's stacks. `native` adds compiled frames but pauses it. Raises StacksSkipped, StacksUnread."""
    reason = ""
    try:
        async with asyncio.timeout(within_s):
            for _ in range(TRIES):
                code, output, errors = await _py_spy(pid, native)
                if code == 0:
                    return _threads(output, pid)
                reason = _in_words(errors)
    except TimeoutError:
        raise StacksSkipped(f"not read within {within_s:.1f} s") from None
    except OSError as error:
        raise StacksSkipped(f"py-spy cannot be started: {error}") from error
    except UNREADABLE as error:
        raise StacksUnread(f"the output of py-spy cannot be parsed: {error}") from error
    raise StacksSkipped(reason) if reason.startswith(_NO_RIGHT) else StacksUnread(reason)


def by_stacks(kind: ProcessKind, threads: tuple[ThreadStack, ...]) -> ProcessKind:
    """Return what a process is for, judged by its stacks."""
    if kind != "other":
        return kind
    calls = [(frame.function, frame.file) for thread in threads for frame in thread.frames]
    if any(function == "_worker_loop" and "utils/data" in file for function, file in calls):
        return "data_loader"
    if any("distributed/checkpoint" in file or "trainer/checkpoint" in file for _, file in calls):
        return "checkpoint"
    return kind


async def _py_spy(pid: int, native: bool) -> tuple[int, bytes, bytes]:
    how = "--native" if native else "--nonblocking"
    process = await asyncio.create_subprocess_exec(
        _program(),
        "dump",
        "--json",
        how,
        "--pid",
        str(pid),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ENDING_S):
                    await process.wait()
    return process.returncode or 0, output, errors


def _program() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise StacksSkipped("py-spy is not installed on this node: pip install py-spy")
    return found


def _threads(output: bytes, pid: int) -> tuple[ThreadStack, ...]:
    threads = _decoder.decode(output)
    stacks = [
        ThreadStack(
            frames=tuple(
                Frame(function=frame.name[:_TEXT_CHARS_MAX], file=frame.filename[-_TEXT_CHARS_MAX:], line=frame.line)
                for frame in thread.frames[:FRAMES_MAX]
            ),
            name=(thread.thread_name or "")[:_TEXT_CHARS_MAX],
            is_main=thread.os_thread_id == pid or thread.thread_name == "MainThread",
            holds_gil=thread.owns_gil,
            is_idle=None if thread.active is None else not thread.active,
        )
        for thread in threads
    ]
    stacks.sort(key=lambda stack: not stack.is_main)
    return tuple(stack for stack in stacks if stack.frames)[:THREADS_MAX]


def _in_words(errors: bytes) -> str:
    text = errors.decode(errors="replace").strip()
    line = text.splitlines()[0].removeprefix("Error: ") if text else "py-spy printed nothing"
    if "ermission denied" in text or "not permitted" in text:
        return f"{_NO_RIGHT} ({line}): the agent needs CAP_SYS_PTRACE"[:_REASON_CHARS_MAX]
    return line[:_REASON_CHARS_MAX]
