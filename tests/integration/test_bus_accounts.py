"""What the users of the bus cannot do, attempt by attempt on a real server, and what they can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing

import msgspec
import pytest
from bus_worlds import WITHIN_S, message, take_one, unique
from servers import NatsServer

from holdfast.bus import BusError, NoResponder
from holdfast.bus.link import Inflow, Link
from holdfast.bus.nats import NatsBus, connect
from holdfast.subjects import CODE_BUCKET, DESIRED_BUCKET, JOBS_BUCKET, heartbeat_subject, holder_subject, ping_subject

pytestmark = pytest.mark.integration

ROOT = "holdfast.v1"
STREAMS = ("EVIDENCE", "DECISIONS", "METRICS", "DEADLETTERS", "KV_desired", "KV_jobs", "OBJ_code")

FORGED = {
    "evidence of another node": f"{ROOT}.evidence.process_exited.job.n2",
    "evidence of no node": f"{ROOT}.evidence.process_exited.job._",
    "metrics of another node": f"{ROOT}.metric.steps_measured.job.n2",
    "another node's action": f"{ROOT}.action.ranks_started.job.n2",
    "a service's action": f"{ROOT}.action.node_state_changed.job.n1",
    "a finding": f"{ROOT}.finding.hang.job.n1",
    "a decision": f"{ROOT}.decision.eviction.job.n1",
    "a dead letter of a service": f"{ROOT}.deadletter.controller",
    "a dead letter of another node": f"{ROOT}.deadletter.agent.n2",
    "another node's heartbeat": f"{ROOT}.heartbeat.n2",
    "another node's log": f"{ROOT}.log.job.0.n2",
    "an order to itself": "$KV.desired.node.n1",
    "an order to another": "$KV.desired.node.n2",
    "an order to all": "$KV.jobs.code.job",
    "a stored order, announced": f"{ROOT}.desired.node.n2",
    "a stored order to all, announced": f"{ROOT}.jobs.code.job",
    "code": "$O.code.M.x",
    "parts of code": "$O.code.C.x",
    "a request to the controller": f"{ROOT}.request.controller.ask",
    "a request to standby": f"{ROOT}.request.standby.ask",
    "a request to the analyzer": f"{ROOT}.request.analyzer.ask",
    "a ping of a service": f"{ROOT}.ping.controller",
    "a ping of a node": f"{ROOT}.ping.agent.n2",
    "a question about another node's holder": f"{ROOT}.holder.n2",
    "an answer to another": "_INBOX.agent-n2.x",
    "an answer to the operator": "_INBOX.operator.x",
    "a stream": "$JS.API.STREAM.CREATE.MINE",
    "a changed stream": "$JS.API.STREAM.UPDATE.EVIDENCE",
    "a deleted stream": "$JS.API.STREAM.DELETE.DECISIONS",
    "a purged stream": "$JS.API.STREAM.PURGE.EVIDENCE",
    "a deleted message": "$JS.API.STREAM.MSG.DELETE.EVIDENCE",
    "any message": "$JS.API.STREAM.MSG.GET.KV_desired",
    "all streams' names": "$JS.API.STREAM.NAMES",
    "a stream's state": "$JS.API.STREAM.INFO.KV_desired",
    "a consumer": "$JS.API.CONSUMER.CREATE.KV_desired.mine",
    "a consumer of its own key": "$JS.API.CONSUMER.CREATE.KV_desired.mine.$KV.desired.node.n1",
    "a durable consumer": "$JS.API.CONSUMER.DURABLE.CREATE.EVIDENCE.mine",
    "a deleted consumer": "$JS.API.CONSUMER.DELETE.EVIDENCE.controller",
    "a consumer's next message": "$JS.API.CONSUMER.MSG.NEXT.EVIDENCE.controller",
    "an acknowledgement": "$JS.ACK.EVIDENCE.controller.1.1.1.1.1",
    "another node's order": "$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.n2",
    "another node's copies": "$JS.API.DIRECT.GET.KV_desired.$KV.desired.backup.n2",
    "any order": "$JS.API.DIRECT.GET.KV_desired",
    "all orders": "$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.*",
    "any dead letter": "$JS.API.DIRECT.GET.DEADLETTERS",
    "the server": "$SYS.REQ.SERVER.PING",
    "the account": "$SYS.REQ.USER.INFO.x",
    "its own answers' way": "_R_.x.y",
}
"""What neither a node nor a reader may publish or ask."""

HIDDEN = {
    "everything": ">",
    "all of ours": f"{ROOT}.>",
    "another node's orders": f"{ROOT}.desired.node.n2",
    "all nodes' orders": f"{ROOT}.desired.node.*",
    "evidence": f"{ROOT}.evidence.>",
    "requests": f"{ROOT}.request.>",
    "pings of another node": f"{ROOT}.ping.agent.n2",
    "another node's heartbeats": f"{ROOT}.heartbeat.n2",
    "questions about another node's holder": f"{ROOT}.holder.n2",
    "answers to another node": "_INBOX.agent-n2.>",
    "all answers": "_INBOX.>",
    "keys": "$KV.>",
    "objects": "$O.>",
    "the API": "$JS.>",
    "mapped answers": "_R_.>",
}
"""What a node may not receive."""

ALLOWED_REQUESTS = {
    "its order": ("$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.n1", b""),
    "job orders": ("$JS.API.DIRECT.GET.KV_jobs", b'{"seq":1,"next_by_subj":"$KV.jobs.code.*"}'),
    "code": ("$JS.API.DIRECT.GET.OBJ_code", b'{"seq":1,"next_by_subj":"$O.code.M.*"}'),
    "evidence": (f"{ROOT}.evidence.process_exited.job.n1", b"mine"),
    "any evidence": ("$JS.API.DIRECT.GET.EVIDENCE", b'{"seq":1,"next_by_subj":">"}'),
    "a stream's state": (f"{ROOT}.streaminfo.DECISIONS", b""),
    "code requests": (f"{ROOT}.request.controller.code.n1", b"{}"),
}
TRICKS = (
    "$KV.desired.node.n2",
    "$KV.jobs.code.job",
    f"{ROOT}.decision.eviction.job.n2",
    f"{ROOT}.evidence.process_exited.job.n2",
    f"{ROOT}.desired.node.n2",
    f"{ROOT}.jobs.code.job",
    f"{ROOT}.request.controller.ask",
    f"{ROOT}.ping.controller",
    f"{ROOT}.heartbeat.n2",
    "$JS.API.STREAM.DELETE.DECISIONS",
    "$JS.API.STREAM.PURGE.EVIDENCE",
    "$O.code.M.x",
    "_INBOX.agent-n2.x",
)
"""Subjects for a reply: a service's answer to an allowed request must not land there."""


