"""Times of DDP's buckets: C++ calls them, and DDP's own logger reports each iteration during the next one.

On the CPU only. Elsewhere that logger would wait for the device; there the flight recorder has the times of kernels.
"""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any

from holdfast.node.collectives.ring_layout import OPERATIONS
from holdfast.trainer.hooks.collective_hooks import group_known
from holdfast.trainer.phases import binding

_ALL_REDUCE = OPERATIONS.index("all_reduce")

_reported_ns: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""For each DDP module when the buckets of the last iteration that is in the ring ended, Unix ns."""


def patch_ddp(module: ModuleType) -> None:
    made = module.DistributedDataParallel.__init__

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if binding.ring is not None and self.device_type == "cpu" and self.logger is not None:
            self._set_ddp_runtime_logging_sample_rate(1)
            _reported_ns[self] = 0

    module.DistributedDataParallel.__init__ = init


def note_buckets(*_: Any) -> None:
    """Put the last iteration that is over into the ring, after an optimizer has stepped."""
    ring = binding.ring
    if ring is None or not _reported_ns:
        return
    for ddp, last_ns in list(_reported_ns.items()):
        times = ddp.logger._get_ddp_logging_data().ints_map
        ended_ns = times.get("backward_comm_time_end", 0)
        # Without a change it accumulates gradients, or is not trained.
        if ended_ns <= last_ns:
            continue
        _reported_ns[ddp] = ended_ns
        group = group_known(ddp.process_group, ring)
        ring.add_past(
            group.place,
            max(group.begun_by_backend(ddp.process_group), 0),
            _ALL_REDUCE,
            times.get("total_parameter_size_bytes", 0),
            entered_ns=times["backward_comm_time_start"],
            # Until the last gradient is there the rank computes.
            waited_ns=min(max(times["backward_comm_time_start"], times["backward_compute_time_end"]), ended_ns),
            left_ns=ended_ns,
        )
