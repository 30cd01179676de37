"""Ranks that a line reports as missing: one, several, or a range of them. Pure."""

from __future__ import annotations

import re

_NUMBERS = r"[\[{( ]{0,3}(\d{1,6}(?:(?:, ?|,? and | ?-|\.\.| to )\d{1,6}){0,4096})"
_NAMED = re.compile(
    rf"\b[Rr]anks?{_NUMBERS}[\]}})]? (?:failed to pass|did not|didn't|ha(?:s|ve) not|never|(?:is|are) missing)"
    rf"|\b[Mm]issing ranks?:?(?: are| is)?{_NUMBERS}"
    r"|\btask:(\d{1,6}) (?:heartbeat timeout|has been set to ERROR)"
    r"|^/job:\w+/replica:\d+/task:(\d{1,6})$"
)
_RANGE = re.compile(r"(\d{1,6})(?: ?-|\.\.| to )(\d{1,6})|(\d{1,6})")
_RANKS_MAX = 65536


def missing_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks that did not arrive where others waited for them, by this line."""
    if (found := _NAMED.search(text)) is None:
        return ()
    listed = next(group for group in found.groups() if group is not None)
    ranks: set[int] = set()
    for first, last, single in _RANGE.findall(listed):
        ranks |= {int(single)} if single else set(range(int(first), min(int(last), int(first) + _RANKS_MAX) + 1))
    return tuple(sorted(ranks))
