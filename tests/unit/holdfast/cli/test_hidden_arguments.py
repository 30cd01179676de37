"""Values of --env are not shown in the list of processes."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from pathlib import Path
from holdfast.cli.hidden_arguments import hide_values
hide_values(["TOKEN=s3cret", "EMPTY=", "COPIED"])
print(Path("/proc/self/cmdline").read_bytes().split(b"\\0")[3:-1], sys.argv[1:])
"""


def test_values_are_hidden_in_every_spelling_and_stay_with_the_program() -> None:
    arguments = ["--env", "TOKEN=s3cret", "--env=TOKEN=s3cret", "-eTOKEN=s3cret", "EMPTY=", "COPIED", "s3cret"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    shown = ["--env", "TOKEN=******", "--env=TOKEN=******", "-eTOKEN=******", "EMPTY=", "COPIED", "s3cret"]
    assert done.stdout.strip() == f"{[argument.encode() for argument in shown]} {arguments}"
