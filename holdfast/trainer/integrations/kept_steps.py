"""The state that a framework's training keeps at each step: weights by name, the framework's own state, and state of
this rank alone.

Weights and the framework's state are the same on all data-parallel ranks, so a checkpoint on the disk has them once.
Where each rank holds a part of the model (`shards.py`), the part is state of this rank alone.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast.trainer.checkpoint.agreement import RankGroup
from holdfast.trainer.checkpoint.checkpointer import Checkpointer, CheckpointError, PerRank, RngState
from holdfast.trainer.checkpoint.environment import restore_step
from holdfast.trainer.checkpoint.layout.dtensors import DPart, Spread, local_of, spread_of

log = logging.getLogger("holdfast.trainer.checkpoint")

REST, RANK = "rest", "rank"


@dataclass
class Step:
    """A completed step. `models` are state dicts by name; `own` is what differs between ranks, None if it is lost."""

    number: int
    models: dict[str, dict[str, Any]]
    rest: dict[str, Any]
    own: dict[str, Any] | None = field(default_factory=dict[str, Any])


class KeptSteps:
    """The steps of this process's training, in memory and on the disk."""

    def __init__(self, *, is_sharded: bool = False) -> None:
        self._checkpointer = Checkpointer()
        self._is_sharded = is_sharded
        self._last = 0

    def is_new(self, step: int) -> bool:
        return step > self._last

    def keep(self, step: Step) -> None:
        self._last = step.number
        own = Whole((step.models, step.rest, step.own) if self._is_sharded else step.own)
        shared = {} if self._is_sharded else {**step.models, REST: Whole(step.rest)}
        self._checkpointer.keep(step.number, {**shared, RANK: PerRank(own)})

    def restore(self, models: Sequence[str] = ("model",), in_file: int | None = None) -> Step | None:
        """Return the newest step that all ranks have; None if there is none. All ranks call it.

        `in_file` is the step of the file that the script goes on from by itself: with it, nothing that is left of kept
        steps is no error. Tensors are in host memory, as if they had been loaded from a file.
        """
        rest, own = Whole(), Whole()
        state: dict[str, Any] = {RANK: PerRank(own)}
        if not self._is_sharded:
            state |= {name: {} for name in models} | {REST: rest}
        try:
            number = self._restored(state)
        except CheckpointError as error:
            # All ranks are here.
            if _of_rank_0(in_file) is None:
                raise
            log.warning("training goes on from the script's own file: %s", error)
            return None
        self._last = number
        if not number:
            return None
        if self._is_sharded:
            return Step(number, *own.value)
        return Step(number, {name: state[name] for name in models}, rest.value, own.value)

    def _restored(self, state: dict[str, Any]) -> int:
        try:
            return self._checkpointer.restore(state, to_device=False)
        except CheckpointError as error:
            if self._is_sharded:
                raise
            # With another number of ranks there is no part for each of them. All ranks are here.
            del state[RANK]
            number = self._checkpointer.restore(state, to_device=False)
            log.warning("random numbers begin again, the rest is restored: %s", error)
            return number


def is_newer(step: Step | None, in_file: int | None) -> bool:
    """Return True on all ranks if the kept step is to be used, not the file with this one (None: there is no file).

    Rank 0's file counts: others may not see it. A file beyond `$HOLDFAST_RESTORE_STEP` belongs to a history that was
    given up.
    """
    if step is None:
        return False
    there, bound = _of_rank_0(in_file), _of_rank_0(restore_step())
    return there is None or step.number >= there or (bound is not None and there > bound)


def _of_rank_0(step: int | None) -> int | None:
    ranks = RankGroup()
    return ranks.agree_on_bound(step if ranks.rank == 0 else None)


class Whole:
    """Any object as a part of a checkpoint: its tensors apart, the rest pickled. None until it is loaded.

    Of a DTensor it has what this rank holds. Loaded, that is a `DPart`: the mesh may not be made yet.
    """

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        pickler.dump(self.value)
        rest = {"rest": stream.getvalue()}
        return {**rest, "tensors": pickler.tensors} if pickler.tensors else rest

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.value = _Unpickler(io.BytesIO(state_dict["rest"]), state_dict.get("tensors", [])).load()


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, obj: Any) -> tuple[int, Spread | None] | None:
        if not isinstance(obj, torch.Tensor):
            return None
        spread = spread_of(obj) if isinstance(obj, DTensor) else None
        self.tensors.append(local_of(obj) if isinstance(obj, DTensor) else obj.detach())
        return len(self.tensors) - 1, spread


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, pid: tuple[int, Spread | None] | int) -> torch.Tensor | DPart:
        place, spread = (pid, None) if isinstance(pid, int) else pid
        tensor = self._tensors[place]
        return tensor if spread is None else DPart(tensor, spread)


def rng_now() -> bytes:
    """Return the state of this process's random number generators."""
    # As bytes: a tensor would lie somewhere else in each step.
    return pickle.dumps(RngState().state_dict(), pickle.HIGHEST_PROTOCOL)


def set_rng(state: bytes) -> None:
    RngState().load_state_dict(pickle.loads(state))
