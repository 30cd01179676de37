"""The logs of daemons, and of the processes beside them."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog

from holdfast.daemon.quick_imports import logs_are_readable


def log_to_stderr(name: str) -> None:
    """Structured logs on stderr: JSON lines, or readable ones on a terminal or with HOLDFAST_LOG=console."""
    readable = logs_are_readable()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if readable else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if readable else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr())),
    )
    structlog.contextvars.bind_contextvars(service=name)


class _Stderr:
    """stderr, also once its reader is gone: after the kill of a supervisor this process still has things to end."""

    def write(self, text: str) -> int:
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.flush()
