"""Reading bytes that anybody may have written."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What msgspec raises for bytes that are not what they should be: wrong text is a ValueError, deep nesting the last."""


def read(decoder: msgspec.json.Decoder[T], body: bytes, complaint: type[ValueError]) -> T:
    """What `body` says.

    Raises:
        complaint: it is not JSON, or has a missing or wrong field.
    """
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise complaint(str(error)) from error
