"""Making values storable: Postgres keeps every character but NUL."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast.growing import to_json

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# An even number of backslashes before it, or it is itself escaped.
_ESCAPED_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def storable_json(value: Any) -> bytes:
    """Return `value` as JSON that jsonb takes: NUL, which a rank's log may hold, becomes the replacement character."""
    body = msgspec.json.encode(value, enc_hook=to_json)
    if b"\\u0000" not in body:
        return body
    return _ESCAPED_NUL.sub(rb"\1\\ufffd", body)


def storable_value(value: Any) -> Any:
    return value.replace("\x00", _REPLACEMENT) if isinstance(value, str) else value
