"""What only some commands need is imported by those alone: the others answer in half of the time."""

import subprocess
import sys

PROGRAM = """
import sys
from holdfast.cli.commands.cluster import down, logs, up
sys.exit(", ".join({"nats", "asyncpg", "structlog", "rich"} & sys.modules.keys()))
"""


def test_commands_that_ask_the_supervisor_import_no_client_of_the_bus() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
