"""The logs of daemons, and of the processes beside them."""

from __future__ import annotations

import logging
import os
import sys

import structlog


def log_to_stderr(name: str) -> None:
    """Structured logs on stderr: JSON lines, or readable ones on a terminal or with HOLDFAST_LOG=console."""
    readable = sys.stderr.isatty() or os.environ.get("HOLDFAST_LOG") == "console"
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    structlog.contextvars.bind_contextvars(service=name)
