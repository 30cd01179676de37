"""The step that each rank of this node kept last. With it a vault knows which of its next ones are sent and written."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast_vault.shelf.shelf import Shelf


class LastSteps:
    def __init__(self, shelf_of: Callable[[ShardName], Shelf]) -> None:
        self._shelf_of = shelf_of
        self._known: dict[ShardName, SealedStep] = {}

    def went_on(self, name: ShardName, generation: int, sealed: SealedStep | None) -> None:
        """Note the step that a rank goes on from; None: it begins with step 0."""
        self._known[name] = SealedStep(generation=generation, step=sealed.step if sealed is not None else 0)

    def take(self, name: ShardName, sealed: SealedStep) -> int | None:
        """Note a step that a rank has kept; return the one before it in its generation, None if that is not known."""
        before = self._known.get(name) or self._on_shelf(name, sealed)
        self._known[name] = sealed
        return before.step if before is not None and before.generation == sealed.generation else None

    def clear(self) -> None:
        """Start on another job."""
        self._known.clear()

    def _on_shelf(self, name: ShardName, sealed: SealedStep) -> SealedStep | None:
        """Return the step before by what the vault that was here before this one has left."""
        return next((each for each in self._shelf_of(name).steps() if each < sealed), None)
