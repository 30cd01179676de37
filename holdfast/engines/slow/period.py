"""Iteration times of one rank from the collectives that it calls, without help of its script (GREYHOUND §4.2). Pure.

`autocorrelation` finds the period; from then on each call is only compared with the one expected at its place. The time
of an iteration is that between a call and the same call one period earlier.

    searching  no pattern is known: calls are collected until they repeat
    following  each call is the expected one; after lost records their numbers give the place
    lost       something else was called (evaluation, a checkpoint): every place of every known pattern that fits the
               calls since then is kept until one is left; meanwhile the calls are searched for a new pattern

No time is reported for an interrupted iteration. A pattern is only a part of an iteration, such as a layer or a
micro-batch, if interruptions synchronise a group that the pattern does not, with as much data; or if no pattern covers
most calls. Then a longer one is sought while this one is still followed.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from holdfast.engines.slow.autocorrelation import LOST, THRESHOLD, find_period, pattern_of
from holdfast.engines.slow.calls import CollectiveCall, IterationTime

CALLS_MAX = 65_536
"""Maximum calls collected while searching; a third of it is the longest iteration that can be found."""
KINDS_MAX = 4_096
PATTERNS_MAX = 8
SEARCH_FROM = 6
SEARCH_GROWTH = 1.25
"""Growth of the collected calls between searches: a search reads them all, so this keeps the total linear."""
NESTED_AFTER = 2
"""Interruptions by a synchronisation from which a pattern is a micro-batch: a single one can be anything."""
TRIAL_CALLS = 1_024
TRIAL_PERIODS = 20
"""Length of a new pattern's trial: the longer of these two."""
SHARE_MIN = 0.7
LOSSES_MIN = 3
"""After this many losses, patterns that each cover less than this share of the calls are parts of a longer one."""
SIZES_CALLS = 96
"""Calls before changing sizes can be recognised: the buckets of one gradient differ in size."""
HOLE_MAX = 1_024
"""Maximum lost records in a row that are tolerated while searching."""

Kind = tuple[str, str, int]


class _Pattern:
    """One period. `fine`: calls of different sizes are different calls."""

    def __init__(self, number: int, fine: bool, calls: list[int], kinds: list[Kind]) -> None:
        self.number = number
        self.fine = fine
        self.calls = calls
        self.called = Counter(kinds[call][:2] for call in calls if call != LOST)
        self.groups = {group for _, group in self.called}
        self.bytes_max = max((kinds[call][2] for call in calls if call != LOST), default=0)
        self.places: dict[int, list[int]] = {}
        for place, call in enumerate(calls):
            self.places.setdefault(call, []).append(place)
        self.misses_max = int(len(calls) * (1.0 - THRESHOLD))
        self.interrupted: dict[tuple[str, str], int] = {}
        self.since = 0
        self.followed = 0
        self.is_settled = False


def _is_several_times(called: Counter[tuple[str, str]], part: Counter[tuple[str, str]]) -> bool:
    return all(called[kind] >= 2 * count for kind, count in part.items())


class _Following:
    """A position in a pattern: whole periods followed, the last one reported, and each call's last occurrence. An
    occurrence is (call number, time, time in calls), times in ns."""

    def __init__(self, pattern: _Pattern, place: int) -> None:
        self.pattern = pattern
        self.origin = place
        self.index = 0
        self.whole = 0
        self.period = 0
        self.misses = 0
        self.last: list[tuple[int, int, int] | None] = [None] * len(pattern.calls)


