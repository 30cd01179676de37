"""Entry point of `holdfast`: Ctrl-C ends it without a traceback, even during imports."""

from holdfast.cli.interrupts import end_at_once

# Before anything else is imported.
end_at_once()


def main() -> None:
    from holdfast.daemon.quick_imports import quick_imports

    with quick_imports():
        from holdfast.cli.main import main as command
    command(prog_name="holdfast")


if __name__ == "__main__":
    main()
