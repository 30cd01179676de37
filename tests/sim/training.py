"""The simulated progress of one job: who runs which rank, what has been saved, and what is spoiled of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from holdfast.events import BadNumber, Event, FailSlowLocated, HangFound, StepsCertified
from holdfast.ids import named_id

CERTIFIED_AFTER = 10


def _nobody_hears(kind: type[Event], fields: dict[str, Any]) -> None:
    """A training that no analyzer looks at."""


class Training:
    """The progress of one job: a step is made when all ranks of one generation are alive together.

    Keeps who ran what, so that a rank that runs twice is seen at once.
    """

    def __init__(self, world_size: int, say: Callable[[type[Event], dict[str, Any]], None] = _nobody_hears) -> None:
        """`say` is how its analyzer speaks."""
        self.world_size = world_size
        self.world_sizes: dict[int, int] = {}
        """By generation: an elastic job's changes."""
        self.saved_step = -1
        self.certified = 0
        self.poisoned_from: int | None = None
        self.was_poisoned = False
        self.began_with: dict[int, int] = {}
        self.reached: dict[int, int] = {}
        self._say = say
        self._accused: set[int] = set()
        self.ran: dict[tuple[int, int], str] = {}
        self.alive: dict[int, set[int]] = {}
        self.stepped: set[int] = set()
        self.standing_still: set[int] = set()
        self.slow: set[int] = set()

    def start(self, generation: int, rank: int, node: str, world_size: int) -> None:
        known = self.world_sizes.setdefault(generation, world_size)
        assert known == world_size, f"generation {generation} has {known} ranks and {world_size}"
        before = self.ran.get((generation, rank))
        assert before is None, f"rank {rank} of generation {generation} ran on {before} and was started on {node}"
        self.ran[generation, rank] = node
        self.alive.setdefault(generation, set()).add(rank)

    def forget(self, node: str, generations: set[int]) -> None:
        """A node that lost power does not know of these generations."""
        for generation, rank in [it for it, where in self.ran.items() if where == node and it[0] in generations]:
            del self.ran[generation, rank]

    def restored(self, generation: int, at_most: int | None) -> int:
        """The step from which all ranks of a generation go on."""
        if generation not in self.began_with:
            newest = self.saved_step
            self.began_with[generation] = newest if at_most is None else min(newest, at_most)
        return self.began_with[generation]

    def _cut(self, generation: int) -> None:
        """All ranks have restored: what is newer is given up. Before that, some have and others have not."""
        self.saved_step = min(self.saved_step, self.began_with[generation])
        if self.poisoned_from is not None and self.saved_step < self.poisoned_from:
            self.poisoned_from = None
        self.certified = min(self.certified, max(0, self.saved_step))

    def poison(self) -> None:
        """From the next step on a weight is no number."""
        if self.poisoned_from is None and self.reached:
            self.poisoned_from = self.reached[max(self.reached)] + 1
            self.was_poisoned = True

    def stand_still(self, at: datetime, chance: float) -> None:
        """The newest generation makes no more steps; what its analyzer says of it may be wrong."""
        generation = max(self.reached, default=0)
        if not generation or generation in self.standing_still:
            return
        self.standing_still.add(generation)
        nodes = sorted({node for (of, _), node in self.ran.items() if of == generation})
        named = [] if chance < 0.3 else nodes[:1] if chance < 0.8 else nodes[:2]
        fields = {
            "trace": named_id(at, "hang", generation),
            "sign": "waiting",
            "since": at,
            "still_s": 5.0,
            "limit_s": 3.0,
            "phase": "train",
            "step": self.reached[generation],
            "nodes": tuple(named),
            "scope": "nobody" if not named else "machine" if len(named) == 1 else "group",
            "confidence": 0.9 if named else 0.0,
            "is_machine": bool(named) and chance > 0.6,
        }
        self._say(HangFound, {"generation": generation, **fields})

    def get_slow(self, at: datetime, chance: float) -> None:
        """The newest generation is found to be slow: by one machine, by a link, or by a few of which one is."""
        generation = max(self.reached, default=0)
        nodes = sorted({node for (of, _), node in self.ran.items() if of == generation})
        if len(nodes) < 2 or generation in self.slow:
            return
        self.slow.add(generation)
        named: dict[str, Any] = {"nodes": (nodes[0],), "is_validated": True}
        if chance > 0.7:
            named = {"links": (tuple(nodes[:2]),), "is_validated": True}
        elif chance > 0.4:
            named = {"one_of": tuple(nodes[:2]), "confidence": 0.9}
        fields = {"asked": named_id(at, "slow", generation), "slowdown": 4.0, "pace_s": 4.0, "healthy_s": 1.0, **named}
        self._say(FailSlowLocated, {"generation": generation, **fields})

    def stepped_to(self, generation: int, step: int) -> None:
        """All ranks of a generation have made this step; the analyzer sees their samples."""
        if generation not in self.reached:
            self._cut(generation)
        elif step <= self.reached[generation]:
            return
        self.reached[generation] = step
        is_poisoned = self.poisoned_from is not None and step >= self.poisoned_from
        if is_poisoned and generation not in self._accused:
            self._accused.add(generation)
            fields = {"quantity": "loss", "kind": "nan", "step": step, "certified": self.certified}
            self._say(BadNumber, {"generation": generation, **fields})
        if not is_poisoned:
            self.certified = max(self.certified, step - CERTIFIED_AFTER)
            if self.was_poisoned and step % CERTIFIED_AFTER == 0:
                self._say(StepsCertified, {"generation": generation, "step": self.certified, "newest_step": step})

    def end(self, generation: int, rank: int) -> None:
        self.alive[generation].discard(rank)

    def is_complete(self, generation: int) -> bool:
        return generation not in self.standing_still and len(self.alive.get(generation, ())) == self.world_sizes.get(
            generation
        )
