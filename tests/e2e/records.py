"""Whether the record is whole: no event missing, none twice, each incident opened and closed once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any

import nats.errors
from cluster import Cluster
from job import Job
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from waiting import NotYet

from holdfast.bus.client import HardenedClient
from holdfast.events import EventClass
from holdfast.subjects import ROOT

STREAMS = ("EVIDENCE", "DECISIONS", "METRICS")
OUTBOXES = ("controller", "analyzer", "standby", "ckpt")


def check_record(cluster: Cluster, *jobs: Job) -> None:
    """Wait until everything said is recorded, then compare the record with what the streams and outboxes hold."""
    cluster.until("everything said is on the bus and handled", lambda: _settled(cluster))
    # Nodes and services go on speaking: what is said by now must be recorded, be it a moment later.
    said = _on_the_bus(cluster) | _in_outboxes(cluster) | _in_spools(cluster)
    cluster.until("everything said is recorded", lambda: _recorded(cluster, said))
    for job in jobs:
        check_incidents(cluster, job)
        check_starts(cluster, job)


def _in_outboxes(cluster: Cluster) -> set[str]:
    said = (
        row
        for service in OUTBOXES
        for row in cluster.query(f"select headers->>'ce-id' as event, subject from {service}.outbox")
    )
    return {row["event"] for row in said if _is_event(row["subject"])}


def _in_spools(cluster: Cluster) -> set[str]:
    said: set[str] = set()
    for node in cluster.info.nodes:
        with closing(sqlite3.connect(f"file:{cluster.layout.node(node) / 'agent.db'}?mode=ro", uri=True)) as spool:
            rows = spool.execute("select subject, headers from kept where lane = 0").fetchall()
        said |= {json.loads(headers)["ce-id"] for subject, headers in rows if _is_event(subject)}
    return said


def _recorded(cluster: Cluster, said: set[str]) -> bool:
    recorded = Counter(str(row["id"]) for row in cluster.query("select id from historian.events"))
    twice = [event for event, count in recorded.items() if count > 1]
    assert not twice, f"recorded twice: {twice}"
    if missing := said - recorded.keys():
        raise NotYet(f"said and not recorded: {missing}")
    return True


def check_incidents(cluster: Cluster, job: Job) -> None:
    """Each incident of the job was opened once and closed once, in the truth and in the record."""
    truth = cluster.incidents(job)
    # A fault that nodes share is an incident of its own.
    opened = cluster.events(job, "incident_opened") + cluster.events(job, "shared_fault_found")
    closed = cluster.events(job, "incident_closed") + cluster.events(job, "shared_fault_over")
    assert [row["closed_at"] is not None for row in truth] == [True] * len(truth), truth
    assert sorted(event["incident"] for event in opened) == sorted(row["key"] for row in truth)
    assert sorted(event["incident"] for event in closed) == sorted(row["key"] for row in truth)


def check_starts(cluster: Cluster, job: Job) -> None:
    """Generations only grow, and each was started at most once on a node."""
    decided = [event["generation"] for event in cluster.events(job, "generation_started")]
    assert decided == sorted(set(decided)), f"generations of {job.name}: {decided}"
    starts = Counter(
        (event["node"], event["generation"])
        for event in cluster.events(job, "ranks_started")
        if not event.get("adopted")
    )
    assert not starts or max(starts.values()) == 1, starts


def check_steps(cluster: Cluster, job: Job) -> None:
    """Every step that a rank completed is in the record, once. Holds while the job's agents live."""
    cluster.until("every step is recorded", lambda: _steps_are_recorded(cluster, job))


def _steps_are_recorded(cluster: Cluster, job: Job) -> bool:
    rows = cluster.query("select generation, rank, step from historian.steps where job = $1", job.name)
    recorded = Counter((row["generation"], row["rank"], row["step"]) for row in rows)
    twice = [step for step, count in recorded.items() if count > 1]
    assert not twice, f"steps recorded twice: {twice}"
    trained = {(note.generation, rank, note.step) for rank in range(job.world_size) for note in job.trained(rank)}
    if missing := trained - recorded.keys():
        raise NotYet(f"steps trained and not recorded: {sorted(missing)}")
    return True


def phases(cluster: Cluster, incident: str) -> dict[str, Any]:
    """The durations of the incident's last start, as the historian's view tells them."""
    rows = cluster.query(
        "select detect_s, decide_s, stop_s, start_s, first_step_s, total_s from historian.generations "
        "where incident = $1::text::uuid order by generation desc limit 1",
        incident,
    )
    return rows[0] if rows else {}


def _settled(cluster: Cluster) -> bool:
    for node in cluster.info.nodes:
        with closing(sqlite3.connect(f"file:{cluster.layout.node(node) / 'agent.db'}?mode=ro", uri=True)) as spool:
            (waiting,) = spool.execute("select count(*) from outbox").fetchone()
        if waiting:
            raise NotYet(f"{waiting} messages wait in the spool of {node}")
    for service in OUTBOXES:
        (row,) = cluster.query(f"select count(*) as waiting from {service}.outbox where published_at is null")
        if row["waiting"]:
            raise NotYet(f"{row['waiting']} messages wait in the outbox of the {service}")
    return asyncio.run(_handled(cluster.info.nats_url))


async def _handled(url: str) -> bool:
    client = await _connect(url)
    try:
        stream = client.jetstream()
        for name in STREAMS:
            for consumer in await stream.consumers_info(name):
                if consumer.config.durable_name and (consumer.num_pending or consumer.num_ack_pending):
                    raise NotYet(f"{name}/{consumer.name}: {consumer.num_pending} and {consumer.num_ack_pending} wait")
    except nats.errors.Error as error:
        raise NotYet(f"the bus does not answer: {error!r}") from error
    finally:
        await client.close()
    return True


def _on_the_bus(cluster: Cluster) -> set[str]:
    """The ids of all events in the streams: Holdfast's own messages carry theirs as a CloudEvents attribute."""
    return asyncio.run(_ids(cluster.info.nats_url))


async def _ids(url: str) -> set[str]:
    client = await _connect(url)
    ids: set[str] = set()
    try:
        stream = client.jetstream()
        for name in STREAMS:
            left = (await stream.stream_info(name)).state.messages
            config = ConsumerConfig(
                deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE, headers_only=True, inactive_threshold=30
            )
            reader = await stream.pull_subscribe("", stream=name, config=config)
            while left > 0:
                messages = await reader.fetch(min(left, 500), timeout=10)
                left -= len(messages)
                headers = [message.headers for message in messages if message.headers]
                ids |= {header["ce-id"] for header in headers if "ce-id" in header}
    finally:
        await client.close()
    return ids


async def _connect(url: str) -> HardenedClient:
    async def silent(_: Exception) -> None:
        """A cluster whose bus is being killed is asked again."""

    client = HardenedClient()
    try:
        await client.connect(url, allow_reconnect=False, connect_timeout=5, error_cb=silent)
    except (OSError, nats.errors.Error) as error:
        raise NotYet(f"the bus is away: {error!r}") from error
    return client


def _is_event(subject: str) -> bool:
    return subject.startswith(tuple(f"{ROOT}.{event_class}." for event_class in EventClass))


def timeline(cluster: Cluster, incident: str) -> list[str]:
    """What `holdfast show --json` tells of an incident, by event type."""
    told = json.loads(cluster.command("show", incident, "--json").stdout)
    return [entry["type"] for entry in told["timeline"]]
