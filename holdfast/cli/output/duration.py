"""Durations as options: 500ms, 30s, 5m, 24h, 2d."""

from __future__ import annotations

import math
import re
from typing import Any

import click

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)", re.ASCII)


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """An option's value in seconds, never 0."""

    name = "duration"

    def __init__(self, at_most_s: float = math.inf) -> None:
        self._at_most_s = at_most_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _DURATION.fullmatch(str(value))
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is not a duration: give one such as 500ms, 30s, 5m, 24h or 2d", param, ctx)
        duration_s = float(match[1]) * _UNITS_S[match[2]]
        if duration_s > self._at_most_s:
            self.fail(f"{value!r} is too long: {self._at_most_s / _UNITS_S['d']:g}d at most", param, ctx)
        return duration_s
