# type: ignore
"""Logging, as torchtitan does it."""

from __future__ import annotations

import logging

logger = logging.getLogger()


def init_logger() -> None:
    logger.setLevel(logging.INFO)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[titan] %(asctime)s - %(name)s - %(levelname)s - %(message)s"))
    logger.addHandler(handler)
