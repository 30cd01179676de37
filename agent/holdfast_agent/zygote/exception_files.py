"""Files with the exceptions that ended ranks: read from the rank's, written as torch writes them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import structlog

from holdfast.decoding import UNREADABLE
from holdfast.events.parts.ranks import RankException
from holdfast.node.machine import Machine
from holdfast.node.proc.mount_table import mount_table
from holdfast.node.ranks_file import open_ranks_file
from holdfast_agent.zygote.copy_file import CopyFile
from holdfast_agent.zygote.remote_storage import storage_of
from holdfast_agent.zygote.wire import ERROR_COPY, RankSlot

_EXCEPTION_BYTES_MAX = 512 << 10
"""More than `holdfast.trainer.rank` writes, and less than makes the event of the rank's end too long to be read."""

log = structlog.get_logger(__name__)


def write_error(slot: RankSlot, exception: RankException, exited_ns: int) -> None:
    """Write the exception as torch's `@record` does, beside the copies of the rank's output."""
    extra = {"py_callstack": exception.traceback, "timestamp": str(exited_ns // 10**9)}
    message = {"message": f"{exception.type}: {exception.message}", "extraInfo": extra}
    copy = CopyFile(Path(slot.copies[ERROR_COPY]), slot.user)
    copy.write(msgspec.json.encode({"message": message}))
    copy.close()


def read_exception(path: Path, before_ns: int | None = None) -> RankException | None:
    """Return the exception that a rank recorded; None if there is none, or it is not from before this time."""
    try:
        with open(open_ranks_file(path), "rb") as file:
            if before_ns is not None and os.fstat(file.fileno()).st_mtime_ns >= before_ns:
                return None
            exception = msgspec.json.decode(file.read(_EXCEPTION_BYTES_MAX), type=RankException)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        log.warning("an exception record cannot be read", file=str(path), reason=str(error))
        return None
    mounts = mount_table(Machine()) or {}
    return msgspec.structs.replace(exception, storage=storage_of(exception.message, mounts))
