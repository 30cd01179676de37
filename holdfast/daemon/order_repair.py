"""Orders hold: what the bus has under their keys is compared with the truth now and then, and put right.

The bucket of desired state can lose a value (a wiped bus) or get a wrong one (a hostile or mistaken put). Each service
asserts the keys that it alone writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from holdfast.bus import Bus, BusUnavailable
from holdfast.subjects import DESIRED_BUCKET

EVERY_S = 5.0
CORRECTED_AT_ONCE = 50
"""Keys that are put right by one look at the truth: to work it out for each would take too long when all are lost."""

Correction = Callable[[bytes | None], bytes | None]
"""From what is under a key (None: nothing) to what to put there; None: that is as it should be."""
Truths = Callable[[], Mapping[str, Correction]]
"""What holds now, by key. It changes with every decision, so it is asked anew each time."""

log = structlog.get_logger()


async def keep_asserting(bus: Bus, truths: Truths) -> None:
    """Put right what differs, for ever."""
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            await assert_truths(bus, truths)
        except BusUnavailable:
            continue


async def assert_truths(bus: Bus, truths: Truths) -> None:
    """Put right what differs now.

    Raises:
        BusUnavailable: some may not have been looked at.
    """
    differs = list(await _wrong(bus, truths, list(truths())))
    for first in range(0, len(differs), CORRECTED_AT_ONCE):
        # What differed may only have been on its way to the bus.
        for key, (body, right) in (await _wrong(bus, truths, differs[first : first + CORRECTED_AT_ONCE])).items():
            if body is None:
                log.info("an order is not on the bus any more, putting it there", key=key)
            else:
                log.warning("an order on the bus differs from the truth, putting it right", key=key)
            await bus.put(DESIRED_BUCKET, key, right)


async def _wrong(bus: Bus, truths: Truths, keys: list[str]) -> dict[str, tuple[bytes | None, bytes]]:
    """What differs, and how it should be."""
    bodies = {key: await bus.get(DESIRED_BUCKET, key) for key in keys}
    # Only now: decisions went on while that was read.
    holding = truths()
    wrong = {}
    for key, body in bodies.items():
        if (correct := holding.get(key)) is not None and (right := correct(body)) is not None:
            wrong[key] = (body, right)
    return wrong
