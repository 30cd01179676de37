"""What ranks use, between two looks."""

from __future__ import annotations

import msgspec

from holdfast.events.parts.samples import RankTelemetry
from holdfast_agent.watching.rank_telemetry import ResourceUse, UsageSample, between, sent_bytes

NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0
  eth0: 100 1 0 0 0 0 0 0 4000 7 0 0 0 0 0 0
  eth1:5 1 0 0 0 0 0 0 500 7 0 0 0 0 0 0
"""
FIRST = UsageSample(
    pids={0: 10},
    at_s=100.0,
    used={0: ResourceUse(cpu_s=7.0, memory_bytes=1000, io_bytes=50)},
    sent_bytes=4000,
    collectives={0: 10},
)


def test_paces_are_per_second_and_memory_is_what_it_is() -> None:
    later = UsageSample(
        pids={0: 10},
        at_s=104.0,
        used={0: ResourceUse(cpu_s=13.0, memory_bytes=3000, io_bytes=450)},
        sent_bytes=4400,
        collectives={0: 50},
    )
    assert between(FIRST, later) == (
        RankTelemetry(
            rank=0,
            cpu_cores=1.5,
            memory_bytes=3000,
            io_bytes_per_s=100.0,
            sent_bytes_per_s=100.0,
            collectives_per_s=10.0,
        ),
    )


def test_what_may_not_be_read_is_not_known_and_a_worker_that_ended_is_no_negative_pace() -> None:
    later = UsageSample(
        pids={0: 10},
        at_s=104.0,
        used={
            0: ResourceUse(cpu_s=2.0, memory_bytes=3000, io_bytes=None),
            1: ResourceUse(cpu_s=1, memory_bytes=1, io_bytes=1),
        },
        sent_bytes=None,
        collectives={},
    )
    (only,) = between(FIRST, later)
    assert only.cpu_cores == 0.0 and only.rank == 0
    assert only.io_bytes_per_s is None and only.sent_bytes_per_s is None and only.collectives_per_s is None
    assert msgspec.json.decode(msgspec.json.encode(only), type=RankTelemetry) == only


def test_the_loopback_is_no_network() -> None:
    assert sent_bytes(NET_DEV) == 4500
    assert sent_bytes("\n\n    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0\n") is None
