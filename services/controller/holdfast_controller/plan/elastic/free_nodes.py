"""Nodes that a job which runs on fewer than it may have could take in. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec


class FreeNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that came free and that the job could use. `event`: the first of them."""

    nodes: tuple[str, ...]
    since: datetime
    event: str
    claim: str = ""
    """Id of the request for them; "": not yet."""
    is_told: bool = False
    """True once it was reported that the job is not restarted for them."""
