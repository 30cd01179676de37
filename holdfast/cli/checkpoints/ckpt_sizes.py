"""Sizes and ages as text, and sizes as options."""

from __future__ import annotations

import re

import click

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_TYPED = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)b?", re.IGNORECASE | re.ASCII)


def size_text(nbytes: int | None) -> str:
    """Return a size in powers of 1000: 1.53 GB."""
    if nbytes is None:
        return ""
    size, unit = float(nbytes), 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{nbytes} B" if unit == 0 else f"{size:.3g} {_UNITS[unit]}"


def age_text(seconds: float | None) -> str:
    """Return an age in the largest unit that gives at least 2: 90 s, 25 h."""
    if seconds is None:
        return ""
    seconds = max(seconds, 0.0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def typed_bytes(context: click.Context, option: click.Parameter, value: str) -> int:
    """Return a typed size such as 500MB in bytes. Raises BadParameter."""
    match = _TYPED.fullmatch(value.strip())
    if match is None or not (size := int(float(match[1]) * 1000 ** " kmgtp".index(match[2].lower() or " "))):
        raise click.BadParameter(f"{value!r} is not a size: write 500MB or 5GB", context, option)
    return size
