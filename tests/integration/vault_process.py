"""A real vault, and the ranks of a job beside it, each a process of its own, all forked from one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.warm_python import WARM_RANKS, WarmHoldfast, WarmPython

SUBMITTED_MS = 1
UNTIL_TORN_DOWN = ("--orphan-s", "600")
"""Flags of a vault that waits for its first rank, however long that imports on a busy machine."""


@contextmanager
def vault(directory: Path, *flags: str) -> Iterator[Path]:
    """A vault with its state in `directory`, ready on entry and gone on exit."""
    reading, writing = os.pipe()
    command = (
        sys.executable,
        "-m",
        "holdfast_vault",
        "--state-dir",
        str(directory),
        "--ready-fd",
        str(writing),
        *flags,
    )
    process = WarmHoldfast(command, pass_fds=[writing])
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
        environment = {
            **inherited,
            "STORE": str(directory / f"store-{job}-{generation}"),
            "HOLDFAST_VAULT": str(directory),
            "HOLDFAST_JOB": job,
            "HOLDFAST_JOB_SUBMITTED_MS": str(SUBMITTED_MS),
            "HOLDFAST_JOB_DIR": str(directory / job),
            "HOLDFAST_GENERATION": str(generation),
        }
        pipes = [os.pipe() for _ in range(size)]
        outputs = [writing for _, writing in pipes]
        self._process = WarmPython(
            [sys.executable, WARM_RANKS, *(f"--stdout={output}" for output in outputs), str(size), script, *args],
            env=environment,
            pass_fds=outputs,
        )
        for output in outputs:
            os.close(output)
        self._outputs = [os.fdopen(reading) for reading, _ in pipes]
        self._heard: list[str] = []

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for output in self._outputs:
            output.close()

    def until(self, line: str) -> None:
        """Wait until rank 0 has said this."""
        for read in self._outputs[0]:
            self._heard.append(read.rstrip())
            if self._heard[-1] == line:
                return
        raise AssertionError(f"rank 0 ended without saying {line!r}, but {self._heard}")

    def kill(self) -> list[list[str]]:
        """SIGKILL to all of them; what each has said."""
        self._process.kill()  # and the kernel does it to the ranks
        return self._said()

    def finished(self) -> list[list[str]]:
        """What each rank has said by its end, which was a good one."""
        said = self._said()
        assert self._process.wait() == 0, said
        return said

    def _said(self) -> list[list[str]]:
        said = [output.read().splitlines() for output in self._outputs]
        return [self._heard + said[0], *said[1:]]
