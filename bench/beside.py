"""Two trees beside each other: a process of each serves what is measured, and they take turns.

A checkout to compare with needs an environment of its own (`make setup` there).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import IO, Any, TypeVar

HERE = Path(__file__).resolve().parents[1]
RESAMPLES = 4000


class Side:
    """A tree, and the process that serves it: `script TREE --serve`, which answers each line with one of JSON."""

    def __init__(self, tree: Path, script: Path, arguments: Sequence[str]) -> None:
        self.commit = _git(tree, "rev-parse", "--short", "HEAD") + ("+" if _git(tree, "status", "--short") else "")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self._process = subprocess.Popen(
            (tree / ".venv/bin/python", script.resolve(), str(tree), "--serve", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            # Python finds its packages there first.
            cwd=tree,
        )

    @property
    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def answer(self) -> Any:
        line = self._pipes[1].readline()
        if not line:
            raise SystemExit(f"what measures {self.commit} ended; its messages are above")
        return json.loads(line) if line.strip() else None

    def ask(self, line: str) -> Any:
        self._pipes[0].write(f"{line}\n")
        self._pipes[0].flush()
        return self.answer()

    def end(self) -> None:
        self._pipes[0].close()
        self._process.wait()


S = TypeVar("S", bound=Side)


def _git(tree: Path, *arguments: str) -> str:
    return subprocess.run(
        ("git", "-C", str(tree), *arguments), capture_output=True, text=True, check=True
    ).stdout.strip()


@contextlib.contextmanager
def sides(
    kind: Callable[[Path, Path, Sequence[str]], S], trees: Sequence[Path], script: Path, arguments: Sequence[str]
) -> Iterator[list[S]]:
    """Start a side of each tree, and wait until all are ready."""
    started: list[S] = []
    try:
        for tree in trees:
            started.append(kind(tree, script, arguments))
            started[-1].answer()
        yield started
    finally:
        for side in started:
            side.end()


Turns = Sequence[Sequence[float]]
"""Values by turn: those of one turn are alike."""


def ratio(turns: Turns, base: Turns) -> tuple[float, float, float]:
    """Return the ratio of the medians, and its 95 % interval by drawing pairs of turns."""
    return ratio_of_processes([turns], [base])


def ratio_of_processes(turns: Sequence[Turns], base: Sequence[Turns]) -> tuple[float, float, float]:
    """Return the same for several pairs of processes: pairs of processes are drawn, then pairs of their turns."""
    draw = random.Random(1)
    pairs = [list(zip(these, those, strict=True)) for these, those in zip(turns, base, strict=True)]

    def drawn() -> list[tuple[Sequence[float], Sequence[float]]]:
        some = draw.choices(pairs, k=len(pairs)) if len(pairs) > 1 else pairs
        return [pair for each in some for pair in draw.choices(each, k=len(each))]

    quotients = sorted(_quotient(drawn()) for _ in range(RESAMPLES))
    return _quotient([pair for each in pairs for pair in each]), quotients[RESAMPLES // 40], quotients[-RESAMPLES // 40]


def _quotient(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    these, those = ([value for pair in pairs for value in pair[side]] for side in (0, 1))
    return median(these) / median(those)
