"""Code that a spawned process runs before it imports its main module. It gets this file's source, since it has no path
to the file yet.

It imports nothing of Holdfast until torch is imported: processes that never do so, such as workers of a pool, pay
nothing. An error leaves the process as it would be without Holdfast.
"""

import contextlib
import sys
from typing import Any


class AwaitsTorch:
    """A finder that finds nothing. Before torch is imported it has the hooks put in place."""

    def __init__(self, ledger: str) -> None:
        self.ledger = ledger

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        with contextlib.suppress(Exception):
            from holdfast.trainer.spawned.child import hook

            return hook(self.ledger).find_spec(fullname, path, target)
        return None
