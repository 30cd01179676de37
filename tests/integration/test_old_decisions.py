"""A consumer that was deleted receives weeks of decisions again, after the inbox has forgotten them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from recorder_service import Recorder, eviction, running, until_acted

from holdfast.bus import event_message
from holdfast.bus.nats import NatsBus
from holdfast.store import Store
from holdfast.store.message_retention import INBOX_KEPT

pytestmark = pytest.mark.integration


async def test_decisions_from_before_the_inbox_was_pruned_do_not_act_again(bus: NatsBus, store: Store) -> None:
    await bus.publish(event_message(eviction("old")))
    async with running(bus, store) as recorder:
        await until_acted(recorder, "old")
    await store.prune(datetime.now(UTC) + INBOX_KEPT)
    await bus.start_over("DECISIONS", Recorder.name)
    await bus.publish(event_message(eviction("new")))
    async with running(bus, store) as recorder:
        await until_acted(recorder, "new")
    assert recorder.acted == ["new"]
