"""Memory for a rank's next step: taken for it, and made ahead, so that no step waits for it."""

from __future__ import annotations

import errno
from collections.abc import Callable

import structlog

from holdfast_vault.shelf.segments import Segment
from holdfast_vault.shelf.shelf import Shelf

log = structlog.get_logger(__name__)


def claim(shelf: Shelf, nbytes: int, give_way: Callable[[], bool]) -> Segment:
    """Return memory to be filled. `give_way` takes some from the disk's writer. Raises OSError: there is none."""
    try:
        return shelf.claim(nbytes)
    except OSError as error:
        # A step that waits for the disk is worth less than the one that is to be kept now.
        if error.errno not in (errno.ENOMEM, errno.ENOSPC) or not give_way():
            raise
        return shelf.claim(nbytes)


def stock(shelf: Shelf, nbytes: int) -> None:
    """Make the segments that the next steps need, as far as there is memory."""
    try:
        shelf.stock(nbytes)
    except OSError as error:
        log.warning("no memory for further segments", nbytes=nbytes, reason=error.strerror)


def settle(shelf: Shelf, segment: Segment) -> None:
    """Move a segment and the free ones into huge pages, unless a thread does that already. Runs in its own thread.

    Not at a low priority: a process that is killed ends only when each of its threads has run once more, and the last
    one gives its memory back. Beside busy cores that took a second, in which its successor may not begin.
    """
    if shelf.settling.acquire(blocking=False):
        try:
            for each in (segment, *shelf.spares()):
                each.settle()
        finally:
            shelf.settling.release()


def stock_and_settle(shelf: Shelf, segment: Segment) -> None:
    """Do both, after a step was sealed in this segment. Runs in its own thread."""
    stock(shelf, segment.nbytes)
    settle(shelf, segment)
