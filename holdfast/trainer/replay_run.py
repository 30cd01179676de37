"""A rank that replays: it trains as it did, in a smaller group, and reports what it computed, bit for bit.

After each step of an optimizer its parameters and gradients go into one running digest, and what the script reports for
the step with them. The digests of two groups are equal up to the step at which one of them computed something else. A
replay keeps no checkpoints, and ends once it is as long as it was asked to be (ByteRobust §4.2, Alg. 1).
"""

from __future__ import annotations

import math
import os
import random
import struct
import sys
import time
from typing import Any

import xxhash

from holdfast.engines.checks.replay_groups import original_rank
from holdfast.orders.replay import VARIABLE, ReplaySettings
from holdfast.topology import Mesh
from holdfast.trainer.phases import binding
from holdfast.trainer.report import REPLAY_RESULT, report

DIGESTS_MAX = 32
"""Beyond that every other one is dropped: a report stays small, and where a difference began is known less exactly."""

MEETING_S = 60.0
_POLL_S = 0.02
_SEED = 0
_DOUBLE = struct.Struct("<d")


def replay() -> ReplaySettings | None:
    """Return the replay of this process; None: it trains.

    A script that saves by other means than Holdfast's must not do so in a replay, and may shorten it (`layers`).
    """
    text = os.environ.get(VARIABLE, "")
    return ReplaySettings.decode(text) if text else None


def job_rank(rank: int) -> int:
    """Return the rank of the job whose place this rank of a group takes; itself in training."""
    settings = replay()
    if settings is None:
        return rank
    return original_rank(rank, Mesh.parse(settings.mesh), Mesh.parse(settings.of_mesh))


def job_world_size(world_size: int) -> int:
    settings = replay()
    return world_size if settings is None else Mesh.parse(settings.of_mesh).world_size


def begin() -> None:
    """Prepare before the script runs: where it draws at random without its own seed, all groups draw the same."""
    settings = replay()
    if settings is None:
        return
    random.seed(_SEED)
    import numpy as np

    np.random.seed(_SEED)
    binding.recorder = Recorder(settings)


def make_deterministic(torch: Any) -> None:
    torch.manual_seed(_SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)


class Recorder:
    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings
        self._began_at = time.monotonic()
        self._begins_after = 0
        self._chain = xxhash.xxh3_128()
        self._first: int | None = None
        self._last = -1
        self._done = 0
        self._every = 1
        self._digests: list[str] = []
        self._bad_step: int | None = None
        self._is_bad = False
        self._explicit = False
        self._unsettled: str | None = None
        self._is_reported = False

    def resumed(self, step: int) -> None:
        if self._first is None:
            self._begins_after = step

    def optimizer_stepped(self, optimizer: Any, *, is_counted: bool) -> None:
        """Absorb an optimizer's changes. `is_counted`: its steps are the job's, unless the script counts."""
        if is_counted and self._unsettled is not None:
            self._close(self._next, self._unsettled)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._absorb(parameter)
                if parameter.grad is not None:
                    self._absorb(parameter.grad)
        if self._explicit or not is_counted:
            return
        if self._done == 0 and self._unsettled is None:
            # Whether the script counts by itself is not known before its first report, or the optimizer's second step.
            self._unsettled = self._chain.hexdigest()
        else:
            self._close(self._next, self._chain.hexdigest())

    def step_reported(self, step: int | None, loss: float | None, grad_norm: float | None) -> None:
        self._explicit, self._unsettled = True, None
        for number in (loss, grad_norm):
            if number is not None:
                self._chain.update(_DOUBLE.pack(number))
                self._is_bad |= not math.isfinite(number)
        self._close(self._next if step is None else step, self._chain.hexdigest())

    def ended(self) -> None:
        if self._unsettled is not None:
            self._note(self._next, self._unsettled)
        self._report_once()

    @property
    def _next(self) -> int:
        return self._begins_after + 1 if self._first is None else self._last + 1

    def _close(self, step: int, digest: str) -> None:
        self._note(step, digest)
        if self._done >= self._settings.steps((self._first or 0) - 1):
            self._report_once()
            _meet_the_others()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            # The script's own end is none of a replay's: it would save, and wait for what is not there.
            os._exit(0)

    def _note(self, step: int, digest: str) -> None:
        self._unsettled = None
        if self._first is None:
            self._first = step
        if self._is_bad and self._bad_step is None:
            self._bad_step = step
        if self._done % self._every == 0:
            self._digests.append(digest)
            if len(self._digests) > DIGESTS_MAX:
                self._digests, self._every = self._digests[::2], 2 * self._every
        self._last, self._done = step, self._done + 1

    def _absorb(self, tensor: Any) -> None:
        import torch

        local = tensor.detach()
        local = local.to_local() if hasattr(local, "to_local") else local
        if local.layout is not torch.strided:
            local = local.to_dense()
        if local.numel() == 0:
            return
        if (local.is_floating_point() or local.is_complex()) and not bool(torch.isfinite(local).all()):
            self._is_bad = True
        self._chain.update(local.contiguous().reshape(-1).view(torch.uint8).cpu().numpy())

    def _report_once(self) -> None:
        if self._is_reported:
            return
        self._is_reported = True
        report(
            REPLAY_RESULT,
            first=-1 if self._first is None else self._first,
            last=self._last,
            every=self._every,
            digests=self._digests,
            digest=self._chain.hexdigest(),
            bad_step=self._bad_step,
            took_s=time.monotonic() - self._began_at,
        )


def _meet_the_others() -> None:
    """Wait until all ranks of the group are as far: the first to end would take away what others wait for."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    store = distributed.distributed_c10d._get_default_store()
    until = time.monotonic() + MEETING_S
    try:
        here = store.add("holdfast-replay-over", 1)
        while here < distributed.get_world_size() and time.monotonic() < until:
            time.sleep(_POLL_S)
            here = store.add("holdfast-replay-over", 0)
    except RuntimeError:
        return  # the store is gone, and with it every process that would wait
