"""The shelf of one rank: segments that take turns, one filled while those stay that a recovery may need.

ByteRobust (§7) alternates two buffers. Here the last two steps stay while a third is filled, for two buffers can leave
a job without any step that all ranks have: a rank that has sealed step n fills the next one over step n - 1, while
another, slower one dies before it has sealed n. In step with each other by their collectives, ranks are hardly further
apart than that: a rank can have sealed n + 1 while another is still copying n, and then needs n - 1, which is in its
third segment until it begins n + 2. Only a limit to the memory may have taken that one away.

The same holds for what is on other nodes, which have a shelf for each rank whose copies they keep. If a node is lost,
its ranks go on from a step that was sent, and all others must have that step too: their own, for their node is there.
So a shelf also keeps its last two steps that were sent whole, and the one that is being sent. Two are enough while a
step is sent before the next one that is to be sent has been sealed: let k be the newest of these steps that any rank
has sealed; every rank has sent the one before k, and at most k after it, so the one before k is among the last two of
all. Ranks whose nodes send slower skip steps, each its own; the coordinator then has all of them send more rarely.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from holdfast.node.affinity import numa
from holdfast.node.vault.messages import SealedStep
from holdfast.node.vault.seals import Seal
from holdfast_vault.cuts import Cut, is_news, survives
from holdfast_vault.shelf.pins import Pins, certified, floor, in_the_past_of, lacks_floor, named, pinned
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.wanted_steps import KEPT_MIN, REFUSALS_MAX, needed, unwanted


class MakeSegment(Protocol):
    """Function that allocates memory for segments: see `memory_budget`."""

    def __call__(self, name: str, nbytes: int, absent: frozenset[int], *, is_fresh: bool) -> Segment:
        """Return a new one."""
        ...


class ShelfContents(NamedTuple):
    """The contents of a shelf with which another process could go on."""

    held: tuple[tuple[Segment, SealedContents], ...]
    cut: Cut | None
    sent: tuple[SealedStep, ...]


NONE: frozenset[int] = frozenset()


class Shelf:
    """The segments of one rank. Its `turn` belongs to the rank's own save, from its beginning until it is sealed."""

    def __init__(
        self,
        name: str,
        make: MakeSegment = Segment,
        steps_wanted: int = KEPT_MIN,
        on_change: Callable[[ShelfContents], None] = lambda contents: None,
        on_overwrite: Callable[[Segment], None] = lambda segment: None,
    ) -> None:
        """`make` takes memory, as long as there is some; `steps_wanted` steps are kept if there is room for them.
        `on_change` takes each change, but that a sealed segment is about to be overwritten: this `on_overwrite` takes,
        for the rank that saves waits meanwhile.
        """
        self.turn = threading.Lock()
        self.settling = threading.Lock()
        """Held by the thread that moves segments into huge pages."""
        self.newest_made: SealedStep | None = None
        """The newest step that the rank has sealed here since this process began; copies do not count."""
        self.numa_node = numa.UNKNOWN
        """NUMA node from which memory for further segments is taken, as far as it has any."""
        self._name = name
        self._make_segment = make
        self._steps_wanted = max(steps_wanted, KEPT_MIN)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._segments: list[Segment] = []
        # Both are found at each change and not when a segment is claimed, for then a rank waits.
        self._is_empty = True
        self._to_fill: tuple[Segment, ...] = ()
        """Segments that may be filled, in this order, once they are idle."""
        self._sent: deque[SealedStep] = deque(maxlen=KEPT_MIN)
        self._pins: Pins | None = None
        self._cut: Cut | None = None
        self._refusals = 0
        self._is_closed = False
        self._on_change = on_change
        self._on_overwrite = on_overwrite

    def claim(self, nbytes: int, absent: frozenset[int] = NONE, *, by_chunks: bool = False) -> Segment:
        """Return a segment to be filled, but for the `absent` chunks, and then sealed or put back. `by_chunks`: the
        caller fills it by `put` if it `is_fresh`. Raises OSError: no memory (ENOMEM, ENOSPC), or another job has it
        (ESTALE).
        """
        with self._lock:
            self._refuse_if_closed()
            segment = self._spare(nbytes, absent)
            if segment is not None:
                return self._emptied(segment)
        with self._changing():
            # Their memory may be needed for this one.
            useless = self._useless(nbytes, absent)
            self._segments = [each for each in self._segments if each not in useless]
        try:
            made = self._make(nbytes, absent, is_filling=True, is_fresh=by_chunks)
        except OSError:
            with self._lock:
                segment = self._oldest_not_needed(nbytes, absent)
                if segment is None:
                    self._refusals += 1
                    raise
                self._emptied(segment)
                self._order()
                return segment
        self._refusals = 0
        return made

    def seal(self, segment: Segment, contents: SealedContents) -> bool:
        """Put a filled segment on the shelf. Return False if the job has abandoned that step meanwhile."""
        with self._changing():
            segment.is_filling = False
            if self._is_closed or not survives(contents.sealed, self._cut):
                return False
            there = [each for each in self._segments if each.sealed == contents.sealed]
            if any(each.has_more(contents, segment.absent) for each in there):
                return True
            for other in there:
                other.contents = None
            segment.contents = contents
            self._changed.notify_all()
            return True

    def wait_for(self, sealed: SealedStep, timeout_s: float) -> Seal | None:
        """Return the seal of this step if it is here whole, or comes in time; None: it does not, or was passed over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or any(step >= sealed for step in self._steps()), timeout_s)
            whole = [each.contents for each in self._segments if each.contents is not None and not each.absent]
            return next((each.seal for each in whole if each.sealed == sealed), None)

    def put_back(self, segment: Segment) -> None:
        with self._lock:
            segment.is_filling = False
            if segment.is_fresh and segment in self._segments:
                # The next who fills it may not do it by chunks.
                self._segments.remove(segment)
            self._order()

    def discard(self, segment: Segment) -> None:
        """Have no part any more in a segment that is being filled: something may still write to it."""
        with self._changing():
            segment.is_filling = False
            self._segments = [each for each in self._segments if each is not segment]

    def files(self) -> list[int]:
        """Return the inodes of all segments."""
        with self._lock:
            return [each.file for each in self._segments]

    def forget(self, segment: Segment) -> None:
        """Drop the contents of a sealed segment."""
        with self._changing():
            segment.contents = None

    def stock(self, nbytes: int) -> None:
        """Make the segments that are still missing, so that no later save waits for memory."""
        while True:
            with self._lock:
                has_all = len(self._segments) > self._steps_wanted and self._spare(nbytes, NONE) is not None
                if self._is_closed or has_all:
                    return
            try:
                self._make(nbytes, NONE, is_filling=False, is_fresh=False)
            except OSError:
                with self._lock:
                    if self._oldest_not_needed(nbytes, NONE) is None:
                        raise
                    return

    def steps(self) -> list[SealedStep]:
        """Return all that are sealed, newest first."""
        with self._lock:
            return self._steps()

    def answers_when_sealed(self) -> bool:
        """Return True if the rank's save is answered only when it is sealed.

        Until a vault that has lost what it held has one step again, its keeper's older steps are all that its rank has.
        While the rank waits, no other rank gets so far ahead that it gives these up.
        """
        with self._lock:
            return self._is_empty

    def has_common_step(self, recent: Sequence[SealedStep]) -> bool:
        """Return True if one of these steps is a step of all ranks: then a rank that comes back asks no other node.

        All ranks have one of the newest two, if all keep their steps. A vault that has lost what it held since its
        generation began may have a single later step, which others have not come to; or two, which a rank that keeps
        none does not have.
        """
        with self._lock:
            is_old = self._cut is not None and any(each.generation == self._cut.generation for each in recent)
            return (is_old or len(recent) >= KEPT_MIN) and not lacks_floor(self._steps(), self._pins, self._cut)

    def has_whole(self, sealed: SealedStep) -> bool:
        """Return True if all of this step is here: of copies some chunks may have been left out."""
        with self._lock:
            return any(each.sealed == sealed and not each.absent for each in self._segments)

    def whole(self) -> list[Segment]:
        """Return the segments with all of a step, newest first."""
        with self._lock:
            there = {sealed: each for each in self._segments if (sealed := each.sealed) and not each.absent}
            return [there[sealed] for sealed in sorted(there, reverse=True)]

    def hold(self, sealed: SealedStep) -> Segment | None:
        """Return the segment of this step, which stays what it is until it is let go; None if it is not here."""
        with self._lock:
            segment = next((each for each in self._segments if each.sealed == sealed), None)
            if segment is not None:
                segment.holds += 1
            return segment

    def let_go(self, segment: Segment) -> None:
        """Undo one `hold`."""
        with self._lock:
            segment.holds -= 1

    @contextmanager
    def holding(self, sealed: SealedStep) -> Iterator[tuple[Segment, SealedContents] | None]:
        segment = self.hold(sealed)
        if segment is None:
            yield None
            return
        try:
            contents = segment.contents
            yield None if contents is None else (segment, contents)
        finally:
            self.let_go(segment)

    def note_sent(self, sealed: SealedStep) -> None:
        """Note that another node has all of this step."""
        with self._changing():
            if sealed not in self._sent:
                self._sent.append(sealed)

    def sent(self) -> list[SealedStep]:
        """Return the last steps that another node has whole."""
        with self._lock:
            return list(self._sent)

    def pin(self, pins: Pins | None) -> None:
        """Keep these steps, present or yet to arrive, until the next call."""
        with self._lock:
            if pins != self._pins:
                self._pins, self._refusals = pins, 0
                self._order()

    def past_of(self, kept: SealedStep | None, elsewhere: Collection[SealedStep] = ()) -> tuple[SealedStep, ...]:
        """Return the pinned steps that a job which goes on from `kept` has behind it, here or `elsewhere`."""
        with self._lock:
            there = {*self._steps(), *(each for each in elsewhere if survives(each, self._cut))}
            return in_the_past_of(kept, pinned(there, self._pins) | named(self._pins))

    def forget_sent(self) -> None:
        """Note that no other node keeps copies of these steps any more."""
        with self._changing():
            self._sent.clear()

    @property
    def cut(self) -> Cut | None:
        """The newest cut of the job that is known here."""
        return self._cut

    def keep_only(self, cut: Cut) -> None:
        """Forget the steps that a cut abandons. Steps that arrive later belong to the present generation."""
        with self._changing():
            if not is_news(cut, self._cut):
                return
            self._cut = cut
            for segment in self._segments:
                if (sealed := segment.sealed) and sealed not in (cut.kept, *cut.behind):
                    segment.contents = None

    def close(self) -> None:
        """Give all memory back; what is just being read or filled, when that is over."""
        with self._changing():
            self._is_closed = True
            self._segments.clear()
            self._changed.notify_all()

    def spares(self, *, is_left: bool = False) -> list[Segment]:
        """Return the segments that nothing needs or uses; `is_left` (copies are elsewhere): but for a certified one."""
        with self._lock:
            return self._free(self._certified() if is_left else self._needed())

    def is_floor(self, segment: Segment) -> bool:
        """Return True if its step is the one below which the job need not go back."""
        with self._lock:
            return segment.sealed in self._floor()

    def give_back(self, segment: Segment, *, is_left: bool = False) -> bool:
        """Have no part in it any more. False if it is needed now, or in use."""
        with self._changing():
            if segment not in self._free(self._certified() if is_left else self._needed()):
                return False
            self._segments.remove(segment)
            return True

    def adopt(self, segments: Sequence[Segment], cut: Cut | None, sent: Sequence[SealedStep]) -> None:
        """Go on with what another process had."""
        with self._changing():
            self._segments.extend(segments)
            self._cut = cut
            self._sent.extend(sent)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            finally:
                self._order()
                held = tuple((each, each.contents) for each in self._segments if each.contents is not None)
                contents = ShelfContents(held, self._cut, tuple(self._sent))
                self._on_change(contents if not self._is_closed else ShelfContents((), None, ()))

    def _emptied(self, segment: Segment) -> Segment:
        if segment.contents is not None:
            self._on_overwrite(segment)
        segment.contents, segment.is_filling = None, True
        return segment

    def _make(self, nbytes: int, absent: frozenset[int], *, is_filling: bool, is_fresh: bool) -> Segment:
        with numa.memory_on(self.numa_node):
            fresh = self._make_segment(self._name, nbytes, absent, is_fresh=is_fresh)
        fresh.is_filling = is_filling
        with self._lock:
            self._refuse_if_closed()
            self._segments.append(fresh)
            self._order()
        return fresh

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise OSError(errno.ESTALE, "another job has this node's memory now")

    def _spare(self, nbytes: int, absent: frozenset[int]) -> Segment | None:
        return next((each for each in self._to_fill if each.is_idle and each.has_shape(nbytes, absent)), None)

    def _order(self) -> None:
        """Find what is filled next: what has no contents, then the oldest that is not wanted."""
        steps = self._steps()
        stays = needed(steps, self._sent, pinned(steps, self._pins)) | floor(steps, self._pins, self._cut)
        there = {each.sealed: each for each in self._segments}
        old = [there[sealed] for sealed in unwanted(steps, stays, self._steps_wanted)]
        self._is_empty = not steps
        self._to_fill = (*(each for each in self._segments if each.contents is None), *old)

    def _useless(self, nbytes: int, absent: frozenset[int]) -> list[Segment]:
        """Return spare segments of another shape that will not be filled again: what a replica sends may change."""
        stays = self._needed() | self._floor()
        not_wanted = {None, *unwanted(self._steps(), stays, self._steps_wanted)}
        return [
            each
            for each in self._free(stays)
            if each.nbytes != nbytes or (each.absent != absent and each.sealed in not_wanted)
        ]

    def _oldest_not_needed(self, nbytes: int, absent: frozenset[int]) -> Segment | None:
        steps, stays = self._steps(), self._needed()
        if self._refusals >= REFUSALS_MAX:
            # The coordinator replaces a pin when newer steps are made: without memory for them it would never go.
            stays = needed(steps, self._sent, ())
        free = [each for each in self._free(stays) if each.has_shape(nbytes, absent)]
        last = self._floor()
        return min(free, key=lambda each: (each.sealed in last, each.sealed or _NOTHING), default=None)

    def _free(self, needed: frozenset[SealedStep]) -> list[Segment]:
        return [each for each in self._segments if each.is_idle and each.sealed not in needed]

    def _needed(self) -> frozenset[SealedStep]:
        steps = self._steps()
        return needed(steps, self._sent, pinned(steps, self._pins))

    def _floor(self) -> frozenset[SealedStep]:
        return floor(self._steps(), self._pins, self._cut)

    def _certified(self) -> frozenset[SealedStep]:
        return certified(self._steps(), self._pins)

    def _steps(self) -> list[SealedStep]:
        return sorted((sealed for each in self._segments if (sealed := each.sealed)), reverse=True)


_NOTHING = SealedStep(generation=-1, step=-1)
