"""What follows from what NVML says of the GPUs."""

from pathlib import Path

import msgspec
import pytest

from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.check import Reading
from holdfast_agent.inspections.node_hardware import Gpus, gpus_of
from holdfast_agent.inspections.sources.dcgm import health_of
from holdfast_agent.inspections.sources.gpu_report import GpuReport, GpuState, Known, reading_of
from tests.scenes.inspected_machine import machine_at

POLICY = InspectionPolicy()
WELL = GpuState(
    index=0,
    pci="0000:3b:00",
    temperature_c=60,
    slow_reasons=0x4,  # at the power limit, as by design
    ecc_uncorrected=0,
    remap_pending=False,
    remap_failed=False,
    pcie_width=16,
    pcie_width_max=16,
    pcie_replays=10,
    fabric_state=3,
    fabric_status=0,
)


def with_(**changes: object) -> GpuReport:
    return GpuReport(gpus=(msgspec.structs.replace(WELL, **changes),))


def read(report: GpuReport, before: GpuReport | None = None, wanted: frozenset[str] | None = None) -> Reading:
    known = Known(wanted=wanted)
    return reading_of(report, known.with_(before, 0.0) if before is not None else known, 60.0, POLICY)


def told(reading: Reading) -> list[tuple[str, str | None]]:
    return [(trouble.kind, trouble.confidence) for trouble in reading.troubles]


def test_a_gpu_that_is_well() -> None:
    assert read(with_(), with_()) == Reading(seen={"0000:3b:00": "60 degrees, PCIe x16"})


@pytest.mark.parametrize(
    ("changes", "kind", "confidence"),
    [
        ({"lost": "GPU is lost"}, "lost", "evict"),
        ({"temperature_c": 91}, "temperature", "hint"),
        ({"slow_reasons": 0x40}, "temperature", "hint"),
        ({"slow_reasons": 0x80}, "power", "hint"),
        ({"ecc_uncorrected": 1}, "ecc", "evict"),
        ({"remap_failed": True}, "remap", "evict"),
        ({"remap_pending": True}, "remap", "hint"),
        ({"pages_pending": True}, "remap", "hint"),
        ({"pcie_width": 8}, "pcie width", "hint"),
        ({"pcie_replays": 500}, "pcie replays", "hint"),
        ({"fabric_status": 999}, "fabric", "evict"),
        ({"fabric_state": 1}, "fabric", "hint"),
    ],
)
def test_a_gpu_that_is_not(changes: dict[str, object], kind: str, confidence: str) -> None:
    reading = read(with_(**changes), with_())
    assert told(reading) == [(kind, confidence)]
    assert reading.troubles[0].device == "0000:3b:00"


def test_a_gpu_or_driver_that_does_not_say_is_not_guessed_at() -> None:
    assert told(read(GpuReport(gpus=(GpuState(index=0, pci="0000:3b:00"),)), with_())) == []


def test_errors_from_before_the_agent_are_a_hint() -> None:
    assert told(read(with_(ecc_uncorrected=3))) == [("ecc since start", "hint")]


def test_a_gpu_that_is_not_listed_any_more_is_lost() -> None:
    two = GpuReport(gpus=(WELL, msgspec.structs.replace(WELL, index=1, pci="0000:86:00")))
    reading = read(with_(), two)
    assert told(reading) == [("lost", "evict")] and reading.troubles[0].device == "0000:86:00"


def test_a_node_looks_after_its_own_gpus_only() -> None:
    hot = msgspec.structs.replace(WELL, index=1, pci="0000:86:00", temperature_c=99)
    both = GpuReport(gpus=(WELL, hot))
    assert told(read(both, both, wanted=frozenset({"0000:3b:00"}))) == []
    assert told(read(GpuReport(gpus=(hot,)), both, wanted=frozenset({"0000:3b:00"}))) == [("lost", "evict")]


