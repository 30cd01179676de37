"""New passwords and keys."""

from __future__ import annotations

import secrets

from holdfast.orders.signatures import KEY_BYTES


def new_password() -> str:
    """Return a password that needs no quoting: it goes into connection strings."""
    return secrets.token_urlsafe(24)


def new_order_key() -> str:
    """Return a private key for signing orders: as Ed25519 has it, any random bytes are one."""
    return secrets.token_urlsafe(KEY_BYTES)
