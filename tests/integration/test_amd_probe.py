"""The process that asks amdsmi, with a module of its form in the library's place: no GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.node_hardware import Gpus, gpus_of
from holdfast_agent.inspections.sources.gpu import GpuInspection
from tests.scenes.inspected_machine import machine_at

pytestmark = pytest.mark.integration

FIRST, SECOND = "0000:c1:00", "0000:c6:00"
AMDSMI = """
import enum, json, os
class AmdSmiException(Exception): pass
class AmdSmiLibraryException(AmdSmiException): pass
class AmdSmiTemperatureType(enum.IntEnum):
    EDGE, HOTSPOT = 0, 1
class AmdSmiTemperatureMetric(enum.IntEnum):
    CURRENT = 0
def told(handle, name, otherwise):
    value = json.load(open(os.environ["FAKE_AMDSMI"])).get(f"{handle}.{name}", otherwise)
    if value == "error":
        raise AmdSmiLibraryException(name)
    return value
def amdsmi_init(): told("all", "init", 0)
def amdsmi_get_processor_handles(): return list(range(told("all", "count", 2)))
def amdsmi_get_gpu_device_bdf(handle): return told(handle, "bdf", ("0000:c1:00.0", "0000:c6:00.0")[handle])
def amdsmi_get_gpu_device_uuid(handle): return f"uuid-{handle}"
def amdsmi_get_temp_metric(handle, sensor, metric):
    assert (sensor, metric) == (AmdSmiTemperatureType.HOTSPOT, AmdSmiTemperatureMetric.CURRENT)
    return told(handle, "temperature", 50)
def amdsmi_get_gpu_total_ecc_count(handle):
    return {"correctable_count": 9, "uncorrectable_count": told(handle, "ecc", 0)}
def amdsmi_get_pcie_info(handle):
    moving = {"pcie_width": told(handle, "width", 16), "pcie_replay_count": "N/A"}
    return {"pcie_static": {"max_pcie_width": 16}, "pcie_metric": moving}
def amdsmi_get_gpu_bad_page_info(handle):
    return [{"value": 0, "page_address": 0, "page_size": 4096, "status": it} for it in told(handle, "pages", [])]
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that says how the GPUs are."""
    (tmp_path / "amdsmi.py").write_text(AMDSMI)
    path = tmp_path / "state"
    path.write_text("{}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAKE_AMDSMI", str(path))
    return path


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    """Two accelerators, and a display of the same vendor."""
    kinds = {"c1": "0x120000", "c6": "0x038000", "05": "0x030000"}
    files = {f"sys/bus/pci/devices/0000:{bus}:00.0/class": kind for bus, kind in kinds.items()}
    files |= {f"sys/bus/pci/devices/0000:{bus}:00.0/vendor": "0x1002" for bus in kinds}
    machine, policy = machine_at(tmp_path / "machine", files), InspectionPolicy()
    some = gpus_of(machine, policy, {"HIP_VISIBLE_DEVICES": "1"})
    assert some.own == frozenset({SECOND}) and some.are_divided
    return gpus_of(machine, policy, {})


@pytest.fixture
def inspection(gpus: Gpus) -> Iterator[GpuInspection]:
    it = GpuInspection(InspectionPolicy(gpu_hang_s=20.0), gpus)
    yield it
    it.close()


def test_amds_gpus_are_read(state: Path, inspection: GpuInspection) -> None:
    def told() -> list[tuple[str, str, str]]:
        return [(it.device, it.kind, it.confidence) for it in inspection.read().troubles]

    assert inspection.source == "AMD SMI"
    state.write_text('{"all.init": "error"}')
    assert "load the amdgpu driver" in inspection.read().unread[""]
    # It is loaded later.
    state.write_text("{}")
    reading = inspection.read()
    assert reading.seen == {FIRST: "50 degrees, PCIe x16", SECOND: "50 degrees, PCIe x16"} and not reading.troubles
    state.write_text('{"0.temperature": 95, "1.ecc": 2, "1.width": 8, "1.pages": [0, 1]}')
    assert told() == [
        (FIRST, "temperature", "hint"),
        (SECOND, "ecc", "evict"),
        (SECOND, "remap", "hint"),
        (SECOND, "pcie width", "hint"),
    ]
    state.write_text('{"1.ecc": 2, "1.pages": [2], "0.temperature": "error", "0.width": "N/A"}')
    assert told() == [(SECOND, "remap", "evict")]
    state.write_text('{"all.count": 1, "0.bdf": "error"}')
    reading = inspection.read()
    assert "AMD SMI has no data on it" in reading.unread[FIRST]
    assert [(it.device, it.kind) for it in reading.troubles] == [(SECOND, "lost")]


def test_without_the_library_the_reason_is_shown(state: Path, inspection: GpuInspection) -> None:
    state.with_name("amdsmi.py").write_text("raise KeyError('ROCM_PATH')")
    assert "amdsmi: 'ROCM_PATH': install the amdgpu driver" in inspection.read().unread[""]
