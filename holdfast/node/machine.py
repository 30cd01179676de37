"""The roots of /proc, /sys, /dev and /run that the checks read, so that a test can give a recorded tree."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine's own files, or others of the same form."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    run: Path = Path("/run")

    @property
    def boot_id(self) -> str:
        return text(self.proc / "sys/kernel/random/boot_id") or ""


def text(path: Path) -> str | None:
    """Return the stripped text of a file; None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """Return the number in a file; None where there is none."""
    found = text(path)
    try:
        return int(found, 0) if found else None
    except ValueError:
        return None


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted by name; none if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
