"""Plain-text tables and JSON for everything that commands print.

The text may come from a hostile message or a rank's log: control characters are escaped. Of a program's own output,
colours, tabs and carriage returns remain (`coloured`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias

import click
import msgspec

NOTHING = "-"
Column: TypeAlias = str | Callable[[Any], Any]
_UNLIMITED = 1 << 20

_encoder = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def render(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Lay out a table for the standard output: fitted to a terminal by rich, or else plain, one line for each row.
    Columns are two spaces apart; columns of numbers are right-aligned.
    """
    data = [list(row) for row in rows]
    cells = [[cell(value) for value in row] for row in data]
    columns = list(zip(*data, strict=True)) or [() for _ in headers]
    is_number = [
        any(map(_is_number, column)) and all(value is None or _is_number(value) for value in column)
        for column in columns
    ]
    if sys.stdout.isatty():
        is_prose = [any(" " in cell(it) for it in column if not isinstance(it, datetime)) for column in columns]
        return _fitted(headers, cells, is_number, is_prose)
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, is_number, strict=True)
        ).rstrip()
        for line in [headers, *cells]
    )


def table(columns: Mapping[str, Column], rows: Iterable[Any]) -> str:
    """Lay out one line for each row; `columns` gives for each header the row's key, or a function of the row."""
    return render(
        list(columns), [[row[of] if isinstance(of, str) else of(row) for of in columns.values()] for row in rows]
    )


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], *, as_json: bool, empty: str) -> None:
    """Print rows as JSON or as a table; in place of an empty table the sentence `empty`."""
    if as_json:
        click.echo(json_text(rows, indent=2))
    else:
        click.echo(table(columns, rows) if rows else empty)


def _fitted(headers: Sequence[str], cells: list[list[str]], is_number: list[bool], is_prose: list[bool]) -> str:
    """Lay out a table within the width of the terminal: sentences wrap; ids, names and times stay whole."""
    # Importing rich takes a tenth of a second.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    laid_out = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for place, header in enumerate(headers):
        laid_out.add_column(Text(header), justify="right" if is_number[place] else "left", no_wrap=not is_prose[place])
    for row in cells:
        laid_out.add_row(*map(Text, row))
    # On a terminal that is called dumb, rich takes a width only beside a height.
    console = Console(force_terminal=True, height=25)
    console.width = max(
        console.width, console.measure(laid_out, options=console.options.update(width=_UNLIMITED)).minimum
    )
    with console.capture() as captured:
        console.print(laid_out)
    return captured.get().rstrip("\n")


def cell(value: Any) -> str:
    """Return one value as text: times in UTC to the millisecond, fractions to six digits, nothing as a dash,
    lists with commas.
    """
    match value:
        case None | "" | [] | ():
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case datetime():
            moment = value.astimezone(UTC) if value.tzinfo else value
            return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
        case list() | tuple():
            return ", ".join(cell(inner) for inner in value)
        case dict():
            return printable(json_text(value))
        case _:
            return printable(str(value))


def seconds(value: float | None) -> str:
    """Return a duration to the millisecond."""
    return NOTHING if value is None else f"{value:.3f}"


def printable(text: str, keep: str = "") -> str:
    """Return `text` with every control character escaped, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def coloured(text: str) -> str:
    """Return a line of a program's output with its colours, tabs and carriage returns, other control escaped."""
    shown, at = "", 0
    for colour in _COLOUR.finditer(text):
        shown += printable(text[at : colour.start()], keep="\t\r") + colour[0]
        at = colour.end()
    return shown + printable(text[at:], keep="\t\r")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as JSON: times as RFC 3339, types that JSON lacks as text."""
    encoded = _encoder.encode(value)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
