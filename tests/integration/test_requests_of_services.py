"""Requests to services: the operator may make them, and with the password of a service nobody can, on no way around."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from bus_worlds import WITHIN_S, unique
from servers import NatsServer

from holdfast.bus import BusError, NoResponder
from holdfast.bus import nats as nats_module
from holdfast.bus.accounts import SERVICES, node_user
from holdfast.bus.link import Link
from holdfast.bus.nats import NatsBus, connect
from holdfast.requests import (
    ANALYZER_REQUESTS,
    CODE_REQUESTS,
    CONTROLLER_REQUESTS,
    STANDBY_REQUESTS,
    code_requests_of,
)
from holdfast.subjects import stream_info_subject

pytestmark = pytest.mark.integration

REQUESTS = {
    "controller": (CONTROLLER_REQUESTS, CODE_REQUESTS),
    "analyzer": (ANALYZER_REQUESTS,),
    "standby": (STANDBY_REQUESTS,),
}
STORED = "holdfast.v1.evidence.x.job._"
MARK = b"submit a job"


class Server:
    """A service that notes what it is asked."""

    def __init__(self, bus: NatsBus, subject: str) -> None:
        self.asked: list[bytes] = []
        self._task = asyncio.create_task(bus.serve(subject, self._answer))

    async def _answer(self, body: bytes) -> bytes:
        self.asked.append(body)
        return b"done"

    def close(self) -> None:
        self._task.cancel()


@asynccontextmanager
async def serving(guarded: NatsServer, service: str, subject: str) -> AsyncIterator[Server]:
    """The service whose requests these are; it is known to receive the operator's."""
    bus = await connect(guarded.url_of(service), service, timeout_s=WITHIN_S)
    server = Server(bus, subject)
    try:
        yield server
    finally:
        server.close()
        await bus.close()


