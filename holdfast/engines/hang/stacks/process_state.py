"""State of a process, from its stacks: the thread that counts, its position, and what it does. Pure.

The main thread counts. If it only waits for another of its threads, as in a backward pass or where a framework trains
on a separate thread, that thread counts with it.
"""

from __future__ import annotations

import msgspec

from holdfast.engines.hang.stacks.activities import UNCLEAR, Activity, activity_of
from holdfast.engines.hang.stacks.frames import Stack, is_python, normalised
from holdfast.events.parts.traces import Frame, ProcessStacks, ThreadStack

_NOTHING = Stack(())

_BACKGROUND = frozenset({"_pin_memory_loop", "_feed", "_serve", "_read_thread", "_monitor", "_heartbeat"})
"""Functions of helper threads, which wait most of the time and never hold training up."""

_PARKED = frozenset({"main_loop", "_worker", "wait", "run_forever"})
"""Innermost functions of a main thread that leaves the work to others."""


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """A process's state. Equal numbers mean equal stacks: by functions (`place`), with lines, or with symbols."""

    stack: Stack = _NOTHING
    activity: Activity = UNCLEAR
    place: int = 0
    lines: int = 0
    symbols: int = 0


class StateReader:
    """Reads states of processes; each distinct stack is processed once."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[Frame, ...], tuple[Stack, Activity]] = {}
        self._states: dict[tuple[Stack, Activity], ProcessState] = {}
        self._by_main: dict[tuple[Frame, ...], ProcessState] = {}
        self._numbers: dict[object, int] = {}

    def read(self, process: ProcessStacks) -> ProcessState:
        main = main_thread(process.threads)
        if main is None:
            return ProcessState()
        if len(process.threads) == 1 and (known := self._by_main.get(main.frames)):
            return known
        stack, activity = self._read(main.frames)
        if len(process.threads) > 1 and _waits_for_threads(stack, activity):
            stack, activity = self._with_worker(process, main, stack, activity)
        seen = self._numbered(stack, activity)
        if len(process.threads) == 1:
            self._by_main[main.frames] = seen
        return seen

    def _read(self, frames: tuple[Frame, ...]) -> tuple[Stack, Activity]:
        known = self._stacks.get(frames)
        if known is None:
            stack = normalised(frames)
            known = self._stacks[frames] = stack, activity_of(stack)
        return known

    def _with_worker(
        self, process: ProcessStacks, main: ThreadStack, stack: Stack, activity: Activity
    ) -> tuple[Stack, Activity]:
        """Put the stack of the thread that the main thread waits for on top of the main thread's."""
        found: list[tuple[int, Stack, Activity]] = []
        # Of several threads the one that waits for other ranks counts, then a backward pass, then other work.
        for thread in process.threads:
            if thread is main or not any(map(is_python, thread.frames)):
                continue
            other, doing = self._read(thread.frames)
            if any(call.function in _BACKGROUND for call in other.calls):
                continue
            if doing.doing == "others":
                found.append((0, other, doing))
            elif any(call.path.endswith("torch/autograd/function.py") for call in other.calls):
                found.append((1, other, doing))
            elif doing.doing == "own" and doing.what in ("its data", "a checkpoint"):
                found.append((2, other, doing))
        if not found:
            return stack, activity
        _, worker, doing = min(found, key=lambda one: one[0])
        return Stack(worker.calls + stack.calls, worker.native), doing

    def _numbered(self, stack: Stack, activity: Activity) -> ProcessState:
        known = self._states.get((stack, activity))
        if known is None:
            places = stack.places
            known = self._states[stack, activity] = ProcessState(
                stack=stack,
                activity=activity,
                place=self._number(places),
                lines=self._number((places, stack.lines)),
                symbols=self._number((places, stack.native)),
            )
        return known

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def main_thread(threads: tuple[ThreadStack, ...]) -> ThreadStack | None:
    """Return the main thread; if none is marked, the one that runs the program."""
    named = next((thread for thread in threads if thread.is_main and thread.frames), None)
    if named is not None or not threads:
        return named
    return next(
        (thread for thread in threads if thread.frames and thread.frames[-1].function == "<module>"),
        max(threads, key=lambda thread: len(thread.frames)) if any(thread.frames for thread in threads) else None,
    )


def _waits_for_threads(stack: Stack, activity: Activity) -> bool:
    if activity.is_backward or (activity.doing == "own" and activity.what == "a lock, queue or thread"):
        return True
    return activity.doing == "unclear" and any(call.function in _PARKED for call in stack.calls[:2])
