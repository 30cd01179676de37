"""Settings by section: each number has its default, its range and its meaning in one place."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, get_type_hints

import msgspec

SETTLED_S_MAX = 7 * 86400.0
"""Upper limit of most times in the life of a job."""


class Within(NamedTuple):
    """Range of a number, limits included. Beyond these, numbers overflow dates or mean waiting without end."""

    low: float
    high: float
    why: str = ""
    """Reason for a limit, where a reader would not guess it."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections; fields annotated with `Within` are checked when a section is made."""

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: a number is outside its range; the message has name, value, range and reason.
        """
        for name, (low, high, why) in ranges_of(type(self)).items():
            value = getattr(self, name)
            # In this form the comparison also refuses NaN.
            if not low <= value <= high:
                reason = f": {why}" if why else ""
                raise ValueError(f"{name} = {value:g} must be at least {low:.12g} and at most {high:.12g}{reason}")


@cache
def ranges_of(section: type[Section]) -> dict[str, Within]:
    """Return the range of each field that has one."""
    hints = get_type_hints(section, include_extras=True)
    return {
        name: within
        for name in section.__struct_fields__
        for within in getattr(hints[name], "__metadata__", ())
        if isinstance(within, Within)
    }
