"""The table of attempts: who tries what, and what it gets. docs/security.md shows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

STRANGER = "another user of the machine"
NOBODY = "a NATS client without a password"
NODE = "a node"
READER = "the reader"
SERVICE = "the database role of a service"
SERVICE_BUS = "the bus password of a service"
JOB = "a script in a job"
TOKEN = "another user who knows the job's token"


class Attempt(NamedTuple):
    """One attempt. `act` tries it, asserts what it got, and returns everything that was received."""

    position: str
    tried: str
    gets: str
    act: Callable[..., Any]

    @property
    def is_allowed(self) -> bool:
        """Whether this is what the position may do: without it, a refusal may be a broken connection."""
        return self.gets.startswith("may: ")


ATTEMPTS: list[Attempt] = []


def attempt(position: str, tried: str, gets: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add one attempt to the table."""

    def add(act: Callable[..., Any]) -> Callable[..., Any]:
        ATTEMPTS.append(Attempt(position, tried, gets, act))
        return act

    return add


def attempts(position: str, gets: str, rows: dict[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an attempt for each row: what is tried, and the argument."""

    def add(act: Callable[..., Any]) -> Callable[..., Any]:
        for tried, argument in rows.items():
            ATTEMPTS.append(Attempt(position, tried, gets, partial(act, argument=argument)))
        return act

    return add
