"""Where the checks read: the roots of /proc, /sys, /dev and /run, so that a test can give a recorded tree."""

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
        """Which boot of which machine this is."""
        return text(self.proc / "sys/kernel/random/boot_id") or ""


def text(path: Path) -> str | None:
    """What a file says, without the end of its line; None where there is none or it says nothing to us."""
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
    """What a folder has, by name; nothing where there is none."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
