"""The end of a log, cut to a length. Pure.

A rank that aborts prints first why, and then stacks: Python's `faulthandler` one of each thread, torch and libraries
those of C++ functions. They are longer than the reason and explain no end, so they must not push it out.
"""

from __future__ import annotations

import re

OWN_FRAMES_MAX = 8
"""Innermost Python frames kept of the thread that ended the process."""
FRAME_CHARS_MAX = 2_000
"""Length above which a line is no frame: the search for one in a line of brackets takes the square of its length."""

_HEADER = re.compile(r"(?P<own>Current thread|Stack)?.{0,80}\(most recent call first\):$")
_FRAME = re.compile(
    r'\s{1,8}(?:File "[^"]*", line \d+ in |Binary file "|\.\.\.|<no Python frame>|<.{1,40} frames? truncated)'
    r"|\s*(?:\[[^\]]{1,80}\] ?\[ ?\d+\] )?"  # Open MPI: [host:pid] [ 3]
    r"(?:frame #\d+: |#\d+ +0x[0-9a-f]+ |@ +0x[0-9a-f]+ |\S+\([^)]*\+0x[0-9a-f]+\) ?\[0x[0-9a-f]+\]$)"
    r"|\s+at [\w.$<>/]+\([^)]*\)$|\s*\.\.\. \d+ more$"  # Java
)
_MODULES = "Extension modules: "


def end_of_log(text: str, chars_max: int) -> str:
    """Return the end of a log; if it is longer than `chars_max`, stacks are left out before it is cut."""
    return text if len(text) <= chars_max else without_stacks(text)[-chars_max:]


def without_stacks(text: str) -> str:
    """Return a log without stacks below an error, but for the innermost frames of the thread that ended the process.

    Tracebacks of exceptions are kept: rules read their files and functions.
    """
    kept: list[str] = []
    frames_left = 0
    for line in text.split("\n"):
        if header := _HEADER.match(line):
            frames_left = OWN_FRAMES_MAX if header["own"] else 0
            if not header["own"]:
                continue
        elif line.startswith(_MODULES) or (len(line) <= FRAME_CHARS_MAX and _FRAME.match(line)):
            if not frames_left:
                continue
            frames_left -= 1
        else:
            frames_left = 0
        kept.append(line)
    return "\n".join(kept)
