"""A function called by another user: a fork that gives up root for good, with Python's modules loaded already."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

STRANGER_UID = 54_321
"""No account of the machine, and nothing of Holdfast."""


def as_user(uid: int, function: Callable[..., Any], *arguments: object) -> Any:
    """Return the function's result, which another user has called; raises AssertionError with its traceback."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        result: tuple[bool, Any]
        try:
            os.close(reading)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            result = (True, function(*arguments))
        except BaseException:  # noqa: BLE001 - a fork of the tests must never go on as one
            result = (False, traceback.format_exc())
        with os.fdopen(writing, "wb") as out:
            out.write(pickle.dumps(result))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        done, value = pickle.loads(told.read())
    os.waitpid(pid, 0)
    assert done, value
    return value
