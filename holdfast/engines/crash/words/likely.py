"""Guesses the symptom of an error that no rule knows, from the words of its message. Pure.

A rule matches one message; a topic matches the words that messages about one subject share. On logs that were new to
it, the guess was wrong in 7 of some 19 cases: so it is a hint to a person, and the verdict stays "unknown".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.engines.crash import traceback
from holdfast.engines.crash.log import QUIET, LogLine
from holdfast.engines.crash.rules import RuleBook
from holdfast.engines.crash.scan import ScannedLog
from holdfast.engines.crash.words.topics import Topic, topics

_RAISED, _MARKED, _PRINTED = range(3)
"""Kinds of lines, the most telling first."""


class Likely(msgspec.Struct, frozen=True, kw_only=True):
    """The topic of the line that the end is probably about."""

    topic: Topic
    line: LogLine
    file: str


def likely(book: RuleBook, scans: Sequence[ScannedLog], exit_codes: Mapping[int, int] | None = None) -> Likely | None:
    """Return what the end is probably about: the last exception of a stream, else its first error that is marked as
    one, else its first line that reports a failure. Of several streams, an exception precedes, then the time."""
    found: list[tuple[int, float, int, Likely]] = []
    for scan in scans:
        for (rank, local), lines in scan.attempts[0].items():
            if rank is not None and not local and (exit_codes or {}).get(rank) == 0:
                continue
            if (one := _of_stream(book, lines)) is not None:
                kind, topic, line = one
                at = line.at if line.at is not None else math.inf
                found.append((kind, at, line.number, Likely(topic=topic, line=line, file=scan.file)))
    return min(found, key=lambda one: one[:3])[3] if found else None


def _of_stream(book: RuleBook, lines: Sequence[LogLine]) -> tuple[int, Topic, LogLine] | None:
    """Return the kind of the line, its topic and the line. Lines that a rule knows have been judged already."""
    raised, rest = traceback.exceptions(lines)
    for one in reversed(raised):
        known = book.of_exception(one.type, one.message, has_traceback=one.has_traceback)
        if known is None and not one.is_aside:
            topic = topics().of(f"{one.type}: {one.message}", is_exception=True)
            if topic is not None:
                return _RAISED, topic, one.line
    printed: tuple[int, Topic, LogLine] | None = None
    for line in rest:
        if line.level in QUIET or book.is_judged(line.text):
            continue
        if (topic := topics().of(line.text)) is not None:
            if line.level == "loud":
                return _MARKED, topic, line
            printed = printed or (_PRINTED, topic, line)
    return printed
