"""The definition of a fault: its scope, its requirements, its options and its steps."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from holdfast.faults.requirements import Requirement
from holdfast.faults.target import FaultTarget
from holdfast.symptoms import Symptom


class FaultRefused(Exception):
    """A fault cannot be injected; the message names the cause and the cure."""


class FaultScope(StrEnum):
    RANK = "rank"
    NODE = "node"
    HOST = "host"


class FaultStep(msgspec.Struct, frozen=True, kw_only=True, tag_field="step", omit_defaults=True):
    """A part of a fault, as data: recorded before it is done, and undone from the record."""

    @property
    def lasts(self) -> bool:
        """True if there is something to undo once it is done."""
        return True

    def do(self) -> None:
        """Do the step. Raises OSError or FaultRefused if it failed; `undo` takes back what was done of it."""
        raise NotImplementedError

    def undo(self) -> None:
        """Undo the step; harmless if done in part, not at all, or undone before. Raises OSError or FaultRefused."""


class FaultOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    def symptom(self) -> Symptom | None:
        """Return the symptom, if it depends on the options."""
        return None


class Fault(NamedTuple):
    """A fault that can be injected. `symptom` is None if ByteRobust's Table 1 has no row for it."""

    name: str
    symptom: Symptom | None
    at: FaultScope
    what: str
    """Description in one line."""
    plan: Callable[[FaultTarget, Any], tuple[FaultStep, ...]]
    needs: tuple[Requirement, ...] = ()
    options: type[FaultOptions] = FaultOptions
    undo: str = ""
    """Description of the undoing, "" if the fault has no duration."""

    def configured(self, given: dict[str, str]) -> FaultOptions:
        """Parse options given as text. Raises FaultRefused if an option is unknown or has a wrong value."""
        try:
            return msgspec.convert(given, self.options, strict=False)
        except msgspec.ValidationError as error:
            known = self.settings()
            takes = (
                f"has the options {', '.join(f'{name}={value}' for name, value in known.items())}"
                if known
                else "has no options"
            )
            raise FaultRefused(f"{error}: fault {self.name} {takes}") from error

    def symptom_with(self, options: FaultOptions) -> Symptom | None:
        return options.symptom() or self.symptom

    def settings(self) -> dict[str, Any]:
        """Return the options with their defaults."""
        return msgspec.structs.asdict(self.options())
