"""Tools of others that read a cluster, with nothing but what `holdfast connect` gives them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster import COMMAND_LIMIT_S, Cluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "tools"


def reader_variables(cluster: Cluster) -> dict[str, str]:
    """Return the environment of a shell that has evaluated `holdfast connect --env`, and of nothing else."""
    exports = cluster.command("connect", "--env").stdout
    shell = ["sh", "-c", f"{exports}\nenv -0"]
    done = subprocess.run(shell, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if line)


@contextlib.contextmanager
def decisions(cluster: Cluster, variables: dict[str, str], job: str, directory: Path) -> Iterator[Callable[[], str]]:
    """Run the example that follows decisions; yields its output so far, once it has subscribed."""
    out, err = directory / "decisions.out", directory / "decisions.err"
    with out.open("wb") as output, err.open("wb") as errors:
        command = [sys.executable, EXAMPLES / "decisions.py", job]
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=errors)
    try:
        cluster.until("the tool has subscribed", lambda: "listening" in err.read_text())
        yield out.read_text
        assert err.read_text() == "listening\n"
    finally:
        process.kill()
        process.wait()


def psql(variables: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run psql as its user would."""
    command = ["psql", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", *map(str, arguments)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S)
