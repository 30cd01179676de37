"""`python -m holdfast_agent.devices.dcgm_meter ADDRESS`: as `nvml_meter`, by DCGM's host engine.

It has profiling fields of GPUs before Hopper, whose tensor cores NVML does not measure.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.pci import pci_address
from holdfast_agent.devices.answering import serve
from holdfast_agent.devices.dcgm_library import Dcgm, DcgmError
from holdfast_agent.devices.device_reading import DeviceReading, MeterReport

PCI_BUS_ID: Final = 57
BUSY, TENSOR = 1001, 1004
PCIE_SENT, PCIE_RECEIVED, LINK_SENT, LINK_RECEIVED = 1009, 1010, 1011, 1012
"""DCGM_FI_DEV_PCI_BUSID, and DCGM_FI_PROF_ GR_ENGINE_ACTIVE, PIPE_TENSOR_ACTIVE (shares), PCIE_TX_BYTES, PCIE_RX_BYTES,
NVLINK_TX_BYTES and NVLINK_RX_BYTES (per second)."""

FIELDS: Final = (PCI_BUS_ID, BUSY, TENSOR, PCIE_SENT, PCIE_RECEIVED, LINK_SENT, LINK_RECEIVED)
EVERY_S: Final = 1.0
"""Interval at which the host engine updates them."""

OLD_S: Final = 10.0
"""An older value is no measurement of now: the engine pauses while a profiler has the counters."""


def begin_at(address: str) -> Callable[[], MeterReport] | MeterReport:
    """Return what reports from now on, or what is missing."""
    try:
        dcgm = Dcgm(address, FIELDS, EVERY_S, OLD_S, f"holdfast-{os.getpid()}")
    except OSError as error:
        return MeterReport(failed="library", why=str(error))
    except DcgmError as error:
        return MeterReport(failed="library", why=f"{error} (host engine at {address})")
    return lambda: _report(dcgm)


def _report(dcgm: Dcgm) -> MeterReport:
    since_us = int((time.time() - OLD_S) * 1e6)
    try:
        # The address is read once by the engine and grows old.
        known = [(dcgm.newest(gpu, 0).get(PCI_BUS_ID), dcgm.newest(gpu, since_us)) for gpu in dcgm.gpus()]
    except DcgmError as error:
        return MeterReport(failed="driver", why=str(error))
    readings = (_reading(bus, values) for bus, values in known)
    return MeterReport(devices=tuple(reading for reading in readings if reading is not None))


def _reading(bus: object, values: Mapping[int, float | str]) -> DeviceReading | None:
    if not isinstance(bus, str):
        return None
    numbers = {field: value for field, value in values.items() if isinstance(value, float)}
    pcie = [numbers[field] for field in (PCIE_SENT, PCIE_RECEIVED) if field in numbers]
    rates = {
        "busy_share": numbers.get(BUSY),
        "tensor_share": numbers.get(TENSOR),
        "pcie_bytes_per_s": sum(pcie) if len(pcie) == 2 else None,
        "link_sent_bytes_per_s": numbers.get(LINK_SENT),
        "link_received_bytes_per_s": numbers.get(LINK_RECEIVED),
    }
    try:
        device = pci_address(bus)
    except ValueError:
        return None
    return DeviceReading(device=device, rates={name: rate for name, rate in rates.items() if rate is not None})


if __name__ == "__main__":
    serve(lambda: begin_at(sys.argv[1]))
