"""The ways of keeping steps that are compared, each with a vault of its own."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from vaults import vault

from holdfast.node.vault.messages import ShardName
from holdfast.trainer.device import StepSkipped
from holdfast.trainer.device.copies import DeviceCopies
from holdfast.trainer.device.guards import CopySizes
from holdfast.trainer.vault_client.client import VaultClient

Mode = Literal["nothing", "within", "gate", "shadows", "no gate"]
SEGMENTS = 3
"""A vault has a rank's state so many times, and each is pinned by itself."""
SEALED_WITHIN_S = 60.0
READY_WITHIN_S = 60.0
"""A vault moves its memory into huge pages at the lowest priority, and only then it is pinned."""


class Keeping:
    """How one mode keeps steps."""

    def __init__(self, mode: Mode, directory: Path | None, sizes: CopySizes) -> None:
        self.mode = mode
        self.copies: DeviceCopies | None = None
        self.client: VaultClient | None = None
        if directory is not None:
            name = ShardName(job="bench", submitted_ms=0, world_size=1, rank=0)
            if mode != "within":
                self.copies = DeviceCopies(directory, name, 1, None, shadows_all=mode == "shadows", sizes=sizes)
                if mode == "no gate":
                    # Its torn steps would be found, and then everything would get a shadow.
                    self.copies._check_every = 0
            self.client = VaultClient(directory, name, 1, copies=self.copies)

    @property
    def is_ready(self) -> bool:
        """The mode is as it will be for the rest of a job."""
        return self.copies is None or self.copies.is_direct

    def until_ready(self, train: Callable[[], object]) -> bool:
        """Train and keep steps until the vault's memory is pinned; return if it is in time."""
        until = time.monotonic() + READY_WITHIN_S
        in_a_row = 0
        while in_a_row < SEGMENTS and time.monotonic() < until:
            train()
            self.wait_sealed()
            in_a_row = in_a_row + 1 if self.is_ready else 0
        return in_a_row == SEGMENTS

    def keep(self, step: int, state: Callable[[], dict[str, Any]]) -> bool:
        if self.client is None:
            return False
        try:
            self.client.save(step, state())
        except StepSkipped:
            return False
        if self.mode == "no gate" and self.copies is not None:
            self.copies._gate.open()
        return True

    def hold_back(self) -> None:
        if self.copies is not None:
            self.copies.hold_back()

    def wait_sealed(self) -> None:
        if self.copies is not None and not self.copies.wait_sealed(SEALED_WITHIN_S):
            raise RuntimeError(f"a step is not sealed after {SEALED_WITHIN_S:g} s")

    def close(self) -> None:
        if self.copies is not None:
            self.copies.close()
        if self.client is not None:
            self.client.close()


@contextlib.contextmanager
def kept(mode: Mode, sizes: CopySizes) -> Iterator[Keeping]:
    """Yield a way of keeping steps, with a vault of its own."""
    with contextlib.ExitStack() as stack:
        directory = None
        if mode != "nothing":
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-")))
            directory = stack.enter_context(vault(root)).directory
        keeping = Keeping(mode, directory, sizes)
        stack.callback(keeping.close)
        yield keeping
