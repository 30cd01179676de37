"""Wall clocks that jump, of single processes: a preloaded library adds to theirs what a file of each says.

The machine's clock is not touched. Processes without the library, as nats-server and Postgres, cannot be given another
clock, and ranks and zygotes are not: the soak judges by the times that ranks note.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("chaos_clock.c")
COMPILE_S = 60.0


class Clocks:
    """The files in a directory, one for each process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def set_ahead(self, pid: int, seconds: int) -> bool:
        """Put a process's clock ahead of the machine's; returns False if it has no clock of its own."""
        with contextlib.suppress(FileNotFoundError), (self._directory / f"{pid}").open("r+b") as file:
            file.write(struct.pack("l", seconds))
            return True
        return False


def build(directory: Path) -> dict[str, str]:
    """Compile the library; return the environment that gives each process a clock, {} without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return {}
    directory.mkdir()
    library = directory / "clock.so"
    command = (compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE))
    if subprocess.run(command, capture_output=True, check=False, timeout=COMPILE_S).returncode:
        return {}
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCKS": str(directory)}
