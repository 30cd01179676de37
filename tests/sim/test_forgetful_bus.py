"""The simulation notices when the mend of a bus that forgets is missing: messages that it lost stay lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from holdfast.daemon.relay import Relay
from tests.sim.checkers import check
from tests.sim.test_schedules import run_schedule

SEEDS = range(12)
FAULTS = ("forgetful bus",)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


async def _failing() -> list[int]:
    found = []
    for seed in SEEDS:
        try:
            check(await run_schedule(seed, FAULTS))
        except AssertionError:
            found.append(seed)
    return found


async def test_a_relay_that_does_not_compare_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await _failing() == []

    async def nothing(_: Relay) -> None:
        """Publish nothing again."""

    monkeypatch.setattr(Relay, "_recover_lost", nothing)
    assert await _failing()
