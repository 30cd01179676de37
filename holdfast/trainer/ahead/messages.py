"""Reports to the zygote from a process that is made ahead, about its context on an accelerator."""

from __future__ import annotations

from typing import Annotated

import msgspec

MESSAGE_BYTES_MAX = 1 << 14
REASON_CHARS_MAX = 500

Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class ContextMade(msgspec.Struct, frozen=True, kw_only=True, tag="made"):
    """The process has a context, and waits."""

    took_s: float
    free_bytes: Bytes
    """Memory of the device that is free beside it."""
    host_bytes: Bytes
    """Memory of the host that the process takes, its share of what it has in common with others included."""


class ContextRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The process has no context, or should not keep it; it waits to be ended."""

    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARS_MAX)]


ContextReport = ContextMade | ContextRefused
