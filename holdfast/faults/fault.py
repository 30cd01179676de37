"""What a fault is: where it can be aimed, what it needs of the machine, and the steps that it is made of."""

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
    """What a fault is aimed at."""

    RANK = "rank"
    NODE = "node"
    HOST = "host"


class FaultStep(msgspec.Struct, frozen=True, kw_only=True, tag_field="step", omit_defaults=True):
    """A part of a fault, as data: written down before it is done, and undone from what was written."""

    @property
    def lasts(self) -> bool:
        """Whether there is something to undo once it is done."""
        return True

    def do(self) -> None:
        """
        Raises:
            OSError, FaultRefused: it cannot be done; what has been done of it, `undo` takes back.
        """
        raise NotImplementedError

    def undo(self) -> None:
        """Take it back; done in part, not at all, or undone before, it does no harm.

        Raises:
            OSError, FaultRefused: it cannot be taken back now.
        """


class FaultOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set of a fault. Most have nothing."""

    def symptom(self) -> Symptom | None:
        """The symptom, if it hangs on what is set."""
        return None


class Fault(NamedTuple):
    """A way in which things break. `what` says it in one line; `undo` how it ends, "" if that is over at once.

    `symptom` is None for what Table 1 of ByteRobust has no row for.
    """

    name: str
    symptom: Symptom | None
    at: FaultScope
    what: str
    plan: Callable[[FaultTarget, Any], tuple[FaultStep, ...]]
    needs: tuple[Requirement, ...] = ()
    options: type[FaultOptions] = FaultOptions
    undo: str = ""

    def configured(self, given: dict[str, str]) -> FaultOptions:
        """The options, with what was given as text.

        Raises:
            FaultRefused: one of them is unknown or has no such value.
        """
        try:
            return msgspec.convert(given, self.options, strict=False)
        except msgspec.ValidationError as error:
            known = self.settings()
            takes = f"takes {', '.join(f'{name}={value}' for name, value in known.items())}" if known else "takes none"
            raise FaultRefused(f"{error}: fault {self.name} {takes}") from error

    def symptom_with(self, options: FaultOptions) -> Symptom | None:
        """What it looks like with these options."""
        return options.symptom() or self.symptom

    def settings(self) -> dict[str, Any]:
        """What can be set, and what it is if it is not."""
        return msgspec.structs.asdict(self.options())
