"""Differences between two versions of the code. Pure."""

from __future__ import annotations

import difflib

import msgspec

from holdfast.code.manifest import Manifest, ManifestEntry

PATHS_SHOWN = 50
_PATHS_IN_SENTENCE = 3
_TEXT_BYTES_MAX = 1 << 20


class Changes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Paths that only one of two versions has, or that differ in content, mode or target. The first 50 of each kind by
    name; `count` is the number of all.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    count: int = 0

    @property
    def paths(self) -> tuple[str, ...]:
        """All listed paths, changed ones first."""
        return (*self.changed, *self.added, *self.removed)


class LineCount(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that a file gained and lost; both None if it is not text, or too long to be compared."""

    path: str
    added: int | None
    removed: int | None


def difference(old: Manifest, new: Manifest) -> Changes:
    before = {entry.path: entry for entry in old.entries}
    after = {entry.path: entry for entry in new.entries}
    added = sorted(after.keys() - before.keys())
    removed = sorted(before.keys() - after.keys())
    changed = sorted(path for path in after.keys() & before.keys() if after[path] != before[path])
    return Changes(
        added=tuple(added[:PATHS_SHOWN]),
        changed=tuple(changed[:PATHS_SHOWN]),
        removed=tuple(removed[:PATHS_SHOWN]),
        count=len(added) + len(removed) + len(changed),
    )


def changes_text(changes: Changes) -> str:
    """Return the changes as part of a sentence: the first paths, and the number of the others."""
    if not changes.count:
        return "no file differs"
    shown = changes.paths[:_PATHS_IN_SENTENCE]
    others = changes.count - len(shown)
    return ", ".join(shown) + (f" and {others} more" if others else "")


def lines(path: str, old: bytes, new: bytes) -> LineCount:
    before, after = _lines(old), _lines(new)
    if before is None or after is None:
        return LineCount(path=path, added=None, removed=None)
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    return LineCount(path=path, added=len(after) - same, removed=len(before) - same)


def unified_diff(path: str, old: bytes, new: bytes) -> list[str]:
    """Return the difference of a text file in the format of `diff -u`; a single line for other files."""
    before, after = _lines(old), _lines(new)
    if before is None or after is None:
        return [f"{path}: not text, or too long: {len(old)} and {len(new)} bytes"]
    return list(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", lineterm=""))


def content_of(entry: ManifestEntry | None) -> str | None:
    """Return the hash of an entry's content; None for a link or no entry."""
    return entry.sha256 if entry is not None and entry.target is None else None


def _lines(content: bytes) -> list[str] | None:
    if len(content) > _TEXT_BYTES_MAX or b"\0" in content:
        return None
    try:
        return content.decode().splitlines()
    except UnicodeDecodeError:
        return None
