"""Reading of the bus for `holdfast doctor`, within a limit of time. Nothing is created or changed there."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from datetime import datetime

import msgspec

from holdfast.bus import BusError, BusUnavailable, Message, StreamPosition
from holdfast.bus.link import Link
from holdfast.bus.streams import message_lost, newest_on, stream_state
from holdfast.bus.survey import ConsumerSurvey, StreamSurvey, survey_consumers, survey_stream
from holdfast.cli.connect.bus import require_addresses
from holdfast.cli.connect.command_tls import network_policy
from holdfast.cli.doctor.facts import SERVICES, BusFacts, Consumer, DeadLetters, PublishedMessage, Stream
from holdfast.cli.doctor.reading_database import Timed
from holdfast.clock import Now
from holdfast.decoding import UNREADABLE
from holdfast.subjects import ALL_HEARTBEATS, DEAD_LETTER_STREAM, FLOODS, STREAMS, dead_letter_subject, ping_subject

CONNECT_S_MAX = 5.0
BUS_S_MAX = 15.0
PING_S_MAX = 4.0
LISTEN_S = 2.5
"""Time for heartbeats, one a second, and between two looks at consumers."""

_IN_MEMORY = frozenset(spec.name for spec in STREAMS if spec.in_memory)


class _Heartbeat(msgspec.Struct, frozen=True):
    node: str
    at: datetime


async def read_bus(
    url: str, nodes: Iterable[str], published: Sequence[PublishedMessage], now: Now, *, listen: bool
) -> tuple[BusFacts | None, str]:
    """Return what the bus shows, or None and the reason. Without `listen` clocks of nodes and the progress of consumers
    are not looked at, which takes `LISTEN_S`. Raises ClickException if `url` is not an address.
    """
    require_addresses(url)
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            link = await _connected(url)
    except TimeoutError:
        return None, f"no NATS server answers within {CONNECT_S_MAX:g} s"
    except BusError as error:
        return None, str(error)
    try:
        async with asyncio.timeout(BUS_S_MAX):
            return await _read(link, nodes, published, now, listen=listen), ""
    except TimeoutError:
        return None, f"NATS at {link.address} does not answer within {BUS_S_MAX:g} s"
    except BusError as error:
        return None, str(error)
    finally:
        await link.close()


async def _connected(url: str) -> Link:
    network = network_policy()
    try:
        return await Link.open(url, "holdfast doctor", network)
    except BusUnavailable:
        return await Link.open(url, "holdfast doctor", network)  # A machine under load may have been late once.


async def _read(
    link: Link, nodes: Iterable[str], published: Sequence[PublishedMessage], now: Now, *, listen: bool
) -> BusFacts:
    timed = Timed(now)
    first = await _streams(link)
    reference = next(iter(first.values()), None)
    ahead_s = timed.ahead_s(reference.at) if reference else 0.0
    before = await _consumers(link, first)
    answering = _answering(link, [*SERVICES, *(f"agent-{node}" for node in nodes)])
    listening = _nodes_ahead_s(link, now) if listen else _nothing()
    answered, nodes_ahead_s = await asyncio.gather(answering, listening)
    after = await _consumers(link, first) if listen else before
    # After the consumers: what they have acknowledged meanwhile is then in the streams.
    streams = await _streams(link)
    return BusFacts(
        ahead_s=ahead_s,
        streams=tuple(Stream(name=it.name, last_sequence=it.last_sequence) for it in streams.values()),
        missing_streams=tuple(spec.name for spec in STREAMS if spec.name not in streams),
        consumers=_compared(before, after, reference, listen=listen),
        dead_letters=await _dead_letters(link, streams.get(DEAD_LETTER_STREAM)),
        flood=await _flood(link, streams.get(DEAD_LETTER_STREAM)),
        answering=answered,
        lost_messages=await _lost(link, published, streams),
        nodes_ahead_s=nodes_ahead_s,
    )


async def _streams(link: Link) -> dict[str, StreamSurvey]:
    found = [await survey_stream(link, spec.name) for spec in STREAMS]
    return {stream.name: stream for stream in found if stream is not None}


async def _nothing() -> dict[str, float]:
    return {}


async def _consumers(link: Link, streams: Iterable[str]) -> dict[tuple[str, str], ConsumerSurvey]:
    return {
        (stream, consumer.name): consumer
        for stream in streams
        for consumer in await survey_consumers(link, stream)
        if consumer.name in SERVICES
    }


def _compared(
    before: dict[tuple[str, str], ConsumerSurvey],
    after: dict[tuple[str, str], ConsumerSurvey],
    reference: StreamSurvey | None,
    *,
    listen: bool,
) -> tuple[Consumer, ...]:
    if reference is None:
        return ()
    return tuple(
        Consumer(
            stream=now.stream,
            service=now.name,
            # What arrived between the two looks may be on its way.
            waiting=min(now.waiting, then.waiting),
            acknowledged=now.acknowledged,
            idle_s=max(0.0, (reference.at - now.last_at).total_seconds()),
            has_moved=not listen or now.last_at != then.last_at or now.acknowledged != then.acknowledged,
        )
        for place, now in after.items()
        if (then := before.get(place)) is not None
    )


async def _answering(link: Link, processes: Iterable[str]) -> frozenset[str]:
    async def answers(process: str) -> str | None:
        try:
            await link.answer(ping_subject(process), b"", timeout_s=PING_S_MAX)
        except BusUnavailable:
            return None
        except BusError:
            return None  # No process serves this subject.
        return process

    found = await asyncio.gather(*(answers(process) for process in processes))
    return frozenset(process for process in found if process is not None)


async def _nodes_ahead_s(link: Link, now: Now) -> dict[str, float]:
    """Return the time by which each node's clock is ahead. A heartbeat that was long under way makes a clock look late:
    of several the one that looks earliest counts.
    """
    found: dict[str, float] = {}
    inflow = await link.subscribe(ALL_HEARTBEATS)
    try:
        async with asyncio.timeout(LISTEN_S):
            while True:
                message = await inflow.next()
                try:
                    beat = msgspec.json.decode(message.data, type=_Heartbeat)
                    ahead_s = (beat.at - now()).total_seconds()
                except (*UNREADABLE, TypeError):
                    continue  # Any client may send one; a time without a zone cannot be compared.
                found[beat.node] = max(ahead_s, found.get(beat.node, ahead_s))
    except TimeoutError:
        return found
    finally:
        await inflow.close()


async def _dead_letters(link: Link, stream: StreamSurvey | None) -> DeadLetters | None:
    if stream is None or not stream.messages:
        return None
    state = await stream_state(link, DEAD_LETTER_STREAM)
    if state.newest is None or state.newest_at is None:
        return None
    return _letter(state.newest, state.messages, stream.at, state.newest_at)


async def _flood(link: Link, stream: StreamSurvey | None) -> DeadLetters | None:
    if stream is None:
        return None
    newest = await newest_on(link, stream.name, dead_letter_subject(FLOODS))
    return None if newest is None else _letter(newest.message, 1, stream.at, newest.at)


def _letter(newest: Message, count: int, now: datetime, newest_at: datetime) -> DeadLetters:
    return DeadLetters(
        count=count,
        newest_s=max(0.0, (now - newest_at).total_seconds()),
        consumer=newest.subject.rpartition(".")[2],
        subject=newest.headers.get("Holdfast-Subject", ""),
        error=newest.headers.get("Holdfast-Error", ""),
    )


async def _lost(
    link: Link, published: Sequence[PublishedMessage], streams: Container[str]
) -> tuple[PublishedMessage, ...]:
    return tuple(
        [
            message
            for message in published
            if message.stream in streams
            and message.stream not in _IN_MEMORY
            and await message_lost(link, StreamPosition(stream=message.stream, sequence=message.sequence), message.id)
        ]
    )
