"""`python -m holdfast_agent.inspections`: every check once, as JSON; `holdfast inspect` shows it."""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from holdfast.daemon.logs import log_to_stderr
from holdfast.settings import load
from holdfast_agent.inspections.once import NoSuchCheck, inspect


def main() -> None:
    """Run the checks; print a list of `holdfast.node.inspection_report.InspectedDevice`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this check; repeatable")
    parser.add_argument("--config", help="TOML file with settings, as for every process")
    arguments = parser.parse_args()
    log_to_stderr("holdfast_agent.inspections")
    try:
        settings, _ = load.load(os.environ, file=arguments.config)
        found = inspect(settings.inspections, arguments.only)
    except (load.ConfigRefused, NoSuchCheck) as error:
        parser.exit(2, f"{error}\n")
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    sys.stdout.buffer.flush()
    # A hanging reading must not keep this process alive.
    os._exit(0)


if __name__ == "__main__":
    main()