async def asked_by_operator(operator: NatsBus, subject: str) -> None:
    """Have the operator ask once. What arrived before is handled then: requests are answered in order."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                assert await operator.request(subject, b"mine", WITHIN_S) == b"done"
                return
            except NoResponder:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(("service", "subject"), [(name, it) for name, found in REQUESTS.items() for it in found])
async def test_a_service_makes_no_requests(guarded: NatsServer, operator: NatsBus, service: str, subject: str) -> None:
    async with serving(guarded, service, subject) as server:
        await asked_by_operator(operator, subject)
        for user in SERVICES:
            if (user, subject) == ("historian", ANALYZER_REQUESTS):
                continue
            link = await Link.open(guarded.url_of(user), "attacker")
            with pytest.raises(BusError, match="denies"):
                pytest.fail(f"{user}: {(await link.answer(subject, MARK, timeout_s=WITHIN_S)).data!r}")
            await link.close()
        await asked_by_operator(operator, subject)
        assert set(server.asked) == {b"mine"}


async def test_a_service_has_nothing_else_of_the_bus_make_its_request(guarded: NatsServer, operator: NatsBus) -> None:
    """Where it may not publish, it may have the server publish: what a stream holds is any body that it likes."""
    subject, forged, stream = CONTROLLER_REQUESTS, MARK, unique("S")
    async with serving(guarded, "controller", subject) as server:
        await asked_by_operator(operator, subject)
        link = await Link.open(guarded.url_of("historian"), "attacker")
        seen = await (watcher := await Link.open(guarded.url, "watcher")).subscribe(subject)
        stored = msgspec.json.decode((await link.answer(STORED, forged)).data)["seq"]
        # As the answer to a question about a message.
        await link.send("$JS.API.DIRECT.GET.EVIDENCE", msgspec.json.encode({"seq": stored}), reply=subject)
        # As what a consumer delivers, and what one is asked for.
        for policy in ("explicit", "none"):
            await _consumer(link, {"deliver_subject": subject, "ack_policy": policy})
        pulled = await _consumer(link, {"ack_policy": "explicit"})
        await link.send(f"$JS.API.CONSUMER.MSG.NEXT.EVIDENCE.{pulled}", b"1", reply=subject)
        # As what a stream publishes again when it stores it.
        source = f"holdfast.v1.attempt.{stream}"
        await _api(
            link,
            f"STREAM.CREATE.{stream}",
            {"name": stream, "subjects": [source], "storage": "memory", "republish": {"src": source, "dest": subject}},
        )
        await link.send(source, forged, reply=f"{link.new_inbox()}")
        arrived = [await seen.next(WITHIN_S) for _ in range(5)]
        assert {message.data for message in arrived} == {forged}
        await asked_by_operator(operator, subject)
        assert set(server.asked) == {b"mine"}, [(it.reply, it.headers) for it in arrived]
        await _api(link, f"STREAM.DELETE.{stream}", {})
        await link.close()
        await watcher.close()


async def _consumer(link: Link, config: dict[str, object]) -> str:
    name = unique("c")
    wanted = {"name": name, "deliver_policy": "last", "filter_subject": STORED, **config}
    await _api(link, f"CONSUMER.CREATE.EVIDENCE.{name}.{STORED}", {"stream_name": "EVIDENCE", "config": wanted})
    return name


async def _api(link: Link, request: str, body: dict[str, object]) -> None:
    answer = await link.answer(f"$JS.API.{request}", msgspec.json.encode(body) if body else b"")
    assert b'"error"' not in answer.data, answer.data


async def test_a_node_that_asks_without_end_takes_no_memory_of_the_controller(
    guarded: NatsServer, operator: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_module, "WAITING_BYTES_MAX", 2_000_000)
    bus = await connect(guarded.url_of("controller"), "c", timeout_s=WITHIN_S)
    asked, began, goes_on = 0, asyncio.Event(), asyncio.Event()

    async def answer(_: bytes) -> bytes:
        nonlocal asked
        asked += 1
        began.set()
        await goes_on.wait()
        return b"done"

    subject = code_requests_of("n1")
    serving_it = asyncio.create_task(bus.serve(code_requests_of("*"), answer))
    node = await Link.open(guarded.url_of(node_user("n1")), "n1")
    waiting = asyncio.create_task(asked_by_operator(operator, subject))
    await began.wait()
    for _ in range(40):
        await node.send(subject, bytes(500_000), reply=node.new_inbox())
    await node.answer(stream_info_subject("EVIDENCE"), b"")
    # What comes after them is there, so they are.
    heard = asyncio.ensure_future(anext(aiter(bus.listen("holdfast.v1.heartbeat.n9"))))
    while not heard.done():
        await operator.broadcast("holdfast.v1.heartbeat.n9", b"")
        await asyncio.sleep(0.01)
    goes_on.set()
    await waiting
    await asked_by_operator(operator, subject)
    assert asked < 10
    serving_it.cancel()
    await bus.close()
    await node.close()


async def test_a_node_that_asks_without_end_delays_no_other(guarded: NatsServer, operator: NatsBus) -> None:
    bus = await connect(guarded.url_of("controller"), "c", timeout_s=WITHIN_S)
    answered = list[bytes]()

    async def answer(body: bytes) -> bytes:
        answered.append(body)
        await asyncio.sleep(0.001)  # As long as a look into the store.
        return b"done"

    serving_it = asyncio.create_task(bus.serve(code_requests_of("*"), answer))
    flooding, other = [await Link.open(guarded.url_of(node_user(it)), it) for it in ("n1", "n2")]
    await asked_by_operator(operator, code_requests_of("n2"))
    for _ in range(3000):
        await flooding.send(code_requests_of("n1"), b"again", reply=flooding.new_inbox())
    await flooding.answer(stream_info_subject("EVIDENCE"), b"")
    before = len(answered)
    assert (await other.answer(code_requests_of("n2"), b"once", timeout_s=WITHIN_S)).data == b"done"
    assert b"again" in answered
    # The flood is read first, while some of it is answered.
    assert answered.index(b"once") - before < 500
    serving_it.cancel()
    await bus.close()
    await flooding.close()
    await other.close()


async def test_the_historian_brings_the_analyzer_its_models(guarded: NatsServer, operator: NatsBus) -> None:
    async with serving(guarded, "analyzer", ANALYZER_REQUESTS):
        await asked_by_operator(operator, ANALYZER_REQUESTS)
        historian = await connect(guarded.url_of("historian"), "historian", timeout_s=WITHIN_S)
        assert await historian.request(ANALYZER_REQUESTS, b"a model", WITHIN_S) == b"done"
        await historian.close()


async def test_an_agent_of_an_earlier_release_asks_for_code_in_its_own_turn(
    guarded: NatsServer, operator: NatsBus
) -> None:
    """Those asked where the command line does."""
    async with serving(guarded, "controller", code_requests_of("*")) as server:
        await asked_by_operator(operator, code_requests_of("n2"))
        node = await Link.open(guarded.url_of(node_user("n1")), "an agent of an earlier release")
        try:
            assert (await node.answer(CODE_REQUESTS, b"offer", timeout_s=WITHIN_S)).data == b"done"
        finally:
            await node.close()
        assert b"offer" in server.asked
