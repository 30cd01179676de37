"""The pace of this process's rank, by the settings of its job, and the report of each change."""

from __future__ import annotations

import logging
import os
from functools import partial

import torch.distributed as dist

from holdfast.node.vault.messages import ShardName
from holdfast.trainer.checkpoint.memory_tier import MemoryTier, report_or_warn
from holdfast.trainer.checkpoint.pace.agreement import Agreed, Agreement, Alone, Ballots, InThread
from holdfast.trainer.checkpoint.pace.keep_pace import KeepPace
from holdfast.trainer.checkpoint.pace.meters import HostMeter, Meter
from holdfast.trainer.checkpoint.pace.spacing import RANKS_MAX, Limit, Samples
from holdfast.trainer.device import has_accelerator
from holdfast.trainer.report import KEEPING_SPACED, ReportValue

SHARE_VARIABLE = "HOLDFAST_KEEP_COST_MAX"
SHARE_MAX = 0.02
HOST_KEEP_S = 0.025
"""Below it the time of a call is noise of a host whose processors are busy."""
DEVICE_KEEP_S = 0.002

log = logging.getLogger("holdfast.trainer.checkpoint")


def pace_of(name: ShardName | None, generation: int, memory: MemoryTier) -> KeepPace:
    """Return what chooses the steps to keep in `memory`. `name`: that of this rank's shards, if it has any."""
    share = share_max(os.environ.get(SHARE_VARIABLE, ""))
    limit = Limit(share, DEVICE_KEEP_S if has_accelerator() else HOST_KEEP_S)
    if name is None or not memory.has_vault:
        return KeepPace(None, limit)
    agreement = _agreement(name, f"holdfast/keep/{generation}") if share else None
    return KeepPace(agreement, limit, name.rank, partial(_meter_of, memory), _report)


def _meter_of(memory: MemoryTier, samples: Samples) -> Meter:
    if has_accelerator():
        from holdfast.trainer.checkpoint.pace.device_meter import DeviceMeter
        from holdfast.trainer.device.adapters import stream_in_use

        if stream_in_use() is not None:
            return DeviceMeter(samples, memory.take_gate_wait)
    return HostMeter(samples, memory.writers_waited_s)


def share_max(text: str) -> float:
    """Return the largest share of training's time that keeping steps may cost, by its setting; 0: any."""
    try:
        found = float(text) if text else SHARE_MAX
    except ValueError:
        found = -1.0
    if 0 <= found <= 1:
        return found
    log.warning("%s is %r: use a share from 0 (no limit) to 1; it is %g now", SHARE_VARIABLE, text, SHARE_MAX)
    return SHARE_MAX


def _agreement(name: ShardName, prefix: str) -> Agreement | None:
    if name.world_size == 1:
        return Alone()
    store = dist.distributed_c10d._get_default_store()
    if store is None or name.world_size > RANKS_MAX:
        return None
    return InThread(Ballots(store, prefix, name.rank, name.world_size))


def _report(step: int, agreed: Agreed) -> None:
    """Log and report that from this step on there is another distance; called on rank 0."""
    costs: dict[str, ReportValue] = {}
    why = "it costs less by now"
    if (objection := agreed.objection) is not None:
        keep_s, step_s = objection.costs
        costs = {"rank": objection.rank, "keep_s": keep_s, "step_s": step_s}
        why = f"keeping one takes {keep_s * 1e3:.1f} ms of rank {objection.rank}, whose steps take {step_s * 1e3:.1f}"
    which = "every step" if agreed.every == 1 else f"one step in {agreed.every}"
    log.warning("from step %d on %s is kept in memory: %s", step, which, why)
    report_or_warn(KEEPING_SPACED, step=step, every=agreed.every, **costs)