class Observer:
    """Everything in the services' account: what the streams hold, and what passes by."""

    def __init__(self, link: Link, passing: Inflow) -> None:
        self._link = link
        self._passing = passing

    async def stored(self) -> list[object]:
        """Return what every stream holds, and which streams there are."""
        names = msgspec.json.decode((await self._link.answer("$JS.API.STREAM.NAMES", b"")).data)["streams"]
        found: list[object] = [sorted(names)]
        for name in STREAMS:
            info = msgspec.json.decode((await self._link.answer(f"$JS.API.STREAM.INFO.{name}", b"")).data)
            found.append((name, info["config"], {**info["state"], "consumer_count": info["state"]["consumer_count"]}))
        return found

    async def passed(self) -> list[str]:
        """Return the subjects of what passed by since the last call."""
        await self._link.send("mark", b"")
        subjects: list[str] = []
        while (arrived := await self._passing.next(WITHIN_S)).subject != "mark":
            subjects.append(arrived.subject)
        return [subject for subject in subjects if not subject.startswith(("$JS", "_INBOX.operator", "_R_"))]


@pytest.fixture
async def observer(guarded: NatsServer, operator: NatsBus) -> AsyncIterator[Observer]:
    await operator.put(DESIRED_BUCKET, "node.n1", b"order of n1")
    await operator.put(DESIRED_BUCKET, "node.n2", b"order of n2")
    await operator.put(JOBS_BUCKET, "code.job", b"code")
    await operator.put_objects(CODE_BUCKET, {"x": b"def"})
    link = await Link.open(guarded.url, "observer")
    passing = await link.subscribe(">")
    yield Observer(link, passing)
    await link.close()


