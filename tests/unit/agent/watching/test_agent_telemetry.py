"""What ranks use, between two looks."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import msgspec
import pytest

from holdfast.events.parts.samples import RankTelemetry
from holdfast_agent.watching.rank_telemetry import ResourceUse, UsageSample, between, rdma_sent_bytes, sent_bytes

FIELD = os.environ.get("HOLDFAST_FIELD_DATA", "")

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


def test_what_rdma_cards_send_is_counted_over_all_ports(tmp_path: Path) -> None:
    assert rdma_sent_bytes(tmp_path / "no such folder") is None
    for port, words in (("mlx5_0/ports/1", "1000"), ("mlx5_1/ports/1", "2000"), ("mlx5_1/ports/2", "")):
        counters = tmp_path / port / "counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").write_text(f"{words}\n")
    assert rdma_sent_bytes(tmp_path) == 4 * 3000


@pytest.mark.skipif(not FIELD, reason="HOLDFAST_FIELD_DATA names no folder with /sys/class/infiniband of a machine")
def test_a_machine_of_the_field_has_sent_petabytes(tmp_path: Path) -> None:
    with tarfile.open(Path(FIELD) / "nic" / "sys-class-infiniband-h100.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    sent = rdma_sent_bytes(folder)
    assert sent is not None and 1e15 < sent < 1e17