def test_a_driver_that_was_there_and_is_not_is_trouble_and_one_that_never_was_is_not_known() -> None:
    gone = GpuReport(failed="driver", why="Driver Not Loaded")
    assert told(read(gone, with_())) == [("driver", "evict")]
    assert not read(gone).troubles and "load the NVIDIA driver" in read(gone).unread[""]
    missing = read(GpuReport(failed="library", why="no library"), with_())
    assert not missing.troubles and "install the NVIDIA driver" in missing.unread[""]
    assert told(read(GpuReport(failed="versions", why="mismatch"))) == [("driver", "evict")]


def pci(address: str, vendor: str = "0x10de", kind: str = "0x030200") -> dict[str, object]:
    folder = f"sys/bus/pci/devices/{address}"
    return {f"{folder}/vendor": vendor, f"{folder}/class": kind}


@pytest.mark.parametrize(
    ("policy", "environ", "own"),
    [
        # A container is shown one of two.
        ("", {}, {"0000:3b:00"}),
        ("", {"CUDA_VISIBLE_DEVICES": ""}, set()),
        ("3b:00", {}, {"0000:3b:00"}),
        ("", {"CUDA_VISIBLE_DEVICES": "1"}, {"0000:86:00"}),
        ("", {"CUDA_VISIBLE_DEVICES": "GPU-aa"}, {"0000:3b:00"}),
        ("", {"CUDA_VISIBLE_DEVICES": "GPU-a"}, {"0000:3b:00"}),
        ("", {"CUDA_VISIBLE_DEVICES": "MIG-GPU-aa/7/0"}, {"0000:3b:00"}),
        # CUDA ignores what stands after an invalid entry.
        ("", {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, {"0000:3b:00"}),
        ("0000:86:00", {"CUDA_VISIBLE_DEVICES": "0"}, {"0000:86:00"}),
    ],
)
def test_which_gpus_are_a_nodes(policy: str, environ: dict[str, str], own: set[str], tmp_path: Path) -> None:
    files = (
        pci("0000:86:00.0") | pci("0000:3b:00.0") | pci("0000:3b:00.1", kind="0x040300") | pci("0000:00:02.0", "0x8086")
    )
    files |= {"proc/driver/nvidia/gpus/0000:3b:00.0/information": "Model: H100\nGPU UUID: \t GPU-aa"}
    found = gpus_of(machine_at(tmp_path, files), InspectionPolicy(gpus=policy), environ)
    both = frozenset({"0000:3b:00", "0000:86:00"})
    assert found == Gpus(of_machine=both, own=frozenset(own), are_divided=True)


@pytest.mark.parametrize("device", ["MIG-3f0e2a58-4d2b-5c6e-8a1c-000000000000", "GPU-zz"])
def test_a_device_that_the_driver_does_not_show_divides_nothing(device: str, tmp_path: Path) -> None:
    files = pci("0000:86:00.0") | pci("0000:3b:00.0")
    both = frozenset({"0000:3b:00", "0000:86:00"})
    found = gpus_of(machine_at(tmp_path, files), POLICY, {"CUDA_VISIBLE_DEVICES": device})
    assert found == Gpus(of_machine=both, own=both, are_divided=False)


def test_where_nobody_divides_them_all_are_a_nodes(tmp_path: Path) -> None:
    files = pci("0000:86:00.0") | pci("0000:3b:00.0")
    both = frozenset({"0000:3b:00", "0000:86:00"})
    undivided = Gpus(of_machine=both, own=both, are_divided=False)
    assert gpus_of(machine_at(tmp_path, files), POLICY, {}) == undivided
    for address in ("0000:86:00.0", "0000:3b:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
    assert gpus_of(machine_at(tmp_path), POLICY, {}) == undivided


@pytest.mark.parametrize(
    ("output", "kinds"),
    [
        ("| Overall Health | Healthy |", []),
        ("| Overall Health: Warning |\n| GPU 3 | PCIe replay errors: warning |", ["health"]),
        ('{"body": {"Overall Health": {"value": "Failure"}}}', ["health"]),
    ],
)
def test_dcgm_says_how_it_finds_them(output: str, kinds: list[str]) -> None:
    reading = health_of(output)
    assert reading is not None and [trouble.kind for trouble in reading.troubles] == kinds


def test_what_dcgm_says_without_health_is_none() -> None:
    assert health_of("Error: unable to establish a connection to the specified host: localhost") is None
