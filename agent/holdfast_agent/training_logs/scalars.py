"""What both kinds of training log come down to: one number under one name at one step. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Scalar(NamedTuple):
    """`step` is the script's own numbering of the log; `at_s` Unix seconds, when the script logged it."""

    tag: str
    step: int
    at_s: float
    value: float


class LogParser(Protocol):
    """Reads a file as it grows, from any cut of its bytes.

    `offset` is up to where whole records were taken: a parser that starts there misses none and repeats none.
    `damaged` counts places that could not be read and were passed over; after `has_given_up` nothing more is read.
    """

    offset: int
    damaged: int
    has_given_up: bool

    def feed(self, data: bytes) -> list[Scalar]:
        """The scalars in the records that `data` completes."""
        ...
