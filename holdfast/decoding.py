"""Decoding of untrusted bytes."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of msgspec for wrong bytes: ValueError is bad UTF-8, RecursionError deep nesting."""


def read(decoder: msgspec.json.Decoder[T], body: bytes, complaint: type[ValueError]) -> T:
    """Return the decoded `body`; raises `complaint` if it is not JSON, or has a missing or wrong field."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise complaint(str(error)) from error
