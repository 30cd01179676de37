"""The rank's connection to its node's vault for steps that it fills itself: one at a time, by one thread at a time.

Until a step begins it is the thread that trains that asks; from then on it is the one that follows the copies.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.node import frames
from holdfast.node.frames import WireError
from holdfast.node.vault import messages, vault_socket
from holdfast.node.vault.messages import Abandon, Fill, Filled, Fills, Lay, PersistTo, Refused, Room, ShardName
from holdfast.trainer.device import FillRefused


class FillLink:
    def __init__(self, directory: Path, name: ShardName, generation: int, persist_to: PersistTo | None) -> None:
        """Raises WireError: there is no vault; FillRefused: it does not serve this rank."""
        try:
            self._link = vault_socket.connect(directory)
        except OSError as error:
            raise WireError(f"no vault answers in {directory}: {error.strerror}") from error
        self._ask(Fills(name=name, generation=generation, persist_to=persist_to))

    def lay(self, nbytes: int, index: bytes, numa_node: int) -> None:
        """Describe the shards that follow, and name the NUMA node near the device."""
        self._ask(Lay(nbytes=nbytes, index=index, pieces=(), numa_node=numa_node))

    def fill(self, step: int, objects: bytes) -> tuple[Room, int]:
        """Return memory for a step: a descriptor, which is the caller's. Raises FillRefused: there is none."""
        answer, descriptor = self._ask(Fill(step=step, objects=objects))
        if not isinstance(answer, Room) or descriptor is None:
            if descriptor is not None:
                os.close(descriptor)
            raise WireError("the vault gave no memory")
        return answer, descriptor

    def filled(self, up_to: int) -> None:
        """Report that the first `up_to` bytes have arrived; `up_to` is less than the whole."""
        frames.send(self._link, Filled(up_to=up_to))

    def finish(self, nbytes: int) -> None:
        """Report that all bytes have arrived; return once the step is sealed. Raises FillRefused: it is not sealed."""
        self._ask(Filled(up_to=nbytes))

    def abandon(self) -> None:
        """Give the step up; no copy into its memory may be under way any more."""
        self._ask(Abandon())

    def close(self) -> None:
        self._link.close()

    def _ask(self, request: messages.Request) -> tuple[messages.Answer, int | None]:
        frames.send(self._link, request)
        answer, descriptor = frames.receive(self._link, messages.answers)
        if isinstance(answer, Refused):
            raise FillRefused(answer.reason)
        return answer, descriptor
