"""Files of timings as columns of raw values: comma-separated text, gzip or not, and parquet. Pure."""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from holdfast.engines.archives import GZIP, DamagedArchive, unpacked

Columns = dict[str, Sequence[Any]]

PARQUET = b"PAR1"
_SEPARATORS = ",\t;"


class OperationsUnreadable(ValueError):
    """Input without timings of operations; the message names cause and cure."""


def columns_of(data: bytes, name: str) -> Columns:
    """Return the columns of a file by lower-case name, all of one length. Raises OperationsUnreadable if it is damaged,
    cut short, or not a table."""
    return _of_parquet(data, name) if data.startswith(PARQUET) else _of_text(data, name)


def first_line(head: bytes) -> str:
    """Return the first line of a table, unpacked and with commas, from the beginning of its file; "" if it is none."""
    if head.startswith(GZIP):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, 4096)
        except zlib.error:
            return ""
    text = head.decode("utf-8", "replace").lstrip("\ufeff").strip().split("\n", 1)[0].strip()
    return text.replace(separator_of(text), ",")


def separator_of(line: str) -> str:
    return max(_SEPARATORS, key=line.count)


def _of_text(data: bytes, name: str) -> Columns:
    try:
        text = unpacked(data).decode("utf-8", "replace").lstrip("\ufeff").replace("\r\n", "\n").lstrip("\n")
    except DamagedArchive as error:
        raise OperationsUnreadable(f"{name}: {error}") from error
    if (separator := separator_of(text.split("\n", 1)[0])) != "," and "," not in text:
        text = text.replace(separator, ",")
    return _of_plain(text) or _of_quoted(text, name)


def _of_plain(text: str) -> Columns | None:
    """Parse text without quotes or faults, several times as fast; None if the text is not that plain."""
    lines = text.rstrip("\n").split("\n")
    header = [column.strip().lower() for column in lines[0].split(",")]
    width = len(header)
    if '"' in text or len(lines) < 2 or len(set(header)) < width or any(one.count(",") + 1 != width for one in lines):
        return None
    cells = ",".join(lines).split(",")
    return {column: cells[width + place :: width] for place, column in enumerate(header)}


def _of_quoted(text: str, name: str) -> Columns:
    lines = csv.reader(io.StringIO(text))
    try:
        header = [column.strip().lower() for column in next(lines, [])]
        rows = [row for row in lines if row]
    except csv.Error as error:
        raise OperationsUnreadable(f"{name}, line {lines.line_num}: not comma-separated text ({error})") from error
    if not header or len(header) != len(set(header)):
        raise OperationsUnreadable(f"{name}: its first line does not name the columns")
    if not rows:
        raise OperationsUnreadable(f"{name}: a header and no rows")
    odd = next((at for at, row in enumerate(rows) if len(row) != len(header)), None)
    if odd is not None:
        if odd == len(rows) - 1:
            raise OperationsUnreadable(f"{name} breaks off within its last line: it was cut short; copy it again")
        found, wanted = len(rows[odd]), len(header)
        raise OperationsUnreadable(f"{name}, row {odd + 1}: {found} fields, where the first line names {wanted}")
    return dict(zip(header, zip(*rows, strict=True), strict=True))


def _of_parquet(data: bytes, name: str) -> Columns:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise OperationsUnreadable(
            f"{name} is parquet, and pyarrow is not installed: pip install pyarrow, or give it as CSV"
        ) from None
    try:
        table = parquet.read_table(arrow.BufferReader(data))
    except (arrow.ArrowException, OSError) as error:
        raise OperationsUnreadable(f"{name}: unreadable parquet ({error}); copy it again") from error
    return {column.strip().lower(): table[column].to_pylist() for column in table.column_names}
