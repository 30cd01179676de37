"""Ctrl-C while a command is imported: it ends the process there and then.

As an exception it would arrive inside whatever is being imported, which prints a traceback, or swallows it. The module
imports nothing that has to be read first; even `signal` would take longer than Python's way up to here.
"""

import _signal  # type: ignore[import-not-found]
import os

_INTERRUPTED = 130
"""Exit code after Ctrl-C, as in `holdfast.exit_codes`, which is not imported yet."""


def end_at_once() -> None:
    """Have Ctrl-C end this process from now on; not if it was started with Ctrl-C ignored, as in the background."""
    # The latter is what `holdfast.cli.script` has set.
    if _signal.getsignal(_signal.SIGINT) in (_signal.default_int_handler, _signal.SIG_DFL):
        _signal.signal(_signal.SIGINT, _end)


def raise_again() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again, for a command to handle."""
    if _signal.getsignal(_signal.SIGINT) is _end:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def _end(*_: object) -> None:
    os._exit(_INTERRUPTED)
