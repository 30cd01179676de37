"""PyTorch's flight recorder, served by the rank on its own socket: answered in C++, so also while Python hangs.

It needs no healthy process group and no interpreter lock; only a rank that is stopped does not answer.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOCKET_PATH_BYTES_MAX = 107
_NOTICE = b"WorkerServer.cpp"


class _Served:
    server: Any = None


def socket_path(ledger: str | os.PathLike[str]) -> Path:
    """Return the socket on which the rank with this ledger answers."""
    return Path(os.path.realpath(ledger)).with_suffix(".fr")


def serve(ledger: str | os.PathLike[str]) -> None:
    """Start answering. Where torch has no such server only the ring of collectives is read; the script goes on."""
    path = socket_path(ledger)
    if _Served.server is not None or len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        return
    try:
        from torch._C._distributed_c10d import _WorkerServer

        path.unlink(missing_ok=True)
        with _without_notice():
            _Served.server = _WorkerServer(str(path), -1)
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    except (ImportError, OSError, RuntimeError):
        return


@contextlib.contextmanager
def _without_notice() -> Iterator[None]:
    """Keep the line with which the server announces itself out of the user's log; other lines are kept."""
    stderr = os.dup(2)
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.dup2(write, 2)
    os.close(write)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        with contextlib.suppress(BlockingIOError):
            for line in os.read(read, 1 << 16).splitlines(keepends=True):
                if _NOTICE not in line:
                    os.write(2, line)
        os.close(read)
