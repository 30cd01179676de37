"""Activity of the devices of a job that hangs: a kernel that waits for other ranks keeps its device busy, and nothing
else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set

from holdfast.events.parts.devices import DeviceActivity, NodeActivity
from holdfast_proving.emulated_hangs.running import Rank, Run


def activity_of(run: Run, dead: Set[int]) -> dict[str, NodeActivity]:
    """Return the activity of each machine that answers, by its number. `dead`: ranks of a dead machine."""
    devices: defaultdict[str, list[DeviceActivity]] = defaultdict(list)
    for number, rank in enumerate(run.ranks):
        if number not in dead:
            share = 1.0 if _is_busy(run, number, rank) else 0.0
            device = DeviceActivity(device=f"0000:{number:02x}:00", rank=number, busy_share=share)
            devices[str(run.layout.node(number))].append(device)
    return {
        node: NodeActivity(
            devices=tuple(known),
            peak_devices=tuple(DeviceActivity(device=device.device, busy_share=1.0) for device in known),
        )
        for node, known in devices.items()
    }


def _is_busy(run: Run, number: int, rank: Rank) -> bool:
    return any(not run.ended(number, index) for index in rank.started)
