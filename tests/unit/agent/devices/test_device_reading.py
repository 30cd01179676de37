"""The activity of devices and ports between two readings."""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.events.parts.devices import DeviceActivity, NodeActivity, PortActivity
from holdfast.node.machine import Machine
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.devices.asked_process import AskedProcess
from holdfast_agent.devices.device_reading import DeviceReading, activity_of, growth, of_rank, together
from holdfast_agent.devices.meters import ABSENT_S, HANGS_S, RESTS_S, Meter, NodeMeters, meters_of_node
from holdfast_agent.devices.rdma_ports import RdmaPorts
from holdfast_agent.inspections.node_hardware import Gpus

FIELD = os.environ.get("HOLDFAST_FIELD_DATA", "")
FIRST, SECOND = "0000:3b:00", "0000:3c:00"
BOTH = frozenset({FIRST, SECOND})
NONE = Gpus(of_machine=frozenset(), own=frozenset(), are_divided=False)


def test_a_counter_grows_or_was_reset_and_what_is_missing_is_no_zero() -> None:
    assert growth(1000, 4000, 2.0) == 1500.0
    assert growth(1000, 1000, 2.0) == 0.0
    assert growth(4000, 1000, 2.0) is None
    assert growth(None, 1000, 2.0) is None and growth(1000, None, 2.0) is None and growth(0, 1, 0.0) is None


def test_activity_is_from_counters_unless_the_library_has_a_rate() -> None:
    before = DeviceReading(device=FIRST, counters={"link_sent_bytes_per_s": 1000, "link_received_bytes_per_s": 9000})
    now = DeviceReading(
        device=FIRST,
        rates={"busy_share": 0.5},
        counters={"link_sent_bytes_per_s": 5000, "link_received_bytes_per_s": 100},
    )
    assert activity_of(now, before, 4.0) == DeviceActivity(
        device=FIRST, busy_share=0.5, link_sent_bytes_per_s=1000.0, link_received_bytes_per_s=None
    )
    assert activity_of(now, None, 4.0) == DeviceActivity(device=FIRST, busy_share=0.5)
    own = DeviceReading(device=FIRST, rates={"link_sent_bytes_per_s": 7.0}, counters={"link_sent_bytes_per_s": 5000})
    assert activity_of(own, before, 4.0).link_sent_bytes_per_s == 7.0


def test_shares_and_bytes_are_as_exact_as_they_are_of_use() -> None:
    now = DeviceReading(device=FIRST, rates={"tensor_share": 0.123456789}, counters={"link_sent_bytes_per_s": 1000})
    before = DeviceReading(device=FIRST, counters={"link_sent_bytes_per_s": 0})
    activity = activity_of(now, before, 3.0)
    assert (activity.tensor_share, activity.link_sent_bytes_per_s) == (0.12346, 333.0)


def test_another_source_fills_what_the_first_lacks() -> None:
    first = DeviceActivity(device=FIRST, rank=3, busy_share=0.0)
    second = DeviceActivity(device=FIRST, busy_share=0.9, tensor_share=0.4)
    assert together(first, second) == DeviceActivity(device=FIRST, rank=3, busy_share=0.0, tensor_share=0.4)


def test_the_rank_of_a_device_is_that_of_its_processes_if_there_is_one() -> None:
    activity = DeviceActivity(device=FIRST)
    assert of_rank(activity, (11, 12, 99), {11: 4, 12: 4, 13: 5}).rank == 4
    assert of_rank(activity, (11, 13), {11: 4, 12: 4, 13: 5}).rank is None
    assert of_rank(activity, (99,), {11: 4}).rank is None


def ports_at(folder: Path, words: Mapping[str, tuple[int, int]]) -> None:
    for port, (sent, received) in words.items():
        counters = folder / "class/infiniband" / port.replace(":", "/ports/") / "counters"
        counters.mkdir(parents=True, exist_ok=True)
        (counters / "port_xmit_data").write_text(f"{sent}\n")
        (counters / "port_rcv_data").write_text(f"{received}\n")


def test_ports_count_words_of_four_bytes_and_a_full_or_reset_counter_tells_nothing(tmp_path: Path) -> None:
    ports, full = RdmaPorts(Machine(sys=tmp_path)), (1 << 32) - 1
    assert ports.since_last(5.0) == ()
    ports_at(tmp_path, {"mlx5_0:1": (100, 100), "mlx5_1:1": (100, 100), "mlx5_2:1": (full, 0)})
    assert ports.since_last(5.0) == ()
    ports_at(tmp_path, {"mlx5_0:1": (350, 100), "mlx5_1:1": (50, 600), "mlx5_2:1": (full, 5)})
    assert ports.since_last(5.0) == (
        PortActivity(port="mlx5_0:1", sent_bytes_per_s=200.0, received_bytes_per_s=0.0),
        PortActivity(port="mlx5_1:1", sent_bytes_per_s=None, received_bytes_per_s=400.0),
        PortActivity(port="mlx5_2:1", sent_bytes_per_s=None, received_bytes_per_s=4.0),
    )


