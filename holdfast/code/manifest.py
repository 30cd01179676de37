"""The manifest of a version of the code: its files, and its name. Pure.

A manifest arrives over the bus, where any client may have written it. What `decode` accepts can be unpacked into an
empty directory without touching anything outside of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated

import msgspec

from holdfast.decoding import read

FILES_MAX = 10_000
FILE_BYTES_MAX = 32 << 20
CODE_BYTES_MAX = 128 << 20
MANIFEST_BYTES_MAX = 8 << 20
PATH_CHARS_MAX = 1024

SHORT_CHARS = 12

Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
"""A SHA-256 in hexadecimal: of a file's content, or of a manifest, which is the version's name."""


class InvalidManifest(ValueError):
    """A body is not a manifest, or describes a tree that must not be unpacked; the message names the problem."""


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of the tree, or with `target` a symbolic link to another place in it. `path` is relative, with slashes."""

    path: str
    sha256: str = ""
    size_bytes: int = 0
    is_executable: bool = False
    target: str | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a tree in the order of their paths; directories are implied by the paths."""

    entries: tuple[ManifestEntry, ...]
    format: int = 1

    @property
    def code_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def digests(self) -> dict[str, int]:
        """Size of each distinct content by its hash."""
        return {entry.sha256: entry.size_bytes for entry in self.entries if entry.target is None}


def manifest_of(entries: Iterable[ManifestEntry]) -> Manifest:
    """Return the manifest of these entries. Raises InvalidManifest if they are not a tree that can be unpacked."""
    manifest = Manifest(entries=tuple(sorted(entries, key=lambda entry: entry.path)))
    _check(manifest)
    return manifest


def encode(manifest: Manifest) -> bytes:
    """Encode the manifest as JSON; equal trees give equal bytes."""
    return msgspec.json.encode(manifest)


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of these bytes in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def version_of(manifest: Manifest) -> str:
    """Return the name of the version: the hash of its manifest."""
    return digest_of(encode(manifest))


def short(version: str) -> str:
    return version[:SHORT_CHARS]


_decoder = msgspec.json.Decoder(Manifest)


def decode(body: bytes) -> Manifest:
    """Decode a manifest. Raises InvalidManifest if it is none, over the limits, or has paths out of its directory."""
    if len(body) > MANIFEST_BYTES_MAX:
        raise InvalidManifest(f"it has {len(body)} bytes, over the limit of {MANIFEST_BYTES_MAX}")
    manifest = read(_decoder, body, InvalidManifest)
    _check(manifest)
    return manifest


def path_problem(path: str) -> str:
    """Return why no file may be unpacked at this path, "" if it may."""
    if not path or len(path) > PATH_CHARS_MAX or not path.isprintable():
        return "it is empty, too long, or has control characters"
    if path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
        return "it is not a plain path below the tree"
    return ""


def target_problem(path: str, target: str) -> str:
    """Return why a link at `path` may not lead to `target`, "" if it may. Only leading `..` are accepted: behind
    another link, `..` leads elsewhere than its text suggests.
    """
    if not target or len(target) > PATH_CHARS_MAX or not target.isprintable() or target.startswith("/"):
        return "it is empty, absolute, too long, or has control characters"
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    if up > path.count("/") or ".." in parts[up:]:
        return "it leads out of the tree"
    return ""


def _check(manifest: Manifest) -> None:
    if manifest.format != 1:
        raise InvalidManifest(f"it is of format {manifest.format}, made by a newer release: this one reads format 1")
    if not manifest.entries or len(manifest.entries) > FILES_MAX:
        raise InvalidManifest(f"it has {len(manifest.entries)} files; 1 to {FILES_MAX} are allowed")
    if manifest.code_bytes > CODE_BYTES_MAX:
        raise InvalidManifest(f"its files have {manifest.code_bytes} bytes, over the limit of {CODE_BYTES_MAX}")
    taken = {entry.path for entry in manifest.entries}
    before = ""
    for entry in manifest.entries:
        if problem := _problem(entry, before, taken):
            raise InvalidManifest(f"{entry.path[:200]!r}: {problem}")
        before = entry.path


def _problem(entry: ManifestEntry, before: str, taken: set[str]) -> str:
    if problem := path_problem(entry.path):
        return problem
    if entry.path <= before:
        return "it is out of order, or listed twice"
    parts = entry.path.split("/")
    if any("/".join(parts[:depth]) in taken for depth in range(1, len(parts))):
        return "a path above it is not a directory"
    if entry.target is not None:
        return target_problem(entry.path, entry.target)
    if len(entry.sha256) != 64 or set(entry.sha256) - set("0123456789abcdef"):
        return "its hash is not a SHA-256"
    if not 0 <= entry.size_bytes <= FILE_BYTES_MAX:
        return f"it has {entry.size_bytes} bytes, over the limit of {FILE_BYTES_MAX} for a file"
    return ""
