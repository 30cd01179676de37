"""Hooks that cannot break a script: what they raise is reported once, and the hook does nothing from then on."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec

from holdfast.trainer.report import HOOK_FAILED, report

ERROR_CHARS_MAX = 1_000

P = ParamSpec("P")


def harmless(hook: Callable[P, None]) -> Callable[P, None]:
    """Return the hook with its errors turned into one report; after one it is off."""
    is_on = True

    @functools.wraps(hook)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal is_on
        if not is_on:
            return
        try:
            hook(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - another version of a framework may do anything here
            is_on = False
            # A full disk is no reason for the script to fail here.
            with contextlib.suppress(OSError, ValueError):
                report(HOOK_FAILED, hook=hook.__qualname__, error=f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX])

    return call
