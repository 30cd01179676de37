"""Addresses of the bus and the database, and keys: settings that may be renewed while a process runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Address: TypeAlias = str | Callable[[], str]
"""An address or key, or a function that returns it as it is now. It is called for every new connection or use."""


def current(address: Address) -> str:
    """Return the address as it is now."""
    return address if isinstance(address, str) else address()
