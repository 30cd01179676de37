"""A real vault, and the ranks of a job beside it, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SUBMITTED_MS = 1


@contextmanager
def vault(directory: Path) -> Iterator[Path]:
    """A vault with its state in `directory`, ready on entry and gone on exit."""
    reading, writing = os.pipe()
    command = (sys.executable, "-m", "holdfast_agent.vault", "--state-dir", str(directory), "--ready-fd", str(writing))
    process = subprocess.Popen(command, pass_fds=[writing])
    os.close(writing)
    try:
        with open(reading, "rb") as ready:
            assert ready.read(1) or process.poll() is None, "the vault did not start"
        yield directory
    finally:
        process.terminate()
        process.wait(30)


class Ranks:
    """One generation of a job, started as Holdfast would start it. Killed on exit, if they still run."""

    def __init__(
        self, script: Path, args: Sequence[str], directory: Path, *, size: int, generation: int = 1, job: str = "job"
    ) -> None:
        """`directory` is where their vault is; their rendezvous and their checkpoints lie there too."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        shared = {
            **inherited,
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(size),
            "STORE": str(directory / f"store-{job}-{generation}"),
            "HOLDFAST_VAULT": str(directory),
            "HOLDFAST_JOB": job,
            "HOLDFAST_JOB_SUBMITTED_MS": str(SUBMITTED_MS),
            "HOLDFAST_JOB_DIR": str(directory / job),
            "HOLDFAST_GENERATION": str(generation),
        }
        self._heard: list[str] = []
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(script), *args],
                env={**shared, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def until(self, line: str) -> None:
        """Wait until rank 0 has said this."""
        output = self._processes[0].stdout
        assert output is not None
        for read in output:
            self._heard.append(read.rstrip())
            if self._heard[-1] == line:
                return
        raise AssertionError(f"rank 0 ended without saying {line!r}, but {self._heard}")

    def kill(self) -> list[list[str]]:
        """SIGKILL to all of them; what each has said."""
        for process in self._processes:
            process.kill()
        return self._said()

    def finished(self) -> list[list[str]]:
        """What each rank has said by its end, which was a good one."""
        said = self._said()
        assert [process.returncode for process in self._processes] == [0] * len(said), said
        return said

    def _said(self) -> list[list[str]]:
        said = [process.communicate(timeout=90)[0].splitlines() for process in self._processes]
        return [self._heard + said[0], *said[1:]]
