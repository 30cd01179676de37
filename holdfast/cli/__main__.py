"""`holdfast` from its first line on: Ctrl-C ends it without a traceback, also while most of it is still imported."""

import sys

from holdfast.exit_codes import INTERRUPTED


def main() -> None:
    try:
        from holdfast.cli.main import main as command
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command(prog_name="holdfast")


if __name__ == "__main__":
    main()