async def _attempt_all(link: Link, observer: Observer) -> None:
    for name, subject in FORGED.items():
        before = await observer.stored()
        await observer.passed()
        with pytest.raises(BusError, match="denies"):
            pytest.fail(f"{name}: {(await link.answer(subject, b'{}', timeout_s=WITHIN_S)).data!r}")
        assert await observer.passed() == [], name
        assert await observer.stored() == before, name


@pytest.mark.parametrize(
    "user", ["", "controller:wrong@", "agent-n1:wrong@", "agent-n2:agent-n1-for-tests@", "holdfast:for-tests@"]
)
async def test_nobody_comes_in_without_a_password_of_their_own(guarded: NatsServer, user: str) -> None:
    # The server may close the connection before its reason is read.
    with pytest.raises(BusError, match=r"refuses these credentials|no NATS server answers"):
        await Link.open(f"nats://{user}127.0.0.1:{guarded.port}", "nobody")


@pytest.mark.parametrize("user", ["agent-n1", "reader"])
async def test_what_a_user_may_not_publish_arrives_nowhere(guarded: NatsServer, observer: Observer, user: str) -> None:
    link = await Link.open(guarded.url_of(user), "attacker")
    try:
        await _attempt_all(link, observer)
    finally:
        await link.close()


@pytest.mark.parametrize("request_name", ALLOWED_REQUESTS)
async def test_an_answer_lands_nowhere_but_with_its_asker(
    guarded: NatsServer, observer: Observer, operator: NatsBus, request_name: str
) -> None:
    subject, body = ALLOWED_REQUESTS[request_name]
    served = asyncio.create_task(operator.serve(f"{ROOT}.request.controller.code.*", _echo))
    link = await Link.open(guarded.url_of("agent-n1"), "attacker")
    other = await connect(guarded.url_of("agent-n2"), "victim", makes_streams=False, timeout_s=WITHIN_S)
    try:
        await _until_served(operator)
        victim = await Link.open(guarded.url_of("agent-n2"), "victim")
        heard = [await victim.subscribe(subject) for subject in ("_INBOX.agent-n2.x", f"{ROOT}.heartbeat.n2")]
        async with aclosing(other.watch(DESIRED_BUCKET, "node.n2")) as orders:
            assert (await take_one(orders)).body == b"order of n2"
            await observer.passed()
            before = await observer.stored()
            for reply in TRICKS:
                await link.send(subject, body, reply=reply)
            # Answers come in order: after this one, all others are there.
            assert (await link.answer(subject, body)).data
            assert set(await observer.passed()) <= {subject}
            after = await observer.stored()
            own = 2 if "v1.evidence" in subject else 0
            assert after[own:] == before[own:]
            await operator.put(DESIRED_BUCKET, "node.n2", b"next order of n2")
            assert (await take_one(orders)).body == b"next order of n2"
        for inflow in heard:
            with pytest.raises(TimeoutError):
                pytest.fail(f"{(await inflow.next(0.01)).data!r}")
        await victim.close()
    finally:
        served.cancel()
        await link.close()
        await other.close()


async def _echo(body: bytes) -> bytes:
    return b'{"evil": true}'


async def _until_served(operator: NatsBus) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                await operator.request(f"{ROOT}.request.controller.code.n2", b"", 1.0)
            except BusError:
                await asyncio.sleep(0.01)
            else:
                return


