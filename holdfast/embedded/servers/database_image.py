"""A new database as a copy: what initdb and the migrations make is kept in the user's cache, for the next new cluster.

Both take longer than all else that a cluster does before its services can work. The image holds no data and no secret
of a cluster: its administrator has a password of the image's own, which each copy replaces at its first start, and no
other role has one. It is named by what made it, so another release makes another.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import structlog

from holdfast.embedded.layout import write_private

CACHE_VARIABLE = "XDG_CACHE_HOME"
KEPT = 3
"""Images kept, of the releases that were used last."""
_DATA, _PASSWORD, _CONTENT = "data", "password", "content"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LIBC = ctypes.CDLL(None, use_errno=True)

log = structlog.get_logger(__name__)


class Image(NamedTuple):
    """A database that was stopped in order, and the password of its administrator."""

    data: Path
    password: str
    content: str
    """Number of files and bytes when it was made."""

    def copy_to(self, target: Path) -> bool:
        """Copy the database. Return False if a part of it is gone: caches are tidied by others too."""
        try:
            _copy(self.data, target)
            is_whole = _content(target) == self.content
        except (OSError, shutil.Error) as error:
            log.info("the image of a new database cannot be copied", reason=str(error))
            is_whole = False
        if not is_whole:
            shutil.rmtree(self.data.parent, ignore_errors=True)
            shutil.rmtree(target, ignore_errors=True)
        return is_whole


class Images:
    """The images of this user, in `folder`. Without a folder that only this user can write to there are none."""

    def __init__(self, folder: Path, made_by: str, server: Path) -> None:
        about = server.stat()
        name = f"{made_by}\0{server}\0{about.st_size}\0{about.st_mtime_ns}"
        self._folder = folder
        self._place = folder / hashlib.sha256(name.encode()).hexdigest()[:32]

    def find(self) -> Image | None:
        """Return the image that these migrations and this server make, if there is one."""
        try:
            if not _is_ours(self._folder) or not _is_ours(self._place):
                return None
            password, content = ((self._place / name).read_text() for name in (_PASSWORD, _CONTENT))
            os.utime(self._place)
        except (OSError, ValueError):
            return None
        return Image(self._place / _DATA, password, content)

    def save(self, data: Path, password: str) -> None:
        """Keep a copy of a database that is stopped. If that fails, the next start is slower, and tries again."""
        part = None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(self._folder) or self._place.exists():
                return
            part = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
            write_private(part / _PASSWORD, password.encode(), durable=False)
            write_private(part / _CONTENT, _content(data).encode(), durable=False)
            _copy(data, part / _DATA)
            part.rename(self._place)
            self._tidy()
        except (OSError, shutil.Error) as error:
            log.info("no image of the new database is kept", reason=str(error))
            if part is not None:
                shutil.rmtree(part, ignore_errors=True)

    def _tidy(self) -> None:
        found = sorted(self._folder.iterdir(), key=lambda path: -path.stat().st_mtime)
        for path in found[KEPT:]:
            shutil.rmtree(path, ignore_errors=True)


def image_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the directory for images; None: this user has no home."""
    cache = environment.get(CACHE_VARIABLE, "")
    if not os.path.isabs(cache):
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        cache = os.path.join(home, ".cache")
    return Path(cache) / "holdfast" / "databases"


def _content(data: Path) -> str:
    sizes = [file.stat().st_size for file in data.rglob("*") if file.is_file()]
    return f"{len(sizes)} files, {sum(sizes)} bytes"


def _copy(data: Path, target: Path) -> None:
    """Copy a database, closed to other users. Raises OSError or shutil.Error."""
    shutil.copytree(data, target, copy_function=shutil.copyfile)
    # Postgres refuses a directory that others can read.
    target.chmod(0o700)


def sync(directory: Path) -> None:
    """Have all that was written to the file system of a directory survive a power loss. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _LIBC.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def _is_ours(directory: Path) -> bool:
    """Return True if no other user can put anything there: the server runs what the image contains."""
    about = directory.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & _WRITABLE_BY_OTHERS
