"""A Python that every user can reach, wherever that of the tests lies."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.node.reach import closed_to_others

REPOSITORY = Path(__file__).parents[1]


def opened(holder: Path) -> tuple[str, ...]:
    """Return a command that runs another where this Python, its packages and the repository are open to all users.

    `holder` is an empty directory for its use. Skips the test where that would need a right that is not to be had.
    """
    needed = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix, REPOSITORY)}
    closed = {part for path in needed if (part := closed_to_others(path)) is not None}
    if not closed:
        return ()
    # In a mount namespace of its own, what is closed has an open directory in its place, with only these in it.
    steps = ["set -e"]
    for number, part in enumerate(sorted(closed)):
        aside = shlex.quote(str(holder / str(number)))
        steps += [f"mkdir -p {aside}", f"mount --rbind {part} {aside}", f"mount -t tmpfs -o mode=755 tmpfs {part}"]
        for path in (path for path in needed if path.is_relative_to(part)):
            below = shlex.quote(str(path.relative_to(part)))
            steps += [f"mkdir -p {part}/{below}", f"mount --rbind {aside}/{below} {part}/{below}"]
    prefix = ("unshare", "--mount", "sh", "-c", "; ".join([*steps, 'exec "$@"']), "sh")
    tried = subprocess.run(
        [*prefix, "setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", "import torch"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HOME": "/"},
    )
    if tried.returncode:
        pytest.skip(f"this machine does not let us open Python to all users: {tried.stderr.strip()[-300:]}")
    return prefix
