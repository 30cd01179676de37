"""The common content of both log formats: one number with a name and a step. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Scalar(NamedTuple):
    """`step` is the script's own number; `at_s` the Unix time of logging."""

    tag: str
    step: int
    at_s: float
    value: float


class LogParser(Protocol):
    """Incremental parser that accepts any split of the file's bytes.

    `offset` is the end of the last complete record taken: a parser that starts there misses and repeats nothing.
    `damaged` counts unreadable places that were skipped; after `has_given_up` nothing more is read.
    """

    offset: int
    damaged: int
    has_given_up: bool

    def feed(self, data: bytes) -> list[Scalar]:
        """Return the scalars of the records that `data` completes."""
        ...
