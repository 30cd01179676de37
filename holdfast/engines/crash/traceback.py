"""Python exceptions in a log: their traceback blocks, and whether a block ended the process. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from holdfast.engines.crash.log import QUIET, LogLine

_EXCEPTION = re.compile(
    r"^[\s|+]{0,16}(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*(?:Error|Exception|Exit|Timeout|Failure|Fault|Failed|NotFound|OutOfResources|BadZipFile|Unavailable|"
    r"Closed|Refused|Denied|Exceeded|Mismatch|Missing|Disconnected|Available)|"
    r"(?<=[.])(?:Error|Exception|Timeout)|(?<=[.](?:exc|err)[.])[A-Z]\w*[a-z]\w*|(?<=[.]errors[.])[A-Z]\w*[a-z]\w*|(?<=[.]exceptions[.])[A-Z]\w*[a-z]\w*|"
    r"KeyboardInterrupt|StopIteration|StopAsyncIteration|MemoryError|Empty|timeout|error|gaierror|GeneratorExit|CancelledError|"
    r"UnrecoverableError|ExceptionGroup|BaseExceptionGroup|MissingMandatoryValue|OutOfResources|HTTPException|"
    r"ArrowInvalid|VersionConflict|ContextualVersionConflict))"
    r"(?:: ?(?P<message>.*))?$"
)
_EMPHASIS = re.compile(r"^[ _]{0,4}[*#`][*#`_ ]{0,8}(?=(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b)")
"""Marks of a text processor before an exception: people print it bold."""
_TASK = re.compile(
    r"^[\s|+]{0,16}(?:ray\.)?(?:exceptions\.)?RayTaskError\("
    r"(?!RuntimeError|OSError|IOError|Exception|\w*(?:Actor|Worker|Node|Raylet|Object|Timeout|Connection))(\w{1,80})\)(?=:|$)"
)
"""An exception of a task, as Ray raises it where the result is asked for; of those that say nothing without their
message, which is not repeated, only the original counts."""
_CUSTOM = re.compile(
    r"^(?!File$)"
    r"(?P<type>(?:(?:[A-Za-z_]\w*\.)+(?=\w*[A-Z])(?=[A-Z_]?\w*[a-z])|(?=\w*[a-z]\w*[A-Z])|(?=[A-Z]+[a-z]+:? ?$))"
    r"[A-Za-z_]\w*)(?:: (?P<message>.*))?$"
)
"""Any class below a frame. Names in capitals are levels of loggers, those without any are programs, and a single word
before a text is a label (`Node: `)."""
_TWICE = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))\1: : (.{1,1000})\2$")
"""The last line of two processes' traceback, each written in pieces: type, colon, message."""
_QUOTED = re.compile(r"^\s*(?:raise\b|return\b|assert\b|self\.|if\b|for\b|with\b|except\b|def\b|print\(|\w+ = )")
_HEADER = "Traceback (most recent call last)"
_CHAIN = re.compile(
    r"During handling of the above exception|was the direct cause of the following|^\W*Original Traceback"
)
_ASIDE = re.compile(
    r"Exception ignored (?:in|on)|Error in atexit|Error in sys\.excepthook|Exception in thread|Exception in callback"
)
_FRAME = re.compile(r'File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|\\lib\\|<frozen |/torch/|importlib")
_PACKAGE = re.compile(r"(?:site|dist)-packages[/\\](\w+)")
_FRAMES = 40
_BELOW_FRAME = 4
"""Lines within which a traceback's last frame is followed by its exception: the source line, and its marks."""
_GROUP = re.compile(r"^\s*[|+][-+ |]*(?:\d+ -+)?")
_INDENTED = re.compile(r"^\s{2,}\S")


class LoggedException(msgspec.Struct, frozen=True, kw_only=True):
    """An exception in a log."""

    type: str
    """With the module if the log has it."""
    message: str
    line: LogLine
    block: int
    """Number of the traceback; those of one chain share it."""
    is_aside: bool
    """True if it ended only a thread, or nothing."""
    has_traceback: bool
    """False if only its last line is there; excerpts begin in the middle."""
    frame: LogLine | None
    """Innermost frame outside libraries."""
    functions: tuple[str, ...] = ()
    """Functions of its stack."""
    files: tuple[str, ...] = ()
    """Files of its stack."""
    packages: tuple[str, ...] = ()
    """Installed packages of its stack."""


def exceptions(lines: Iterable[LogLine]) -> tuple[list[LoggedException], list[LogLine]]:
    """Return the exceptions among a rank's lines, and the lines that belong to none."""
    raised: list[LoggedException] = []
    rest: list[LogLine] = []
    block, chained, aside, open_ = 0, False, False, False
    frame: LogLine | None = None
    functions: list[str] = []
    files: list[str] = []
    packages: list[str] = []
    last_frame = -_BELOW_FRAME
    in_group = False
    for line in lines:
        text = line.text
        decorated = _GROUP.match(text)
        in_group = "Exception Group Traceback" in text or (in_group and decorated is not None)
        if in_group and decorated:
            text = text[decorated.end() :]
        if _CHAIN.search(text):
            chained = True
            if _HEADER not in text:
                continue
        if _ASIDE.search(text):
            aside = True
            continue
        if _HEADER in text:
            if not chained:
                block += 1
                frame = None
            functions, files, packages = [], [], []
            open_ = True
            continue
        if found := _FRAME.search(text):
            if "torch/distributed/elastic" not in found["file"] and not _LIBRARY.search(found["file"]):
                frame = line
            functions.append(found["function"] or "")
            files.append(re.split(r"[/\\]", found["file"])[-1])
            packages += _PACKAGE.findall(found["file"])
            last_frame = line.number
            continue
        if line.number == last_frame + 1 and _INDENTED.match(text):
            # The source line of the frame above.
            continue
        text = _TASK.sub(r"\1", _EMPHASIS.sub("", text))
        if ": : " in text and (twice := _TWICE.match(text)):
            text = f"{twice[1]}: {twice[2]}"
        match = _EXCEPTION.match(text)
        is_below = line.number <= last_frame + _BELOW_FRAME
        if match is None and is_below and not text[:1].isspace():
            match = _CUSTOM.match(text)
        if match is None or (match["message"] is None and not open_ and match["type"] in ("error", "timeout", "Empty")):
            if not (_QUOTED.match(text) and text[:2] == "  "):
                rest.append(line)
            continue
        if line.level in QUIET:
            if not open_:
                rest.append(line)
            continue
        if not open_ and not chained and not in_group:
            block += 1
        raised.append(
            LoggedException(
                type=match["type"],
                message=match["message"] or "",
                line=line,
                block=block,
                is_aside=aside,
                has_traceback=open_ or chained or in_group or is_below,
                frame=frame,
                functions=tuple(functions[-_FRAMES:]),
                files=tuple(files[-_FRAMES:]),
                packages=tuple(packages[-_FRAMES:]),
            )
        )
        open_, chained, aside = False, False, False
        functions, files, packages = [], [], []
        last_frame = -_BELOW_FRAME
    return raised, rest
