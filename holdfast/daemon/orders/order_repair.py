"""Repair of orders on the bus: the values in a bucket, as a rule `desired`, are compared with the orders in force.

A bucket can lose a value (a wiped bus) or get a wrong one (a hostile or mistaken put). Each service repairs the keys
that it alone writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from holdfast.bus import Bus, BusUnavailable
from holdfast.subjects import DESIRED_BUCKET

EVERY_S = 5.0
REPAIRED_AT_ONCE = 50
"""Keys repaired after one call of `corrections`; a call for each key would take too long when all are lost."""

Correction = Callable[[bytes | None], bytes | None]
"""Maps the value of a key (None: no value) to the value to put; None: it is right."""
Corrections = Callable[[], Mapping[str, Correction]]
"""Returns the corrections by key. They change with every decision, so it is called for each comparison."""

log = structlog.get_logger()


async def keep_orders(bus: Bus, corrections: Corrections) -> None:
    """Repair differing orders every few seconds until cancelled."""
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            await repair_orders(bus, corrections)
        except BusUnavailable:
            continue


async def repair_orders(bus: Bus, corrections: Corrections, bucket: str = DESIRED_BUCKET) -> None:
    """Repair the orders that differ; raises BusUnavailable if some may not have been compared."""
    differing = list(await _wrong(bus, corrections, bucket, list(corrections())))
    for first in range(0, len(differing), REPAIRED_AT_ONCE):
        # The second comparison excludes orders that were on their way to the bus in the first.
        again = differing[first : first + REPAIRED_AT_ONCE]
        for key, (body, right) in (await _wrong(bus, corrections, bucket, again)).items():
            if body is None:
                log.info("an order is missing on the bus, putting it", key=key)
            else:
                log.warning("an order on the bus is wrong, repairing it", key=key)
            await bus.put(bucket, key, right)


async def _wrong(
    bus: Bus, corrections: Corrections, bucket: str, keys: list[str]
) -> dict[str, tuple[bytes | None, bytes]]:
    """Return present and right value of each key whose value is wrong."""
    bodies = {key: await bus.get(bucket, key) for key in keys}
    # After the reads: decisions went on meanwhile.
    in_force = corrections()
    wrong = {}
    for key, body in bodies.items():
        if (correct := in_force.get(key)) is not None and (right := correct(body)) is not None:
            wrong[key] = (body, right)
    return wrong