class IterationClock:
    """Iterations of one rank. O(1) per call, bounded memory."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._next = -1
        self._ids: dict[Kind, tuple[int, int]] = {}
        self._kinds: list[Kind] = []
        self._patterns: list[_Pattern] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._following: _Following | None = None
        self._lost: _Pattern | None = None
        self._candidates: list[tuple[_Pattern, int]] = []
        self._fitted = 0
        self._lost_for = 0
        self._collected: list[tuple[int, int]] = []
        self._search_at = SEARCH_FROM
        self._losses = 0
        self._is_doubted = False
        self._required: Kind | None = None
        self._ignored: set[tuple[str, str]] = set()
        self._foreign: dict[tuple[str, str], int] = {}
        self._is_counted = False
        self._in_calls_ns = 0
        self._iteration = 0

    @property
    def period(self) -> int | None:
        """Calls per iteration; None: unknown now."""
        return len(self._following.pattern.calls) if self._following else None

    def observe(self, call: CollectiveCall) -> IterationTime | None:
        """Add a call, in the order of the calls' numbers. Return the iteration that it completes, if any."""
        hole = call.sequence - self._next if self._next >= 0 else 0
        if hole < 0:
            return None
        self._next = call.sequence + 1
        ids = self._identify(call)
        found = self._follow(call, ids, hole) if self._following else None
        if self._following is None:
            self._hunt(call, ids, hole)
        here = self._following
        if here is None or self._is_doubted or not here.pattern.is_settled:
            self._collect(ids, hole)
        if call.exited_ns > call.entered_ns:
            self._in_calls_ns += call.exited_ns - call.entered_ns
        return found

    def _identify(self, call: CollectiveCall) -> tuple[int, int]:
        """Return the numbers of the call's kind, with and without its size, which may change with every batch."""
        kind = (call.operation, call.group, call.bytes)
        ids = self._ids.get(kind)
        if ids is None:
            coarse = self._number((call.operation, call.group, -1))
            ids = (self._number(kind) if len(self._kinds) < KINDS_MAX else coarse, coarse)
            if len(self._ids) < 2 * KINDS_MAX:
                self._ids[kind] = ids
        return ids

    def _number(self, kind: Kind) -> int:
        known = self._ids.get(kind)
        if known is None:
            self._kinds.append(kind)
            known = (len(self._kinds) - 1, len(self._kinds) - 1)
            if kind[2] < 0:
                self._ids[kind] = known
        return known[0]

    # --- following --------------------------------------------------------------------------------

    def _follow(self, call: CollectiveCall, ids: tuple[int, int], hole: int) -> IterationTime | None:
        here = self._following
        assert here is not None
        here.index += hole
        pattern, length = here.pattern, len(here.pattern.calls)
        place = (here.origin + here.index) % length
        if pattern.calls[place] != (ids[0] if pattern.fine else ids[1]):
            here.last[place] = None
            here.misses += 1
            here.index += 1
            self._interrupted(pattern, call)
            if here.misses > pattern.misses_max:
                self._lose()
            return None
        if call.bytes > pattern.bytes_max:
            pattern.bytes_max = call.bytes
        before, here.last[place] = here.last[place], (here.index, call.entered_ns, self._in_calls_ns)
        period = here.index // length
        if period > here.whole:
            pattern.followed += (period - here.whole) * length
            here.whole = period
            self._is_counted = False
        found = None
        # The first call of a period that the previous one has as well: the period's own first may be lost.
        if period > here.period and before is not None and before[0] == here.index - length:
            self._iteration += period - here.period
            here.period, here.misses = period, 0
            found = self._completed(pattern, call, before)
        here.index += 1
        return found

    def _completed(self, pattern: _Pattern, call: CollectiveCall, before: tuple[int, int, int]) -> IterationTime | None:
        took_ns = call.entered_ns - before[1]
        if took_ns <= 0:
            return None  # The clock was set back.
        in_calls_ns = self._in_calls_ns - before[2]
        return IterationTime(
            rank=self.rank,
            iteration=self._iteration,
            duration_s=took_ns / 1e9,
            pattern=pattern.number,
            ended_ns=call.entered_ns,
            in_calls_s=in_calls_ns / 1e9 if in_calls_ns else None,
        )

    def _interrupted(self, pattern: _Pattern, call: CollectiveCall) -> None:
        """Count an interruption that may belong to a longer pattern."""
        if self._is_counted:
            return
        kind = (call.operation, call.group)
        if "reduce" not in call.operation or call.group in pattern.groups or kind in self._ignored or self._required:
            return
        if any(kind in known.called for known in self._patterns):
            return
        self._foreign[kind] = self._foreign.get(kind, 0) + call.bytes
        if self._foreign[kind] >= max(1, pattern.bytes_max):
            self._foreign.clear()
            self._is_counted = True
            pattern.interrupted[kind] = pattern.interrupted.get(kind, 0) + 1
            if pattern.interrupted[kind] >= NESTED_AFTER:
                self._required, self._is_doubted = (*kind, call.bytes), True

    def _lose(self) -> None:
        assert self._following is not None
        self._lost = pattern = self._following.pattern
        self._following, self._candidates = None, []
        self._losses += 1
        self._lost_for = self._fitted = 0
        if pattern.is_settled and not self._is_doubted:
            self._forget_collected()
        elif self._has_its_share(pattern):
            # Only later calls are searched, so the search may be soon.
            self._search_at = min(self._search_at, len(self._collected) + SEARCH_FROM)
        if self._losses >= LOSSES_MIN:
            self._is_doubted |= not any(map(self._has_its_share, self._patterns))

    # --- lost -------------------------------------------------------------------------------------

    def _hunt(self, call: CollectiveCall, ids: tuple[int, int], hole: int) -> None:
        fits = [
            (pattern, place)
            for pattern, before in self._candidates
            if pattern.calls[place := (before + 1 + hole) % len(pattern.calls)] == (ids[0] if pattern.fine else ids[1])
        ]
        if not fits:
            fits = [
                (pattern, place)
                for pattern in self._patterns
                for place in pattern.places.get(ids[0] if pattern.fine else ids[1], ())
            ]
            self._fitted = 0
            if self._lost:
                self._interrupted(self._lost, call)
        self._fitted += 1
        self._lost_for += 1 + hole
        self._candidates = fits
        if len(fits) == 1:
            self._settle(*fits[0], call)

    def _settle(self, pattern: _Pattern, place: int, call: CollectiveCall) -> None:
        self._following = here = _Following(pattern, place)
        here.last[place] = (0, call.entered_ns, self._in_calls_ns)
        here.index = 1
        self._candidates = []
        self._foreign.clear()
        self._patterns.remove(pattern)
        self._patterns.append(pattern)

    # --- searching --------------------------------------------------------------------------------

    def _forget_collected(self) -> None:
        self._collected = []
        self._search_at = SEARCH_FROM
        self._losses = 0
        self._is_doubted, self._required = False, None
        for pattern in self._patterns:
            pattern.followed = pattern.since = 0

    def _collect(self, ids: tuple[int, int], hole: int) -> None:
        if hole > HOLE_MAX:
            self._forget_collected()
            hole = 0
        self._collected += [(LOST, LOST)] * hole
        self._collected.append(ids)
        if self._following:
            self._try_on(self._following.pattern)
        if len(self._collected) >= self._search_at and (self._is_doubted or self._may_be_new()):
            self._search_at = max(self._search_at + 2, int(len(self._collected) * SEARCH_GROWTH))
            self._search()
        if len(self._collected) > CALLS_MAX:
            if self._required:
                self._ignored.add(self._required[:2])
            self._forget_collected()

    def _may_be_new(self) -> bool:
        """True if no good pattern has the present calls; one without sizes may gain them once they repeat."""
        if self._following:
            return not self._following.pattern.fine
        if self._lost and self._is_good(self._lost) and self._lost_for <= len(self._lost.calls):
            return False
        return self._fitted < SEARCH_FROM or not any(self._is_good(pattern) for pattern, _ in self._candidates)

    def _is_good(self, pattern: _Pattern) -> bool:
        return pattern.is_settled or self._has_its_share(pattern)

    def _has_its_share(self, pattern: _Pattern) -> bool:
        return pattern.followed >= SHARE_MIN * (len(self._collected) - pattern.since)

    def _try_on(self, pattern: _Pattern) -> None:
        if self._required or pattern.followed < max(TRIAL_CALLS, TRIAL_PERIODS * len(pattern.calls)):
            return
        if self._has_its_share(pattern):
            pattern.is_settled = True
            self._forget_collected()

    def _search(self) -> None:
        for fine in (True,) if self._following and not self._is_doubted else (True, False):
            calls = [ids[0] if fine else ids[1] for ids in self._collected[self._unexplained_from() :]]
            required = frozenset({self._required_number(fine)}) if self._required else frozenset()
            # Calls before training repeat nothing: if the whole does not repeat, its last half may, or half of that.
            window = calls
            while len(window) >= SEARCH_FROM:
                period = find_period(window, required)
                if period and (fine or self._changes_in_size(period)) and self._learn(fine, pattern_of(window, period)):
                    return
                window = window[(len(window) + 1) // 2 :]

    def _unexplained_from(self) -> int:
        """Return the first collected call after the last loss; earlier ones have a pattern, unless doubted."""
        if self._is_doubted or self._following or not (self._lost and self._is_good(self._lost)):
            return 0
        return max(0, len(self._collected) - self._lost_for)

    def _changes_in_size(self, period: int) -> bool:
        """True if each of the last periods differs in sizes from the one before; if only one does, sizes repeat from
        now on."""
        periods = [self._collected[len(self._collected) - (back + 1) * period :][:period] for back in range(4)]
        if len(self._collected) < max(SIZES_CALLS, 4 * period):
            return False
        return all(
            sum(now[0] == then[0] for now, then in zip(last, before, strict=True)) < THRESHOLD * period
            for last, before in pairwise(periods)
        )

    def _required_number(self, fine: bool) -> int:
        assert self._required is not None
        return self._number(self._required if fine else (*self._required[:2], -1))

    def _learn(self, fine: bool, calls: list[int]) -> bool:
        # A pattern can begin anywhere, so its calls identify it.
        name = (fine, *sorted(calls))
        number = self._numbers.setdefault(name, len(self._numbers))
        if not self._is_doubted:
            # Training and evaluation in turns repeat as well, but are not a longer iteration.
            called = Counter(self._kinds[call][:2] for call in calls if call != LOST)
            parts = (known for known in self._patterns if known.fine >= fine and self._is_good(known))
            if any(_is_several_times(called, known.called) for known in parts):
                return False
            if self._following:
                self._patterns.remove(self._following.pattern)
        else:
            if any(known.number == number for known in self._patterns):
                return False
            # Parts of the longer pattern that were taken for patterns themselves.
            self._patterns = [known for known in self._patterns if not set(known.calls) <= set(calls)]
            self._forget_collected()
        self._patterns = [known for known in self._patterns if known.number != number][-PATTERNS_MAX + 1 :]
        pattern = _Pattern(number, fine, calls, self._kinds)
        pattern.since = len(self._collected)
        self._patterns.append(pattern)
        # The next call is the pattern's first.
        self._following, self._candidates = _Following(pattern, 0), []
        return True
