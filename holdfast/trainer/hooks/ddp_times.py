"""Times of DDP's buckets: C++ calls them, and DDP's own logger reports each iteration during the next one.

On the CPU only. Elsewhere that logger would wait for the device; there the flight recorder has the times of kernels.
"""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any

from holdfast.node.collectives.ring_layout import OPERATIONS
from holdfast.trainer.hooks.collective_hooks import RingGroup, group_known
from holdfast.trainer.phases import binding

_ALL_REDUCE = OPERATIONS.index("all_reduce")


class _Module:
    """A DDP module. Each step reads this with cold caches, so all that does not change is kept here."""

    __slots__ = ("ddp", "ended_ns", "group")

    def __init__(self, ddp: Any) -> None:
        self.ddp = weakref.ref(ddp)
        self.ended_ns = 0
        """When the buckets of the last iteration that is in the ring ended, Unix ns."""
        self.group: RingGroup | None = None


_modules: list[_Module] = []


def patch_ddp(module: ModuleType) -> None:
    made = module.DistributedDataParallel.__init__

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if binding.ring is not None and self.device_type == "cpu" and self.logger is not None:
            self._set_ddp_runtime_logging_sample_rate(1)
            _modules.append(_Module(self))

    module.DistributedDataParallel.__init__ = init


def note_buckets(*_: Any) -> None:
    """Put the last iteration that is over into the ring, after an optimizer has stepped."""
    ring = binding.ring
    if ring is None:
        return
    for module in _modules:
        ddp = module.ddp()
        if ddp is None:
            _modules.remove(module)
            return
        times = ddp.logger._get_ddp_logging_data().ints_map
        ended_ns = times.get("backward_comm_time_end", 0)
        # Without a change it accumulates gradients, or is not trained.
        if ended_ns <= module.ended_ns:
            continue
        module.ended_ns = ended_ns
        process_group, group = ddp.process_group, module.group
        if group is None or group.group() is not process_group:
            group = module.group = group_known(process_group, ring)
        began_ns = times["backward_comm_time_start"]
        ring.add_past(
            group.place,
            max(group.begun_by_backend(process_group), 0),
            _ALL_REDUCE,
            times.get("total_parameter_size_bytes", 0),
            entered_ns=began_ns,
            # Until the last gradient is there the rank computes.
            waited_ns=min(max(began_ns, times["backward_compute_time_end"]), ended_ns),
            left_ns=ended_ns,
        )
