"""Entry point of `holdfast`: Ctrl-C ends it without a traceback, even during imports."""

import sys

from holdfast.exit_codes import INTERRUPTED


def main() -> None:
    try:
        from holdfast.daemon.quick_imports import quick_imports

        with quick_imports():
            from holdfast.cli.main import main as command
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command(prog_name="holdfast")


if __name__ == "__main__":
    main()
