"""The process that asks NVML, with the real binding and a library of our own beneath it: no GPU is needed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.node_hardware import Gpus
from holdfast_agent.inspections.sources.gpu import GpuInspection, GpuProbe

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: the library beneath NVML cannot be built"),
]

SOURCE = Path(__file__).parent / "nvml.c"
BOTH = frozenset({"0000:3b:00", "0000:3c:00"})
GPUS = Gpus(of_machine=BOTH, own=BOTH, are_divided=False)
POLICY = InspectionPolicy(gpu_hang_s=20.0)
FIRST, SECOND = "0000:3b:00", "0000:3c:00"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(target), str(SOURCE)], check=True)
    return folder


@pytest.fixture
def state(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that says how the GPUs are."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "state"))
    monkeypatch.setenv("FAKE_NVML_FIFO", str(tmp_path / "fifo"))
    return tmp_path / "state"


@pytest.fixture
def probe() -> Iterator[GpuProbe]:
    it = GpuProbe()
    yield it
    it.close()


def told(inspection: GpuInspection) -> list[tuple[str, str]]:
    return [(trouble.device, trouble.kind) for trouble in inspection.read().troubles]


def test_gpus_are_read_and_one_that_is_lost_is_told(state: Path, probe: GpuProbe) -> None:
    inspection = GpuInspection(POLICY, GPUS, probe)
    reading = inspection.read()
    assert reading.seen == {FIRST: "50 degrees, PCIe x16", SECOND: "50 degrees, PCIe x16"} and not reading.troubles
    state.write_text("0.temperature 95\n1.width 8\n1.failed 1\n")
    assert told(inspection) == [(FIRST, "temperature"), (SECOND, "remap"), (SECOND, "pcie width")]
    state.write_text("1.error 15\n")
    assert told(inspection) == [(SECOND, "lost")]
    state.write_text("count 1\n")
    assert told(inspection) == [(SECOND, "lost")]
    # It does not even say which it is; before it did.
    state.write_text("1.handle 15\n")
    assert told(inspection) == [(SECOND, "lost")]
    # Without a right to it, or with a driver that does not know: nobody's fault that is known.
    state.write_text("1.handle 999\n")
    reading = inspection.read()
    assert not reading.troubles and "NVML has no data on it" in reading.unread[SECOND]


def test_a_gpu_that_nvml_never_listed_is_not_called_lost_but_one_that_was_named_is(
    state: Path, probe: GpuProbe
) -> None:
    # As in a container that is given one of two, on a machine whose bus shows both.
    state.write_text("count 1\n")
    assert told(GpuInspection(POLICY, GPUS, probe)) == []
    named = Gpus(of_machine=BOTH, own=BOTH, are_divided=True)
    assert told(GpuInspection(POLICY, named, probe)) == [(SECOND, "lost")]


def test_a_call_into_the_driver_that_does_not_return_is_noticed_and_left_behind(state: Path, probe: GpuProbe) -> None:
    warm = GpuInspection(POLICY, GPUS, probe)
    assert not warm.read().troubles
    inspection = GpuInspection(InspectionPolicy(gpu_hang_s=0.3), GPUS, probe)
    os.mkfifo(state.with_name("fifo"))
    reading = inspection.read()
    assert [(trouble.kind, trouble.confidence) for trouble in reading.troubles] == [("hang", "evict")]
    assert "has not answered for 0.3 s" in reading.troubles[0].detail
    # The driver is back: another process asks.
    state.with_name("fifo").unlink()
    assert not warm.read().troubles


def test_a_process_that_got_no_processor_is_no_driver_that_hangs(state: Path, tmp_path: Path) -> None:
    busy = GpuProbe(("sh", "-c", "while :; do :; done"))
    try:
        reading = GpuInspection(InspectionPolicy(gpu_hang_s=0.2), GPUS, busy).read()
    finally:
        busy.close()
    assert not reading.troubles and "got no processor" in reading.unread[""]


def test_a_process_that_ends_is_started_again(state: Path, probe: GpuProbe) -> None:
    inspection = GpuInspection(POLICY, GPUS, probe)
    assert not inspection.read().troubles
    process = probe._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(OSError, match="ended with signal 9"):
        inspection.read()
    assert not inspection.read().troubles


def test_a_driver_that_is_not_loaded_and_a_library_that_is_not_there(
    state: Path, probe: GpuProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.write_text("init 9\n")
    inspection = GpuInspection(POLICY, GPUS, probe)
    assert "Driver Not Loaded: load the NVIDIA driver" in inspection.read().unread[""]
    # It is loaded later.
    state.write_text("")
    assert not inspection.read().unread
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nonexistent")
    other = GpuProbe()
    try:
        reading = GpuInspection(POLICY, GPUS, other).read()
    finally:
        other.close()
    if not shutil.which("nvidia-smi"):
        assert not reading.troubles and "install the NVIDIA driver" in reading.unread[""]


def test_without_a_gpu_nothing_is_started() -> None:
    nothing = GpuProbe(("/no/such/program",))
    assert (
        GpuInspection(POLICY, Gpus(of_machine=frozenset(), own=frozenset(), are_divided=False), nothing).read().absent
    )
