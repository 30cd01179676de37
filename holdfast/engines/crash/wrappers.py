"""Undoes what programs that repeat another one's output add to it: JSON records, escaped line ends, a prefix. Pure."""

from __future__ import annotations

import re

_HEADER = "Traceback (most recent call last)"
_ESCAPED = _HEADER + ":\\n"
_JOINED = re.compile(r'Traceback \(most recent call last\):? {1,4}(?=File ")')
_JOINT = re.compile(r' {1,4}(?=File "[^"]{1,300}", line \d)| (?=(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): )')
"""Places at which lines of a traceback began, before a program joined them by blanks."""
_FLUENTD = r"(?:\d{4}-\d\d-\d\d [\d:.]{8,18} [+-]\d{4} [\w.-]{1,80}: )?"
_RECORD = re.compile(
    rf'^\s*{_FLUENTD}\{{.{{0,400}}?"(?:log|message|msg|textPayload)" ?: ?"((?:[^"\\]|\\.)*)', re.DOTALL
)
_PIPED = re.compile(r'^\s*\{.{0,400}?"(?:data|line|text|output)" ?: ?"((?:[^"\\]|\\.)*)"', re.DOTALL)
_OF_A_PIPE = re.compile(r'"(?:pipe|stream|source|fd)" ?: ?"std(?:out|err)"')
"""A record of what a program wrote: its key may be that of a sample as well, but no sample names the pipe."""
_OF_A_LOG = re.compile(r'"(?:time|timestamp|@timestamp|ts|stream|level|severity|levelname)" ?: ?["\d]')
"""Keys that log records have; samples of a data set have others."""
_ESCAPES = {"\\n": "\n", "\\r": "\n", "\\t": "\t", '\\"': '"', "\\\\": "\\", "\\/": "/"}
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")
_PARTS_MAX = 100
_PREFIX_CHARS_MAX = 200
_DIGITS = re.compile(r"\d+")
_TEXT = re.compile(r"[^\s|+]")
_TYPE = re.compile(r"(?:Error|Exception): $")
"""An exception whose message is another process's traceback: its type stands before that one's last line as well."""


def unwrapped(text: str) -> list[str]:
    """Return the lines that a line contains: those of a record in JSON, or of a traceback whose line ends
    are escaped or lost."""
    is_record = text.lstrip()[:1] == "{" or ": {" in text[36:120]
    if is_record and _OF_A_LOG.search(text) and (record := _RECORD.match(text)):
        return _lines(record[1])
    if is_record and _OF_A_PIPE.search(text) and (record := _PIPED.match(text)):
        return _lines(record[1])
    if _ESCAPED in text:
        return _lines(text)
    if _HEADER in text and (joined := _JOINED.search(text)):
        head = text[: joined.start()] + _HEADER + ":"
        return [head, *_JOINT.split(text[joined.end() :])][:_PARTS_MAX]
    return [text]


def _lines(escaped: str) -> list[str]:
    plain = _ESCAPE.sub(_character, escaped)
    return [line for line in plain.split("\n") if line.strip()][:_PARTS_MAX]


def _character(found: re.Match[str]) -> str:
    escape = found[0]
    return chr(int(escape[2:], 16)) if len(escape) == 6 else _ESCAPES.get(escape, escape)


def prefix_before_traceback(text: str) -> re.Pattern[str] | None:
    """Return the prefix that a collector of any kind wrote before a traceback's first line, as a pattern for the lines
    below: numbers in it may differ. None if there is none."""
    prefix = text[: max(text.find(_HEADER, 0, _PREFIX_CHARS_MAX + len(_HEADER)), 0)].removesuffix("Original ")
    if _TYPE.search(prefix) or not _TEXT.search(prefix):
        return None
    return re.compile(r"\d+".join(map(re.escape, _DIGITS.split(prefix))))
