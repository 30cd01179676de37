"""Types of options and arguments that are stricter than Click's: no empty names, no NaN, digits of ASCII only."""

from __future__ import annotations

import math
import re
from typing import Any

import click

_WHOLE = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)
_WHOLE_MAX = (1 << 31) - 1


class WholeNumber(click.IntRange):
    """An integer in a range. int() would also accept digits of other scripts, and underscores."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if _is_unlike(value, _WHOLE):
            self.fail(f"{value!r} is not a whole number", param, ctx)
        number = super().convert(value, param, ctx)
        if number > _WHOLE_MAX:
            self.fail(f"{value} is too large: {_WHOLE_MAX:,} at most", param, ctx)
        return number


class FiniteNumber(click.FloatRange):
    """A number in a range. NaN is in every range for Click, because it compares as neither too small nor too large."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if _is_unlike(value, _FLOAT):
            self.fail(f"{value!r} is not a number", param, ctx)
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is too large", param, ctx)
        return number


class FilePath(click.Path):
    """A path that is not empty. An empty one, such as that of an unset variable, would mean this directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


class NonEmptyText(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A text that is not empty. An empty one would count as an option that is not given."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "":
            self.fail("the value is empty", param, ctx)
        return str(value)


def _is_unlike(value: object, pattern: re.Pattern[str]) -> bool:
    """Return True for text of another form. A default is a number already."""
    return isinstance(value, str) and not pattern.fullmatch(value)
