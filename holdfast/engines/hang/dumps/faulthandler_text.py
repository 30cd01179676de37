"""Reader for the output of Python's `faulthandler`: threads with their innermost call first. Pure."""

from __future__ import annotations

import re

from holdfast.engines.hang.dumps.dump_headers import DumpHeaders
from holdfast.engines.hang.dumps.py_spy_text import DumpedProcess
from holdfast.events.parts.traces import Frame, ThreadStack

_THREAD = re.compile(
    r"^(?P<label>.*?)(?:Current thread|Thread) 0x[0-9A-Fa-f]+"
    r"(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r"^\s*File \"(.*)\", line (\d+|\?\?\?) in (.*)$")
_STACK_OF_C = re.compile(r"^Current thread's C stack trace")


def is_fault_text(text: str) -> bool:
    return "(most recent call first):" in text


def read_fault_text(text: str) -> list[DumpedProcess]:
    """Return the dump's processes. Labels before lines (`[rank3]: `) separate them, and so does a second main thread.
    The main thread is printed last. A program that has ended its main thread has no thread that runs `<module>`."""
    by_owner: dict[tuple[str, str], list[list[_Thread]]] = {}
    open_threads: dict[str, _Thread] = {}
    headers = DumpHeaders()
    for line in text.splitlines():
        if head := _THREAD.match(line):
            headers.begin()
            label = head["label"]
            dumps = by_owner.setdefault((label, headers.name), [[]])
            if dumps[-1] and dumps[-1][-1].is_outermost:
                dumps.append([])
            open_threads[label] = _Thread(head["name"] or "")
            dumps[-1].append(open_threads[label])
            continue
        label = next((known for known in open_threads if known and line.startswith(known.rstrip())), "")
        thread, own = open_threads.get(label), line.removeprefix(label.rstrip())
        if thread is not None and (frame := _FRAME.match(own)):
            number = int(frame[2]) if frame[2].isdecimal() else 0
            thread.frames.append(Frame(function=frame[3].strip(), file=frame[1], line=number))
        elif _STACK_OF_C.match(own.strip()):
            open_threads.pop(label, None)
        else:
            headers.pass_over(own)
    return [_process(label, section, dump) for (label, section), dumps in by_owner.items() for dump in dumps if dump]


class _Thread:
    def __init__(self, name: str) -> None:
        self.name = name
        self.frames: list[Frame] = []

    @property
    def is_outermost(self) -> bool:
        return bool(self.frames) and self.frames[-1].function == "<module>"


def _process(label: str, section: str, dump: list[_Thread]) -> DumpedProcess:
    main = next((thread for thread in reversed(dump) if thread.is_outermost), dump[-1])
    threads = tuple(
        ThreadStack(frames=tuple(thread.frames), name=thread.name, is_main=thread is main)
        for thread in dump
        if thread.frames
    )
    unread = "" if threads else "the dump has no frames"
    return DumpedProcess(label=label.strip(" []:"), section=section, threads=threads, unread=unread)
