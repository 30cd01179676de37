"""Switches memory checkpoints on in this process, once."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from functools import partial
from pathlib import Path

from holdfast.trainer.checkpoint import environment, script_steps
from holdfast.trainer.checkpoint.memory_tier import VAULT_VARIABLE, MemoryTier
from holdfast.trainer.hooks import install_hooks
from holdfast.trainer.replay_run import replay
from holdfast.trainer.write_behind import lightning_hook
from holdfast.trainer.write_behind.dcp_hook import DcpSaves
from holdfast.trainer.write_behind.engine import NotOnDisk, WriteBehind, tell
from holdfast.trainer.write_behind.guards import Guards
from holdfast.trainer.write_behind.journal import Journal
from holdfast.trainer.write_behind.recovering import Recovered, complete, meet, recover
from holdfast.trainer.write_behind.torch_hook import TorchSaves

log = logging.getLogger("holdfast.trainer.checkpoint")

OF_VARIABLE = "HOLDFAST_MEMORY_CHECKPOINTS_OF"
"""The process whose saves are kept. What it starts inherits the variable, and runs the same import with `spawn`."""
_started: list[WriteBehind] = []


def start() -> bool:
    """Recover what was saved before, and take the saves of this process over. A second call changes nothing.

    Return False where that is not possible, which is logged: saves then go to the disk as ever.
    """
    if _started:
        return True
    if replay() is not None or os.environ.get(OF_VARIABLE, str(os.getpid())) != str(os.getpid()):
        return False
    owner = environment.owner()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    name = environment.shard_name(owner, rank, size)
    directory = os.environ.get("HOLDFAST_JOB_DIR")
    if name is None or not directory or not os.environ.get(VAULT_VARIABLE):
        log.warning("checkpoints are not kept in memory: this process has no vault. Start it with `holdfast run`")
        return False
    tier = MemoryTier(name, owner.generation, is_waited_for=True, is_reported=False)
    journal = Journal(Path(directory), rank)
    try:
        last = _recovered(tier, journal, owner.generation, size)
    except OSError as error:
        where = error.filename or directory
        why = error.strerror or error
        log.error("checkpoints go straight to the disk, and those in memory stay there: %s (%s)", why, where)
        return False
    engine = WriteBehind(tier, journal, owner.generation, size, last, script_steps=script_steps.of_this_process)
    _take_over(engine)
    os.environ[OF_VARIABLE] = str(os.getpid())
    _started.append(engine)
    return True


def _recovered(tier: MemoryTier, journal: Journal, generation: int, size: int) -> int:
    """Bring what all ranks have in memory to the disk; return the number of this rank's last save.

    Raises OSError: this rank's journal or disk fails; it has met the others all the same.
    """
    is_restart = generation > 1
    recovered, problem = Recovered(), None
    try:
        recovered = recover(tier, journal)
    except OSError as error:
        problem = error
    if is_restart:
        meet(os.environ, size, "files")
    try:
        if problem is None:
            complete(recovered, journal)
    except OSError as error:
        problem = error
    if is_restart:
        meet(os.environ, size, "complete")
    if problem is not None:
        raise problem
    return recovered.step


def finished() -> bool:
    """Wait until the disk has all saves; return False if it does not get them, which is reported."""
    for engine in _started:
        try:
            engine.settle()
        except NotOnDisk as error:
            tell(f"the process fails for this: {error.strerror}")
            return False
    return True


def _take_over(engine: WriteBehind) -> None:
    import torch
    import torch.distributed.distributed_c10d

    guards = Guards(engine)
    saves = TorchSaves(engine, guards)
    saves.patch(torch)
    if torch.distributed.is_available():
        guards.guard_barriers(sys.modules["torch.distributed.distributed_c10d"])
        install_hooks.also("torch.distributed.checkpoint", DcpSaves(engine, guards).patch)
    for name in lightning_hook.MODULES:
        install_hooks.also(name, partial(lightning_hook.patch, saves))
    atexit.register(engine.settle, raises=False)
