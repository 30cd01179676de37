"""The bytes of dumps from files, pipes and archives, unpacked up to a limit of memory."""

from __future__ import annotations

import codecs
import io
import os
import re
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.bounded_calls import open_file
from holdfast.engines.archives import DamagedArchive, unpacked
from holdfast.engines.hang.dumps.dump_files import UnreadableDump

STDIN = "-"

BYTES_MAX = 8 << 30
"""Maximum size of a file."""

UNPACKED_BYTES_MAX = 2 << 30
"""Maximum unpacked size of a file or an archive, against archive bombs."""

_CHUNK_BYTES = 1 << 24
_COLOURS = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def files_of(given: str) -> Iterator[tuple[str, Path | None, str]]:
    """Yield the files of a path: name, path (None: standard input), and why it cannot be read ("" if it can)."""
    path = Path(given)
    if given == STDIN:
        yield STDIN, None, ""
    elif not path.exists():
        yield given, path, "a link to what is not there" if path.is_symlink() else "is not there"
    elif path.is_dir():
        found = sorted(_inside(path), key=lambda each: _natural(each[0]))
        if not found:
            yield given, path, "has no files"
        for file, error in found:
            yield str(file), file, error
    else:
        yield given, path, ""


def _inside(folder: Path) -> Iterator[tuple[Path, str]]:
    failed: list[OSError] = []
    for root, folders, names in os.walk(folder, onerror=failed.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(root, name) for name in names if not name.startswith(".")):
            if file.is_file():
                yield file, ""
            elif file.is_symlink() and not file.exists():
                yield file, "a link to what is not there"
    for error in failed:
        yield Path(error.filename or folder), error.strerror or str(error)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts rank-2 before rank-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def contents(path: Path | None, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the unpacked contents of a file, or of each member of an archive as `archive/member`. Raises UnreadableDump
    if it is too large, broken, or without an end, OSError if it cannot be opened.
    """
    data = _unpacked(_read(path))
    if data[257:262] == b"ustar":
        yield from _of_tar(data, name)
    elif data[:4] == b"PK\x03\x04":
        yield from _of_zip(data, name)
    else:
        yield name, _as_text_is_written(data)


def _read(path: Path | None) -> bytes:
    if path is None:
        return _limited(sys.stdin.buffer.read)
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)) and path.resolve() != Path(os.devnull):
        raise UnreadableDump("neither a file nor a folder")
    with open_file(path) as file:
        return _limited(file.read)


def _limited(read: Callable[[int], bytes | None]) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := read(_CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if size > BYTES_MAX:
            raise UnreadableDump(f"it is larger than {BYTES_MAX >> 30} GiB")
    return b"".join(parts)


def _unpacked(data: bytes) -> bytes:
    try:
        return unpacked(data, UNPACKED_BYTES_MAX)
    except DamagedArchive as error:
        raise UnreadableDump(str(error)) from None


def _of_tar(data: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                if member.isreg() and not member.issparse() and (file := archive.extractfile(member)) is not None:
                    yield f"{name}/{member.name}", _as_text_is_written(_unpacked(file.read()))
    except (tarfile.TarError, EOFError) as error:
        raise UnreadableDump(f"a broken tar archive: {error}") from None


def _of_zip(data: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > UNPACKED_BYTES_MAX:
                raise UnreadableDump(f"it is larger than {UNPACKED_BYTES_MAX >> 30} GiB once unpacked")
            for member in archive.infolist():
                if not member.is_dir():
                    yield f"{name}/{member.filename}", _as_text_is_written(_unpacked(archive.read(member)))
    except (zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError, zlib.error) as error:
        raise UnreadableDump(f"a zip archive that cannot be read: {error}") from None


def _as_text_is_written(data: bytes) -> bytes:
    """Return text in UTF-8, as far as its byte order mark tells the encoding, without colours; other data unchanged."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            data = data[len(mark) :].decode(encoding, "replace").encode()
    return _COLOURS.sub(b"", data) if data[:1] != b"\x80" and b"\x1b[" in data else data
