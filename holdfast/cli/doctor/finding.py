"""A finding of `holdfast doctor`. Pure."""

from __future__ import annotations

from enum import StrEnum
from functools import partial

import msgspec


class Severity(StrEnum):
    ERROR = "error"  # something does not work now, or work is lost
    WARNING = "warning"  # it will not with the next failure, or needs a person


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong with a cluster."""

    kind: str
    severity: Severity = Severity.ERROR
    about: str
    """The process, node, job or directory."""
    what: str
    cure: str


warning = partial(Finding, severity=Severity.WARNING)
