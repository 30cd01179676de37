"""New ids: from the clock and from randomness, so only processes make them, never decisions."""

from __future__ import annotations

import os
import re
import secrets
import time

from holdfast.ids import uuid7_of


def uuid7(unix_ms: int | None = None) -> str:
    """Return a new UUIDv7 (RFC 9562): Unix milliseconds (default: now), then randomness, so that ids sort by time."""
    return uuid7_of(time.time_ns() // 1_000_000 if unix_ms is None else unix_ms, os.urandom(10))


def new_job_name(stem: str) -> str:
    """Return a new job name that begins with a cleaned-up `stem`."""
    cleaned = re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-").lower()[:40].strip("-") or "job"
    return f"{cleaned}-{secrets.token_hex(3)}"
