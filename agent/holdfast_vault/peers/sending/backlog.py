"""The order in which copies go to another node when more are waiting than the network carries.

A copy is worth something only together with those of the other ranks of the same step. So the sender stays with a step
until all ranks of this node have sent theirs. The next one is the newest that all of them have; the others are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.node.vault.messages import SealedStep, ShardName

WAITING_MAX = 2
"""Steps of a rank that wait behind the one that is being sent: ranks are one apart, so it may be the older one."""


class WaitingCopy(NamedTuple):
    """A step that waits to be copied to another node."""

    name: ShardName
    sealed: SealedStep


class Backlog:
    """The copies that wait. A rank is known from its first one on."""

    def __init__(self) -> None:
        self._waiting: dict[ShardName, list[SealedStep]] = {}
        self._over: dict[ShardName, SealedStep] = {}
        self._skipped: dict[ShardName, list[SealedStep]] = {}
        self._dropped: list[WaitingCopy] = []
        self._step = _NOTHING

    def add(self, copy: WaitingCopy) -> None:
        steps = self._waiting.setdefault(copy.name, [])
        steps.append(copy.sealed)
        steps.sort()
        behind = [sealed for sealed in steps if sealed != self._step]
        for sealed in behind[:-WAITING_MAX]:
            self.drop(WaitingCopy(copy.name, sealed))

    def next(self) -> WaitingCopy | None:
        """Return the copy to send until it is `done` or dropped; None: no copy, or another rank's is waited for."""
        if self._is_over():
            self._step = self._choose()
            for copy in self.everything():
                if copy.sealed < self._step:
                    self.drop(copy)
        name = next((name for name, steps in self._waiting.items() if self._step in steps), None)
        return WaitingCopy(name, self._step) if name is not None else None

    def done(self, copy: WaitingCopy) -> int:
        """Note that a copy was sent; return the number of earlier steps of this rank that were skipped."""
        self._remove(copy)
        skipped = self._skipped.get(copy.name, [])
        self._skipped[copy.name] = [sealed for sealed in skipped if sealed > copy.sealed]
        return len(skipped) - len(self._skipped[copy.name])

    def drop(self, copy: WaitingCopy) -> None:
        self._remove(copy)
        self._skipped.setdefault(copy.name, []).append(copy.sealed)
        self._dropped.append(copy)

    def take_dropped(self) -> list[WaitingCopy]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def everything(self) -> list[WaitingCopy]:
        return [WaitingCopy(name, sealed) for name, steps in self._waiting.items() for sealed in steps]

    def _is_over(self) -> bool:
        """Return True if no rank sends the present step any more: all have sent it, or the rest is too far behind."""
        if any(self._step in steps for steps in self._waiting.values()):
            return False
        are_all_done = all(self._over.get(name, _NOTHING) >= self._step for name in self._waiting)
        return are_all_done or any(len(steps) >= WAITING_MAX for steps in self._waiting.values())

    def _choose(self) -> SealedStep:
        """Return the newest step that all ranks have waiting, else the newest of any."""
        waiting = [set(steps) for steps in self._waiting.values()]
        if not any(waiting):
            return self._step
        return max(set.intersection(*waiting) or set.union(*waiting))

    def _remove(self, copy: WaitingCopy) -> None:
        self._waiting[copy.name].remove(copy.sealed)
        self._over[copy.name] = max(copy.sealed, self._over.get(copy.name, _NOTHING))


_NOTHING = SealedStep(generation=-1, step=-1)