async def test_a_node_receives_nothing_of_others(guarded: NatsServer, operator: NatsBus, observer: Observer) -> None:
    link = await Link.open(guarded.url_of("agent-n1"), "attacker")
    other = await Link.open(guarded.url_of("agent-n2"), "victim")
    try:
        spying = {name: await link.subscribe(subject) for name, subject in HIDDEN.items()}
        own = await link.subscribe(f"{ROOT}.desired.node.n1")
        await link.answer("$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.n1", b"")
        await other.answer("$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.n2", b"")
        await other.answer(f"{ROOT}.evidence.process_exited.job.n2", b"theirs")
        await operator.put(DESIRED_BUCKET, "node.n2", b"theirs")
        await operator.put(JOBS_BUCKET, "code.job", b"ours")
        await operator.put_objects(CODE_BUCKET, {"y": b"secret"})
        await operator.put(DESIRED_BUCKET, "node.n1", b"mine")
        assert (await own.next(WITHIN_S)).data == b"mine"
        for name, inflow in spying.items():
            with pytest.raises(TimeoutError):
                pytest.fail(f"{name}: {(await inflow.next(0.001)).subject}")
    finally:
        await link.close()
        await other.close()


async def test_a_node_answers_a_ping_once_and_only_its_asker(guarded: NatsServer, operator: NatsBus) -> None:
    link = await Link.open(guarded.url_of("agent-n1"), "attacker")
    try:
        pings = await link.subscribe(ping_subject("agent-n1"))
        await link.answer("$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.n1", b"")
        asking = asyncio.create_task(operator.request(ping_subject("agent-n1"), b"", WITHIN_S))
        ping = await pings.next(WITHIN_S)
        assert not ping.reply.startswith("_INBOX"), "the asker's own inbox is not shown"
        await link.send(ping.reply, b"ready")
        assert await asking == b"ready"
        with pytest.raises(BusError, match="denies"):
            await link.answer(ping.reply, b"again")
    finally:
        await link.close()


async def test_a_node_does_its_work_across_accounts(operator: NatsBus, node: NatsBus) -> None:
    await operator.put(DESIRED_BUCKET, "node.n1", b"1")
    job = unique("job")
    async with (
        aclosing(node.watch(DESIRED_BUCKET, "node.n1")) as orders,
        aclosing(node.watch(JOBS_BUCKET, "code.*")) as code,
    ):
        assert (await take_one(orders)).body == b"1"
        await operator.put(DESIRED_BUCKET, "node.n1", b"2")
        assert (await take_one(orders)).body == b"2"
        await operator.put(JOBS_BUCKET, f"code.{job}", b"3")
        async with asyncio.timeout(WITHIN_S):
            while (update := await take_one(code)).key != f"code.{job}":
                pass
        assert update.body == b"3"
    await operator.put_objects(CODE_BUCKET, {"big": b"z" * 300_000})
    assert await node.get_objects(CODE_BUCKET, ["big", "none"]) == {"big": b"z" * 300_000}
    async with aclosing(operator.consume("EVIDENCE", unique("c"), [f"{ROOT}.evidence.*.{job}.>"])) as received:
        await node.publish_all([message(f"{ROOT}.evidence.process_exited.{job}.n1", body) for body in (b"a", b"b")])
        assert [(await take_one(received)).body for _ in range(2)] == [b"a", b"b"]
    stored = await node.publish_all([message(f"{ROOT}.metric.steps_measured.{job}.n1", b"c", job)])
    gone = msgspec.structs.replace(stored[0], sequence=stored[0].sequence + 1)
    assert (await node.lost(stored[0], job), await node.lost(gone, job)) == (False, True)
    async with aclosing(operator.listen(f"{ROOT}.log.{job}.0.*")) as lines:
        next_line = asyncio.ensure_future(take_one(lines))
        await operator.get(DESIRED_BUCKET, "node.n1")
        await node.broadcast(f"{ROOT}.log.{job}.0.n1", b"line")
        assert await next_line == (f"{ROOT}.log.{job}.0.n1", b"line")