@pytest.mark.skipif(not FIELD, reason="HOLDFAST_FIELD_DATA names no folder with /sys/class/infiniband of a machine")
def test_ports_of_a_machine_of_the_field_are_read(tmp_path: Path) -> None:
    with tarfile.open(Path(FIELD) / "nic" / "sys-class-infiniband-h100.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    (tmp_path / "class").mkdir()
    folder.rename(tmp_path / "class/infiniband")
    ports = RdmaPorts(Machine(sys=tmp_path))
    ports.since_last(5.0)
    read = ports.since_last(5.0)
    assert len(read) > 4 and all(port.sent_bytes_per_s == port.received_bytes_per_s == 0.0 for port in read)


class Library(AskedProcess):
    """A library whose answers are set."""

    def __init__(self, answer: str = '{"failed": "library", "why": "not there"}') -> None:
        super().__init__(("no such program",), "a stand-in")
        self.answer = answer
        self.asked = 0

    def line(self, limit_s: float) -> bytes:
        self.asked += 1
        return self.answer.encode()


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def report(**rates: float) -> str:
    listed = ", ".join(f'"{name}": {rate}' for name, rate in rates.items())
    return f'{{"devices": [{{"device": "{FIRST}", "pids": [11], "rates": {{{listed}}}}}]}}'


def measured(meters: NodeMeters, ranks: Mapping[int, int]) -> NodeActivity:
    found = asyncio.run(meters.measure(ranks, {pid: rank for rank, pid in ranks.items()}))
    assert found is not None
    return found


def meters_with(*libraries: Library, clock: Time, tmp_path: Path, own: frozenset[str] = BOTH) -> NodeMeters:
    gpus = Gpus(of_machine=BOTH, own=own, are_divided=own != BOTH)
    return NodeMeters(gpus, Machine(sys=tmp_path), meters=tuple(Meter(it, clock) for it in libraries), clock=clock)


def test_peaks_are_those_of_the_present_ranks_and_of_earlier_measurements(tmp_path: Path) -> None:
    clock, library = Time(), Library(report(busy_share=0.9, tensor_share=0.4))
    meters = meters_with(library, clock=clock, tmp_path=tmp_path)
    assert measured(meters, {0: 11}).peak_devices == ()
    clock.now_s += 5.0
    library.answer = report(busy_share=0.0, tensor_share=0.0)
    second = measured(meters, {0: 11})
    assert second.devices == (DeviceActivity(device=FIRST, rank=0, busy_share=0.0, tensor_share=0.0),)
    assert [(peak.busy_share, peak.tensor_share) for peak in second.peak_devices] == [(0.9, 0.4)]
    assert second.interval_s == 5.0
    # Other ranks may do other work.
    assert measured(meters, {0: 12}).peak_devices == ()


def test_a_library_that_is_not_there_costs_one_question_in_ten_minutes(tmp_path: Path) -> None:
    clock, library = Time(), Library()
    meters = meters_with(library, clock=clock, tmp_path=tmp_path)
    for _ in range(5):
        assert measured(meters, {0: 11}).devices == ()
        clock.now_s += RESTS_S
    assert library.asked == 1
    clock.now_s += ABSENT_S
    library.answer = report(busy_share=0.5)
    assert [it.busy_share for it in measured(meters, {0: 11}).devices] == [0.5]


def test_dcgm_is_asked_only_for_what_nvml_lacks(tmp_path: Path) -> None:
    clock = Time()
    nvml, dcgm = Library(report(busy_share=0.9, tensor_share=0.1)), Library(report(busy_share=0.8, tensor_share=0.4))
    meters = meters_with(nvml, dcgm, clock=clock, tmp_path=tmp_path)
    assert [it.tensor_share for it in measured(meters, {0: 11}).devices] == [0.1] and dcgm.asked == 0
    nvml.answer = report(busy_share=0.9)
    assert [(it.busy_share, it.tensor_share) for it in measured(meters, {0: 11}).devices] == [(0.9, 0.4)]


def test_an_agent_that_ends_waits_for_no_library(tmp_path: Path) -> None:
    async def closed() -> NodeActivity | None:
        silent = Meter(AskedProcess(("sleep", "600"), "a stand-in"))
        gpus = Gpus(of_machine=BOTH, own=BOTH, are_divided=False)
        meters = NodeMeters(gpus, Machine(sys=tmp_path), meters=(silent,))
        measuring = asyncio.create_task(meters.measure({0: 11}, {}))
        while silent._process._process is None:  # noqa: ASYNC110 - a thread starts it
            await asyncio.sleep(0.001)
        meters.close()
        return await measuring

    found = asyncio.run(asyncio.wait_for(closed(), HANGS_S))
    assert found is not None and found.devices == ()


def test_devices_are_not_measured_where_settings_say_so() -> None:
    assert meters_of_node(InspectionPolicy(), TelemetryPolicy(devices=False)) is None
    assert meters_of_node(InspectionPolicy(), TelemetryPolicy()) is not None


def test_a_node_tells_of_its_own_devices_and_without_any_asks_no_library(tmp_path: Path) -> None:
    clock, library = Time(), Library(report(busy_share=0.5))
    others = meters_with(library, clock=clock, tmp_path=tmp_path, own=frozenset({SECOND}))
    assert measured(others, {0: 11}).devices == () and library.asked == 1
    without = NodeMeters(NONE, Machine(sys=tmp_path), meters=(Meter(library, clock),))
    assert measured(without, {0: 11}).devices == () and library.asked == 1
