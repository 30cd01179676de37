"""The historian learns a model of telemetry by itself, from what it has recorded, and the analyzer gets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import msgspec
import pytest

from holdfast.bus.nats import connect
from holdfast.clock import Now, system_now
from holdfast.effects import Effect
from holdfast.engines.telemetry.windows import METRICS
from holdfast.events import Event, TelemetryMeasured
from holdfast.events.parts.samples import RankTelemetry
from holdfast.fresh_ids import uuid7
from holdfast.requests import ANALYZER_REQUESTS, KeepModel, decode
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast.subjects import ROOT
from holdfast_analyzer.engines.telemetry.telemetry_engine import TelemetryEngine
from holdfast_historian.retraining import Retraining
from holdfast_historian.retraining_plan import is_due
from holdfast_historian.service import Historian
from holdfast_historian.store import HistorianStore
from holdfast_proving.evidence.usage import training
from tests.integration.historian_scene import database, query, record, until

pytestmark = pytest.mark.integration

POLICY = TelemetryPolicy(retrain_every_s=3600, every_s=1.0)
SLOTS = 420
WITHIN_S = 60.0
SAID = """select body->>'is_used' as used, body->>'reason' as reason, body->>'version' as version
from historian.events where type = 'telemetry_model_trained' order by at"""


urls = database("historian_learns")
unrecorded = database("historian_learns_unrecorded")


def measured(slots: int, first: int = 0) -> list[Event]:
    """What eight ranks of a job used, a second apart, up to now."""
    values, begin = training(3, 8, slots, first).values, system_now() - timedelta(seconds=SLOTS - first)
    return [
        TelemetryMeasured(
            id=uuid7(),
            at=begin + timedelta(seconds=slot),
            source="agent/n1",
            node="n1",
            job="job",
            generation=1,
            interval_s=POLICY.every_s,
            ranks=tuple(
                RankTelemetry(rank=rank, **_numbers(values[rank, :, slot].tolist())) for rank in range(len(values))
            ),
        )
        for slot in range(slots)
    ]


def _numbers(values: list[float]) -> dict[str, float | int]:
    return {
        name: round(value) if name.endswith("_bytes") else value for name, value in zip(METRICS, values, strict=True)
    }


@asynccontextmanager
async def learning(
    nats: str, urls: dict[str, str], kept: list[KeepModel], now: Now = system_now
) -> AsyncIterator[None]:
    """A historian that learns, and an analyzer that takes models as the real one does."""
    bus, store = await connect(nats, "test"), await HistorianStore.connect(urls["historian"])
    engine = TelemetryEngine(POLICY)

    async def keep(body: bytes) -> bytes:
        request = decode(body)
        assert isinstance(request, KeepModel)
        effect: Effect = engine.answer(request, system_now())
        kept.append(request)
        engine.committed(effect)
        return msgspec.json.encode(effect.answer)

    async with asyncio.TaskGroup() as tasks:
        retraining = Retraining(bus, store, urls["historian"], POLICY, now, look_every_s=0.05)
        running = [
            tasks.create_task(Historian(bus, store, system_now).run()),
            tasks.create_task(bus.serve(ANALYZER_REQUESTS, keep)),
            tasks.create_task(retraining.run()),
        ]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
    await bus.close()
    await store.close()


async def test_it_learns_by_itself_once_and_what_is_too_little_is_said(
    embedded_nats: str, urls: dict[str, str]
) -> None:
    kept: list[KeepModel] = []

    async def said(count: int) -> bool:
        return len(await query(urls["reader"], SAID)) >= count

    await record(urls["historian"], measured(30))
    async with learning(embedded_nats, urls, kept):
        await until(lambda: said(1), "that there is too little to learn from is said")
    (first,) = await query(urls["reader"], SAID)
    assert first["used"] is None and "windows of healthy training are recorded, and 20 are needed" in first["reason"]
    assert not kept
    # An hour later there is more.
    await record(urls["historian"], measured(SLOTS - 30, 30))
    async with learning(embedded_nats, urls, kept, lambda: system_now() + timedelta(hours=1)):
        await until(lambda: said(2), "a model is learned")
    _, trained = await query(urls["reader"], SAID)
    assert (trained["used"], trained["reason"]) == ("true", f"version {trained['version']} is in use")
    assert [request.asked_by for request in kept] == ["historian"]
    # Whoever starts again finds in the record what came of the last time, and that nothing is due.
    store = await HistorianStore.connect(urls["historian"])
    try:
        last, newest = await store.last_training(), await store.newest_telemetry()
    finally:
        await store.close()
    assert last is not None and last.is_used and last.learned_until == newest
    assert not is_due(last, newest, system_now() + timedelta(days=1), POLICY)


async def test_it_does_not_learn_again_before_the_record_has_what_it_learned(
    embedded_nats: str, unrecorded: dict[str, str]
) -> None:
    await record(unrecorded["historian"], measured(30))
    looks = 0

    def now() -> datetime:
        nonlocal looks
        looks += 1
        return system_now()

    published: list[bytes] = []

    async def listen() -> None:
        async for _, body in bus.listen(f"{ROOT}.action.telemetry_model_trained.>"):
            published.append(body)

    bus, store = await connect(embedded_nats, "test"), await HistorianStore.connect(unrecorded["historian"])
    retraining = Retraining(bus, store, unrecorded["historian"], POLICY, now, look_every_s=0.02)
    running = [asyncio.create_task(listen()), asyncio.create_task(retraining.run())]
    try:
        async with asyncio.timeout(WITHIN_S):
            while not published:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.02)
            before = looks
            while looks < before + 5:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.02)
        assert len(published) == 1
    finally:
        for task in running:
            task.cancel()
        await bus.close()
        await store.close()