async def test_two_agents_of_one_node_notice_each_other(guarded: NatsServer, node: NatsBus) -> None:
    other = await connect(guarded.url_of("agent-n1"), "agent-n1", makes_streams=False, timeout_s=WITHIN_S)
    serving = asyncio.create_task(node.serve(holder_subject("n1"), _echo))
    try:
        async with asyncio.timeout(WITHIN_S), aclosing(other.listen(heartbeat_subject("n1"))) as beats:
            beat = asyncio.ensure_future(anext(beats))
            while True:
                try:
                    assert await other.request(holder_subject("n1"), b"", WITHIN_S) == await _echo(b"")
                    break
                except NoResponder:
                    await asyncio.sleep(0.01)
            while not beat.done():
                await node.broadcast(heartbeat_subject("n1"), b"here")
                await asyncio.sleep(0.01)
            assert (await beat)[1] == b"here"
    finally:
        serving.cancel()
        await other.close()


async def test_a_reader_receives_events_and_no_orders(guarded: NatsServer, operator: NatsBus, node: NatsBus) -> None:
    link = await Link.open(guarded.url_of("reader"), "reader")
    try:
        everything = await link.subscribe(f"{ROOT}.>")
        async with asyncio.timeout(WITHIN_S):
            await link._client.flush()
        await operator.put(DESIRED_BUCKET, "node.n1", b"secret")
        await operator.publish(message(f"{ROOT}.deadletter.controller", b"secret"))
        await node.publish(message(f"{ROOT}.evidence.process_exited.job.n1", b"fact"))
        await operator.publish(message(f"{ROOT}.decision.eviction.job.n1", b"decided"))
        arrived = [(await everything.next(WITHIN_S)).data for _ in range(2)]
        assert sorted(arrived) == [b"decided", b"fact"]
        with pytest.raises(TimeoutError):
            pytest.fail(f"{await everything.next(0.05)}")
    finally:
        await link.close()


@pytest.mark.parametrize("user", ["agent-n1", "reader"])
async def test_one_user_cannot_take_the_connections_of_all(guarded: NatsServer, user: str) -> None:
    async with AsyncExitStack() as held:

        async def connect_as(name: str) -> None:
            link = await Link.open(guarded.url_of(name), name)
            held.push_async_callback(link.close)

        async def connect_often() -> None:
            for _ in range(100):
                await connect_as(user)

        with pytest.raises(BusError):
            await connect_often()
        await connect_as("agent-n2")
        await connect_as("operator")


@pytest.mark.parametrize(("user", "subject"), [("agent-n1", heartbeat_subject("n1")), ("reader", f"{ROOT}.>")])
async def test_no_connection_has_the_server_send_a_message_a_hundred_times(
    guarded: NatsServer, operator: NatsBus, user: str, subject: str
) -> None:
    node = await Link.open(guarded.url_of("agent-n1"), "node")
    reader, writer = await asyncio.open_connection("127.0.0.1", guarded.port)
    try:
        login = {"user": user, "pass": guarded.passwords()[user], "verbose": False}
        writer.write(b"CONNECT " + msgspec.json.encode(login) + b"\r\n")
        writer.writelines(f"SUB {subject} {number}\r\n".encode() for number in range(100))
        await _answered(reader, writer)
        await node.send(heartbeat_subject("n1"), b"{}")
        # The server has sent all copies by then.
        await node.answer(f"{ROOT}.streaminfo.EVIDENCE", b"")
        assert 10 < (await _answered(reader, writer)).count(b"MSG ") <= 32
    finally:
        writer.close()
        await node.close()


async def _answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"PING\r\n")
    async with asyncio.timeout(WITHIN_S):
        return await reader.readuntil(b"PONG\r\n")
