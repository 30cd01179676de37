"""Collectives' times on a rank's device, from its flight recorder (NCCL with `TORCH_NCCL_ENABLE_TIMING`). Pure.

A kernel's time is its wait for later ranks plus the transfer, like a wait on the CPU. Its duration is measured by the
device's clock; its end is seen by the host when the watchdog looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from holdfast.events.parts.traces import CollectiveRecord, RankTrace
from holdfast.node.collectives.ring_layout import GroupEntry, RingRecord, runs_of

WATCHDOG_LOOKS_EVERY_NS: Final = 100_000_000

_BYTES: Final = {
    "Double": 8,
    "Long": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    "Float": 4,
    "Int": 4,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
}
"""Bytes per element; types not listed have one."""


def with_device_times(
    records: Sequence[RingRecord], groups: Sequence[GroupEntry], device: RankTrace
) -> tuple[list[RingRecord], list[GroupEntry]]:
    """Replace host times of a rank's ring by device times, sorted by start. Groups that only the device knows follow
    those of the ring. Nothing changes if kernels are not timed."""
    timed = [record for record in device.records if record.took_ns and not record.is_p2p]
    if not timed:
        return list(records), list(groups)
    places = {group.name: place for place, group in enumerate(groups)}
    all_groups = list(groups)
    for group in device.groups:
        if group.name not in places:
            places[group.name] = len(all_groups)
            all_groups.append(GroupEntry(group.name, group.description, runs_of(group.ranks)))
    waited = [_as_waited(index, record, places[record.group]) for index, record in enumerate(timed)]
    kept = [record for record in records if not record.is_on_device]
    return sorted((*kept, *waited), key=lambda record: record.entered_ns), all_groups


def bytes_of(record: CollectiveRecord) -> int:
    return sum(math.prod(shape) for shape in record.input_sizes) * _BYTES.get(record.dtype, 1)


def _as_waited(index: int, record: CollectiveRecord, group: int) -> RingRecord:
    # The kernel ended before the watchdog saw it, and no earlier than its duration allows.
    ended_ns = max(record.created_ns + record.took_ns, record.ended_ns - WATCHDOG_LOOKS_EVERY_NS)
    return RingRecord(
        index=index,
        entered_ns=record.created_ns,
        waited_ns=ended_ns - record.took_ns,
        left_ns=ended_ns,
        bytes=bytes_of(record),
        sequence=record.sequence,
        peer=None,
        group=group,
        operation=record.operation,
        is_p2p=False,
        is_on_device=True,
    )
