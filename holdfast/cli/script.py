#!/usr/bin/env python
"""The command `holdfast` as it is installed: a copy of this file.

Ctrl-C ends it from its first line on. What installers write for an entry point imports first, for longer than it takes
to get here, and prints a traceback meanwhile.
"""

import _signal  # type: ignore[import-not-found]

if __name__ == "__main__":
    # Not if it was started with Ctrl-C ignored, as in the background.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

    from holdfast.cli.__main__ import main

    main()
