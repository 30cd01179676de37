"""Logs in files, directories, gz and standard input, read in blocks of whole lines, whatever their size."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import sys
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.bounded_calls import open_file
from holdfast.engines.crash.log import GAP, LINE_CHARS_MAX
from holdfast.engines.crash.rules import RuleBook, rule_book
from holdfast.engines.crash.scan import LogScan, ScannedLog

BLOCK_BYTES = 1 << 15
STDIN = "-"

_KEPT_BYTES = 4 * LINE_CHARS_MAX

_OF_RANK = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_OF_TORCHRUN = re.compile(r"attempt_\d+/(\d{1,4})/std(?:out|err)(?:\.log)?$")
_IN_DIRECTORY = re.compile(r"\.(?:out|err|log|txt)(?:\.gz)?$|^std(?:out|err)$|^dmesg$")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One log, and the rank in its name; `local`: the rank counts only within its node."""

    name: str
    path: Path | None
    rank: int | None
    local: bool = False


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class UnreadableLog(ValueError):
    """A log that cannot be read, and why."""


def sources(paths: list[str]) -> list[Source]:
    """Return the logs that these paths name: files, `-`, or directories with everything in them that looks like a log.
    Raises UnreadableLog if a path does not exist, or a directory has no logs.
    """
    found: list[Source] = []
    for given in paths:
        if given == STDIN:
            found.append(Source(name=STDIN, path=None, rank=None))
            continue
        path = Path(given)
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and _IN_DIRECTORY.search(file.name))
            if not inside:
                raise UnreadableLog(f"{given} has no logs: files that end in .out, .err, .log or .txt, or .gz after it")
            found += [named(str(file), file) for file in inside]
        elif path.is_block_device() or (path.is_char_device() and not os.path.samefile(path, os.devnull)):
            raise UnreadableLog(f"{given} is a device, which may have no end")
        elif path.exists():
            found.append(named(given, path))
        else:
            raise UnreadableLog(f"{given} is not there")
    return found


def named(name: str, path: Path | None = None) -> Source:
    """Return a log by its name, which may contain its rank."""
    if of_torchrun := _OF_TORCHRUN.search(name):
        return Source(name=name, path=path, rank=int(of_torchrun[1]), local=True)
    *_, folder, file = ("", *Path(name).parts) if name else ("", "")
    of_rank = _OF_RANK.search(file) or _OF_RANK.search(folder)
    return Source(name=name, path=path, rank=int(of_rank[1]) if of_rank else None)


def scan(source: Source, book: RuleBook | None = None, on_bytes: Callable[[int], None] | None = None) -> ScannedLog:
    """Scan one log. Raises UnreadableLog if it cannot be opened or read."""
    scanning = LogScan(source.name, (book or rule_book()).line_filter, source.rank, local=source.local)
    try:
        if source.path is None:
            for block in blocks(InUtf8(sys.stdin.buffer), on_bytes):
                scanning.feed(block)
        else:
            with open_file(source.path) as file:
                if _is_gzip(file):
                    with gzip.GzipFile(fileobj=file) as unpacked:
                        for block in blocks(InUtf8(unpacked)):
                            scanning.feed(block)
                else:
                    for block in blocks(InUtf8(file), on_bytes):
                        scanning.feed(block)
    except (OSError, EOFError) as error:
        raise UnreadableLog(f"{source.name} cannot be read: {error}") from error
    return scanning.end()


def blocks(file: Readable, on_bytes: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """Yield blocks that end with a line, or where a progress bar returns to the start of its line. Of a line that is
    longer than a block its beginning and its end are kept."""
    head = rest = b""
    while data := file.read(BLOCK_BYTES):
        if on_bytes:
            on_bytes(len(data))
        data = rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end:
            yield head + data[:end]
            head, rest = b"", data[end:]
        elif len(data) > BLOCK_BYTES:
            head = head or data[:_KEPT_BYTES] + GAP
            rest = data[-_KEPT_BYTES:]
        else:
            rest = data
    if rest:
        yield head + rest + b"\n"


def _is_gzip(file: BufferedReader) -> bool:
    # A pipe cannot be read from its beginning again.
    return file.peek(2)[:2] == b"\x1f\x8b"


class InUtf8:
    """A file without its byte order mark, and in UTF-8 if the mark is UTF-16's (as PowerShell's `>` writes)."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        # A pipe cannot be read from its beginning again.
        self._first = file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
        is_utf16 = self._first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        self._decoder = codecs.getincrementaldecoder("utf-16")(errors="replace") if is_utf16 else None

    def read(self, size: int, /) -> bytes:
        while data := self._first or self._file.read(size):
            self._first = b""
            if self._decoder is None:
                return data
            if text := self._decoder.decode(data):
                return text.encode()
        return self._decoder.decode(b"", final=True).encode() if self._decoder else b""
