"""What leads from the truth about a run to findings: a model of them, or evidence for the production analyzer."""

from __future__ import annotations

from typing import Protocol

from holdfast_proving.truth.faults import Fault
from holdfast_proving.world.training import Run, Training


class Analysis(Protocol):
    """Called when something happens that the analyzer should find, or whose end it should find."""

    def pace(self, training: Training, run: Run) -> None:
        """A run began to make steps."""

    def hang(self, training: Training, run: Run, fault: Fault, machine: str | None) -> None:
        """No step follows."""

    def slowness(self, training: Training, run: Run, fault: Fault, machine: str | None) -> None:
        """Steps take longer from now on."""

    def relief(self, training: Training, run: Run, fault: Fault) -> None:
        """This fault slows the run down no longer."""

    def bad_numbers(self, training: Training, run: Run, fault: Fault, step: int) -> None:
        """Numbers are wrong from this step on, or with a false alarm for a step or two."""

    def certify_until(self, training: Training, run: Run, until_s: float) -> None:
        """Report certified steps as they come until this time. Otherwise they are left out to save time: they matter
        only shortly before numbers go wrong."""

    def drift(self, training: Training, run: Run, fault: Fault, machine: str) -> None:
        """A machine's use of resources drifts from now on."""

    def pause(self, training: Training, run: Run, fault: Fault) -> None:
        """No step follows for a while, and nothing is wrong: one rank writes, the others wait for it."""

    def certify_past(self, training: Training, run: Run, step: int) -> None:
        """Report certified steps once enough sound steps followed `step`, up to which an earlier run's were wrong."""
