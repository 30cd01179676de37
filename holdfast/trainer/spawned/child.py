"""The side of a spawned process: the hooks that show steps, and none on what it sends to others.

Its process group is the script's own, so neither its store nor its collectives are hooked.
"""

from __future__ import annotations

import atexit
from typing import Any

from holdfast.node.ledger.spawned_ledger import SpawnedLedger
from holdfast.trainer.hooks import install_hooks
from holdfast.trainer.phases import binding


def hook(ledger: str) -> Any:
    """Put the hooks in place, and return the finder that hooks torch."""
    binding.ledger = SpawnedLedger(ledger)
    # A script of a single step shows it at its end.
    atexit.register(binding.settle)
    return install_hooks.install_for_steps()
