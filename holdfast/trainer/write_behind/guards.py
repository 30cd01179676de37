"""Guards around a script's uses of files while one of its saves is on its way to the disk: they wait where a rule of
`waiting_rules` requires it. They do nothing once every save is on the disk.

Python's audit events show what is opened, listed, renamed and removed, whichever library does it; what has no event
(`os.stat` and its like, barriers) is wrapped.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from holdfast.trainer.write_behind.engine import OnWay, WriteBehind
from holdfast.trainer.write_behind.file_events import Use, uses_of
from holdfast.trainer.write_behind.waiting_rules import (
    Awaited,
    must_wait_to_change,
    must_wait_to_list,
    must_wait_to_read,
)

BARRIERS = (
    "barrier",
    "monitored_barrier",
    "broadcast_object_list",
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
    "send_object_list",
)
"""Collectives after which a script may have another rank look at a file. Those of training are not among them."""


class Guards:
    def __init__(self, engine: WriteBehind) -> None:
        self._engine = engine
        self._here = threading.local()
        self._is_in_place = False

    def put_in_place(self) -> None:
        """Guard this process from now on, for good: audit hooks cannot be removed."""
        if self._is_in_place:
            return
        self._is_in_place = True
        sys.addaudithook(self._seen)
        for name in ("stat", "lstat", "access"):
            _wrap_in_os(name, self._before_look)
        os.register_at_fork(before=self._before_fork, after_in_child=self._engine.close_in_fork)

    def guard_barriers(self, module: ModuleType) -> None:
        """Guard the collectives of torch.distributed, and of the package that has them by the same names."""
        package = sys.modules.get("torch.distributed")
        for name in BARRIERS:
            original = getattr(module, name, None)
            if original is not None:
                guarded = self._waits(original)
                setattr(module, name, guarded)
                if package is not None and getattr(package, name, None) is original:
                    setattr(package, name, guarded)

    @contextmanager
    def within_a_save(self) -> Iterator[None]:
        """In this block, collectives of this thread are part of a save, and wait for nothing."""
        before, self._here.saves = getattr(self._here, "saves", False), True
        try:
            yield
        finally:
            self._here.saves = before

    def _waits(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not getattr(self._here, "saves", False) and self._engine.is_own_process:
                self._engine.settle()
            return original(*args, **kwargs)

        return call

    def _seen(self, event: str, args: tuple[Any, ...]) -> None:
        """Take an audit event; what it raises, the operation raises."""
        on_way = self._guarded()
        if on_way is None:
            return
        with self._unguarded():
            waits = [use for use, path in uses_of(event, args) if _must_wait(use, path, on_way.awaited)]
        if waits:
            # A script in which the failure of its save could not be raised must not remove the one before.
            self._engine.settle(raises=Use.CHANGES in waits)

    def _before_look(self, path: Any, **options: Any) -> None:
        on_way = self._guarded()
        if on_way is None:
            return
        with self._unguarded():
            waits = [use for use, real in uses_of("look", (path, options)) if _must_wait(use, real, on_way.awaited)]
        if waits:
            self._engine.settle(raises=False)

    def _before_fork(self) -> None:
        if self._guarded() is not None:
            # The thread that writes would not be in the fork.
            self._engine.settle(raises=False)

    def _guarded(self) -> OnWay | None:
        """Return what is on its way, None if nothing is or the guards are not meant for what happens here."""
        on_way = self._engine.on_way
        if on_way is None or getattr(self._here, "is_unguarded", False):
            return None
        return on_way if self._engine.is_own_process and not on_way.is_written_here else None

    @contextmanager
    def _unguarded(self) -> Iterator[None]:
        self._here.is_unguarded = True
        try:
            yield
        finally:
            self._here.is_unguarded = False


def _must_wait(use: Use, path: str, on_way: Awaited) -> bool:
    match use:
        case Use.READS:
            return must_wait_to_read(path, on_way)
        case Use.LISTS:
            return must_wait_to_list(path, on_way)
        case Use.CHANGES:
            return must_wait_to_read(path, on_way) or must_wait_to_change(path, on_way, _too_wide())
        case Use.ANYTHING:
            return True


def _too_wide() -> tuple[str, ...]:
    try:
        here = os.getcwd()
    except OSError:
        here = "/"
    return here, os.path.realpath(tempfile.gettempdir()), os.path.expanduser("~")


def _wrap_in_os(name: str, before: Callable[..., None]) -> None:
    original = getattr(os, name)

    @functools.wraps(original)
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        before(path, **kwargs)
        return original(path, *args, **kwargs)

    setattr(os, name, call)
    # Libraries ask by these sets what the function can do.
    for able in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
        if original in able:
            able.add(call)
