"""The storage for a place of checkpoints that a user names: a directory, or the URL of one."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from holdfast.trainer.checkpoint.errors import CheckpointError
from holdfast.trainer.checkpoint.objects.object_store import ObjectStorage
from holdfast.trainer.checkpoint.storage.directory import DirectoryStorage, Storage
from holdfast.trainer.checkpoint.storage.workplace import UNFENCED, Owner

PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
}
"""The filesystems of fsspec that create an object only if there is none, in one step: the fence rests on it. Others ask
first and write then. `memory` does so too, and is shared only by the threads of a process."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_MANGLED = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")


def is_url(place: str | os.PathLike[str]) -> bool:
    return _URL.match(os.fspath(place)) is not None


def open_storage(place: str | os.PathLike[str], *, owner: Owner = UNFENCED, prefix: str = "") -> Storage:
    """Return the storage of a directory or URL, without a read or write yet; raises CheckpointError at a bad URL."""
    text = os.fspath(place)
    match = _URL.match(text)
    if match is None:
        if (mangled := _MANGLED.match(text)) and mangled[1].lower() in {*PACKAGES, "memory", "file"}:
            raise CheckpointError(f"{text!r} was a URL before it became a path: give it as a string")
        return DirectoryStorage(text, owner=owner, prefix=prefix)
    scheme = match[1].lower()
    if scheme == "file":
        # One place must not be kept in two ways.
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise CheckpointError(f"{text!r} names another machine; a path on this one has three slashes: file:///path")
        return DirectoryStorage(unquote(parts.path), owner=owner, prefix=prefix)
    if scheme != "memory" and scheme not in PACKAGES:
        raise CheckpointError(
            f"checkpoints cannot be kept at {text!r}: known are directories, {', '.join(sorted(PACKAGES))}, file; "
            "mount anything else as a directory"
        )
    # Only here: who keeps checkpoints in a directory does not need it.
    import fsspec  # type: ignore[import-untyped]

    try:
        filesystem, root = fsspec.url_to_fs(text, use_listings_cache=False)
    except ImportError as error:
        raise CheckpointError(
            f"{text!r} needs the package {PACKAGES[scheme]}: pip install {PACKAGES[scheme]}"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"checkpoints cannot be kept at {text!r}: {error}") from error
    return ObjectStorage(filesystem, root, text, owner=owner, prefix=prefix)
