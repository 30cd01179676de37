"""The corpus, the Python standard library's own source, and a loader that knows exactly how far it has read."""

from __future__ import annotations

import sysconfig
import zlib
from pathlib import Path
from typing import Any

import torch

CORPUS_BYTES_MAX = 1 << 20


def read_corpus(bytes_max: int = CORPUS_BYTES_MAX) -> bytes:
    """The first ``bytes_max`` bytes of the standard library's top-level modules, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= bytes_max:
            break
    return bytes(text[:bytes_max])


class Loader:
    """Cuts the corpus into windows of ``tokens`` bytes and deals them out, each exactly once an epoch.

    The position is a count of windows over the whole job, so it means the same on any number of data-parallel ranks;
    which window comes at which position depends on the seed alone.
    """

    def __init__(self, corpus: bytes, *, seed: int, tokens: int, batch: int, dp_rank: int, dp_size: int) -> None:
        self._bytes = torch.frombuffer(bytearray(corpus), dtype=torch.uint8)
        self._windows = (len(corpus) - 1) // tokens
        if self._windows < batch * dp_size:
            raise ValueError(
                f"{len(corpus)} bytes make {self._windows} windows of {tokens} tokens and one step takes "
                f"{batch * dp_size}: use a longer corpus, or a smaller batch"
            )
        self._identity = {"corpus_crc32": zlib.crc32(corpus), "seed": seed, "tokens": tokens}
        self._tokens, self._batch = tokens, batch
        self._dp_rank, self._dp_size = dp_rank, dp_size
        self._consumed = 0
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets (the same bytes, one further), each ``[batch, tokens]``; moves the position on."""
        first = self._consumed + self._dp_rank * self._batch
        starts = [self._window(position) * self._tokens for position in range(first, first + self._batch)]
        rows = torch.stack([self._bytes[start : start + self._tokens + 1] for start in starts]).long()
        self._consumed += self._batch * self._dp_size
        return rows[:, :-1], rows[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {"consumed": self._consumed, **self._identity}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        differing = [
            f"{key} {state_dict[key]} then, {now} now" for key, now in self._identity.items() if state_dict[key] != now
        ]
        if differing:
            raise ValueError(
                f"the checkpoint was trained on other batches ({'; '.join(differing)}): resume with the same Python, "
                "--seed and --tokens, or start afresh in another --ckpt-dir"
            )
        self._consumed = state_dict["consumed"]

    def _window(self, position: int) -> int:
        epoch, place = divmod(position, self._windows)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self._identity["seed"] * 1_000_003 + epoch)
            self._order = (epoch, torch.randperm(self._windows, generator=generator))
        return int(self._order[1][place])
