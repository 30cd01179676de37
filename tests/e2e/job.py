"""A job under `holdfast run`, seen from outside: its journal, its processes, its output, its end."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jobs.arithmetic import undisturbed
from waiting import DEADLINE_S, until

from holdfast.node.kernel import started_ticks
from tests.warm_python import WarmHoldfast

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
NOTE_BYTES_MAX = 400
"""More than two lines of a journal have, so that its end always has a whole one."""


class Trained(NamedTuple):
    """One completed step of one rank."""

    generation: int
    step: int
    pid: int
    folded: int


class Job:
    """A job that `holdfast run` was started for."""

    def __init__(
        self,
        command: list[str],
        options: list[str],
        script: Path,
        arguments: list[str],
        *,
        scratch: Path,
        shape: tuple[int, int],
        name: str,
        environment: dict[str, str],
        look: Callable[[], str],
        is_executed: bool = False,
    ) -> None:
        """`is_executed`: the command is a program of its own, as the list of processes shows it, and no fork."""
        self.name = name
        self.scratch = scratch
        self.nnodes, self.nproc = shape
        self.world_size = self.nnodes * self.nproc
        self._look = look
        self.journal = scratch / "journal"
        self.journal.mkdir(parents=True)
        self._wish = scratch / "finish"
        own = ["--journal", str(self.journal)] if script.name in ("fold.py", "gpt.py") else []
        own += ["--until", str(self._wish)] if script.name == "fold.py" else []
        self._output, self._errors = scratch / "stdout", scratch / "stderr"
        with self._output.open("wb") as out, self._errors.open("wb") as err:
            started, interpreter = (subprocess.Popen, []) if is_executed else (WarmHoldfast, [sys.executable])
            self.process = started(
                [
                    *interpreter,
                    HOLDFAST,
                    *command,
                    f"--nnodes={self.nnodes}",
                    f"--nproc-per-node={self.nproc}",
                    f"--name={name}",
                    *options,
                    str(script),
                    *own,
                    *arguments,
                ],
                stdout=out,
                stderr=err,
                env=environment,
                cwd=scratch,
            )

    # --- what it has done ------------------------------------------------------------------------

    def trained(self, rank: int) -> list[Trained]:
        """What a rank has noted, in the order of noting."""
        try:
            text = (self.journal / f"rank-{rank}").read_text()
        except FileNotFoundError:
            return []
        # Of the last line a part may be there, where it goes over the end of a page.
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [Trained(*map(int, line.split())) for line in lines]

    def newest(self) -> list[Trained | None]:
        """The newest note of each rank."""
        return [self._newest(rank) for rank in range(self.world_size)]

    def _newest(self, rank: int) -> Trained | None:
        """Read only the end of the journal: tests look many times a second."""
        try:
            with (self.journal / f"rank-{rank}").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - NOTE_BYTES_MAX))
                end = file.read()
        except FileNotFoundError:
            return None
        whole = end[: end.rfind(b"\n") + 1].splitlines()
        return Trained(*map(int, whole[-1].split())) if whole else None

    def generation(self) -> int:
        """The generation in which all ranks have completed a step; 0 before the first."""
        return min(note.generation if note else 0 for note in self.newest())

    def step(self) -> int:
        """The step that all ranks have completed in their newest generation."""
        return min(note.step if note else 0 for note in self.newest())

    def pids(self) -> list[int]:
        """The process of each rank, as of its newest note."""
        return [note.pid for note in self.newest() if note]

    def until(self, what: str, condition: Callable[[], object], within_s: float = DEADLINE_S) -> None:
        """Wait for a condition while `holdfast run` is there."""

        def still() -> object:
            value = condition()
            code = self.process.poll()
            assert value or code is None, f"holdfast run ended with {code} while awaiting: {what}\n{self._look()}"
            return value

        until(f"{self.name}: {what}", still, within_s=within_s, look=self._look)

    def until_step(self, step: int, generation: int = 1) -> None:
        """Wait until all ranks are past `step`, in this generation or a later one."""
        self.until(f"step {step} of generation {generation}", lambda: self._is_at(step, generation))

    def _is_at(self, step: int, generation: int) -> bool:
        return all(note and note.generation >= generation and note.step >= step for note in self.newest())

    # --- what is done to it ----------------------------------------------------------------------

    def kill_rank(self, rank: int) -> Trained:
        """`kill -9` of one rank; returns its last note."""
        (note,) = self.kill_ranks(rank)
        return note

    def kill_ranks(self, *ranks: int) -> list[Trained]:
        """`kill -9` of ranks of one generation at one stroke; returns the last note of each."""
        pids = {rank: self.trained(rank)[-1].pid for rank in ranks}
        for pid in pids.values():
            # Who did not die of this has died of the first one's death: its agent stops those that are left.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # A rank makes steps until the very end, and notes them.
        until("the ranks are dead", lambda: not [pid for pid in pids.values() if started_ticks(pid)], look=self._look)
        return [[note for note in self.trained(rank) if note.pid == pid][-1] for rank, pid in pids.items()]

    def finish(self) -> None:
        """Let it end after its present step; wait for that, and check that it is the result of an undisturbed run."""
        self._wish.touch()
        code = self.exit_code()
        assert code == 0, f"{self.name} ended with {code}\n{self._look()}"
        self.check_result()

    def exit_code(self, within_s: float = DEADLINE_S) -> int:
        """Wait for the end of `holdfast run`."""
        until(f"{self.name} ends", lambda: self.process.poll() is not None, within_s=within_s, look=self._look)
        return self.process.returncode

    def check_result(self) -> None:
        """No batch was skipped or trained twice, on any rank; each generation went on from an earlier state."""
        last = self.newest()
        assert last[0] is not None
        steps = last[0].step
        assert all(note and note.step == steps for note in last), f"{self.name}: ranks ended at different steps: {last}"
        ranks = [self.trained(rank) for rank in range(self.world_size)]
        # A generation before the last may have gone further than it.
        furthest = max(note.step for notes in ranks for note in notes)
        expected = [undisturbed(step, self.world_size) for step in range(furthest + 1)]
        for rank, notes in enumerate(ranks):
            for note in notes:
                assert note.folded == expected[note.step], f"{self.name}: rank {rank} went astray: {note}"
            for before, after in itertools.pairwise(notes):
                # One process at a time, ever; within a generation step by step, a new one from no later than the last.
                assert after.generation >= before.generation, f"{self.name}: rank {rank} ran twice: {before}, {after}"
                if after.generation == before.generation:
                    assert (after.step, after.pid) == (before.step + 1, before.pid)
                else:
                    assert after.step <= before.step + 1

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def leave(self) -> None:
        """Have done with `holdfast run`, whatever the job does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    # --- what it said ----------------------------------------------------------------------------

    def output(self) -> str:
        """What `holdfast run` printed on stdout."""
        return self._output.read_text(errors="replace")

    def errors(self) -> str:
        """What `holdfast run` printed on stderr."""
        return self._errors.read_text(errors="replace")

    def printed_steps(self) -> list[int]:
        """The steps that rank 0's lines named."""
        return [int(step) for step in re.findall(r"^step (\d+)$", self.output(), re.MULTILINE)]
