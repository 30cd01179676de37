"""The processes that measure devices: the real binding of NVML and ctypes for DCGM, on libraries of our own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.events.parts.devices import DeviceActivity
from holdfast_agent.devices import meters
from holdfast_agent.devices.asked_process import AskedProcess
from holdfast_agent.devices.meters import Meter
from holdfast_agent.inspections.node_hardware import Gpus

pytestmark = pytest.mark.integration

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: no library can be built")
HERE = Path(__file__).parent
FIRST, SECOND, THIRD = "0000:3b:00", "0000:3c:00", "0000:3e:00"
MIB = 1 << 20


class Clock:
    """Time as the test says. Every reading is two seconds after the last one."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def built(folder: Path, source: str, name: str) -> Path:
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(folder / name), str(HERE / source)], check=True)
    return folder


@pytest.fixture(scope="module")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("nvml"), "nvml_activity.c", "libnvidia-ml.so.1")


@pytest.fixture(scope="module")
def dcgm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("dcgm"), "dcgm.c", "libdcgm.so.4")


@pytest.fixture
def opened() -> Iterator[list[Meter]]:
    found: list[Meter] = []
    yield found
    for meter in found:
        meter.close()


@pytest.fixture
def nvml(nvml_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Meter]) -> Meter:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_folder))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "state"))
    monkeypatch.setenv("FAKE_NVML_FIFO", str(tmp_path / "fifo"))
    monkeypatch.setenv("FAKE_NVML_CALLS", str(tmp_path / "calls"))
    opened.append(Meter(meters._process("nvml_meter"), Clock()))
    return opened[-1]


@pytest.fixture
def dcgm(dcgm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Meter]) -> Meter:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(dcgm_folder))
    monkeypatch.setenv("FAKE_DCGM", str(tmp_path / "state"))
    opened.append(Meter(meters._process("dcgm_meter", "127.0.0.1:5555"), Clock()))
    return opened[-1]


@needs_compiler
def test_nvml_before_hopper_has_utilization_links_and_pcie(nvml: Meter, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("0.sent 1000\n0.received 500\n0.pcie_in 30\n0.pcie_out 10\n0.pid 4711\n1.links 3\n1.busy 0\n")
    first = nvml.read({})
    assert first[FIRST].link_sent_bytes_per_s is None and first[FIRST].busy_share == 0.7
    state.write_text("0.sent 5000\n0.received 100\n0.pcie_in 30\n0.pcie_out 10\n0.pid 4711\n1.links 3\n1.busy 0\n")
    # KiB in two readings of the clock; a counter that is lower than before was reset.
    found = nvml.read({4711: 6})
    assert found == {
        FIRST: DeviceActivity(
            device=FIRST, rank=6, busy_share=0.7, pcie_bytes_per_s=40_000.0, link_sent_bytes_per_s=4000 * 1024 / 2
        ),
        SECOND: DeviceActivity(device=SECOND, busy_share=0.0, pcie_bytes_per_s=0.0),
    }
    # What a GPU lacks is asked once: NVLink of the second, and GPM of both.
    nvml.read({})
    calls = (tmp_path / "calls").read_text().split()
    assert calls.count("fields") == 4 and calls.count("support") == 2


@needs_compiler
def test_nvml_on_hopper_has_tensor_cores_by_gpm(nvml: Meter, tmp_path: Path) -> None:
    gpm = "0.gpm 1\n0.gpm1 90000\n0.gpm5 41500\n0.gpm20 2000\n0.gpm21 1000\n0.gpm61 3000\n0.gpm60 -1\n"
    (tmp_path / "state").write_text(gpm)
    assert nvml.read({})[FIRST].tensor_share is None
    for _ in range(4):
        found = nvml.read({})
    activity = found[FIRST]
    assert activity.tensor_share == pytest.approx(0.415) and activity.busy_share == pytest.approx(0.9)
    assert activity.pcie_bytes_per_s == 3 * MIB and activity.link_sent_bytes_per_s == 3 * MIB
    # GPM does not have it, so NVLink's counter counts.
    assert activity.link_received_bytes_per_s == 0.0
    assert found[SECOND].tensor_share is None


@needs_compiler
def test_a_library_that_crashes_ends_only_its_own_process(nvml: Meter, tmp_path: Path) -> None:
    assert FIRST in nvml.read({})
    (tmp_path / "state").write_text("crash 1\n")
    assert nvml.read({}) == {}
    (tmp_path / "state").write_text("")
    # It is left alone for a while.
    assert nvml.read({}) == {}
    nvml._rests_until = 0.0
    assert FIRST in nvml.read({})


@needs_compiler
def test_dcgm_has_profiling_fields_and_a_blank_is_no_zero(dcgm: Meter, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("0.1001 0.95\n0.1004 0.4\n0.1009 1000\n0.1010 500\n0.1011 7000\n0.1012 0\n3.1004 0\n3.1009 5\n")
    assert dcgm.read({}) == {
        FIRST: DeviceActivity(
            device=FIRST,
            busy_share=0.95,
            tensor_share=0.4,
            pcie_bytes_per_s=1500.0,
            link_sent_bytes_per_s=7000.0,
            link_received_bytes_per_s=0.0,
        ),
        THIRD: DeviceActivity(device=THIRD, tensor_share=0.0),
    }
    # A profiler has the counters: the engine's last values are no measurement of now.
    state.write_text("0.1004 0.4\nold 60\n")
    assert dcgm.read({})[FIRST] == DeviceActivity(device=FIRST)
    state.write_text("devices -6\n")
    assert dcgm.read({}) == {}


@needs_compiler
@pytest.mark.parametrize("broken", ["connect -21", "watch -6"])
def test_without_a_host_engine_or_its_profiling_module_there_is_nothing(
    broken: str, dcgm: Meter, tmp_path: Path
) -> None:
    (tmp_path / "state").write_text(f"{broken}\n")
    assert dcgm.read({}) == {}
    (tmp_path / "state").write_text("0.1004 0.4\n")
    dcgm._rests_until = 0.0
    assert dcgm.read({})[FIRST].tensor_share == 0.4


@needs_compiler
def test_a_host_engine_that_hangs_is_given_up(dcgm: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("0.1004 0.4\n")
    assert FIRST in dcgm.read({})
    monkeypatch.setattr(meters, "HANGS_S", 0.3)
    (tmp_path / "state").write_text("hang 1\n")
    assert dcgm.read({}) == {}
    # It is killed, and no other is started at once.
    assert dcgm.read({}) == {} and dcgm._process._process is None
    monkeypatch.setattr(meters, "HANGS_S", 30.0)
    dcgm._rests_until = 0.0
    (tmp_path / "state").write_text("0.1004 0.4\n")
    assert FIRST in dcgm.read({})


AMDSMI = """
import json, os
class AmdSmiException(Exception): pass
def told(name, otherwise):
    value = json.load(open(os.environ["FAKE_AMDSMI"])).get(name, otherwise)
    if value == "error":
        raise AmdSmiException(name)
    return value
def amdsmi_init(): pass
def amdsmi_get_processor_handles(): return [0, 1]
def amdsmi_get_gpu_device_bdf(handle): return ("0000:3b:00.0", "0000:3c:00.0")[handle]
def amdsmi_get_gpu_activity(handle):
    return {"gfx_activity": told(f"{handle}.busy", 80), "umc_activity": "N/A", "mm_activity": "N/A"}
def amdsmi_get_pcie_info(handle):
    return {"pcie_static": {}, "pcie_metric": {"pcie_bandwidth": told(f"{handle}.pcie", "N/A")}}
def amdsmi_get_gpu_metrics_info(handle):
    return {"xgmi_write_data_acc": told(f"{handle}.sent", "N/A"), "xgmi_read_data_acc": told(f"{handle}.got", "N/A")}
def amdsmi_get_gpu_process_list(handle): return [{"name": "python", "pid": 40 + handle, "mem": 0}]
"""


def test_amds_gpus_have_activity_xgmi_and_pcie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Meter]
) -> None:
    (tmp_path / "amdsmi.py").write_text(AMDSMI)
    state = tmp_path / "state"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAKE_AMDSMI", str(state))
    opened.append(Meter(meters._process("amd_meter"), Clock()))
    state.write_text('{"0.sent": [10, 20, "N/A"], "0.got": [0, 0], "0.pcie": 8}')
    opened[0].read({})
    state.write_text('{"0.sent": [30, 40, "N/A"], "0.got": [0, 0], "0.pcie": 8, "1.busy": "error"}')
    assert opened[0].read({40: 2, 41: 3}) == {
        FIRST: DeviceActivity(
            device=FIRST, rank=2, busy_share=0.8, pcie_bytes_per_s=1e6, link_sent_bytes_per_s=40 * 1024 / 2
        ),
        SECOND: DeviceActivity(device=SECOND, rank=3),
    }


def test_which_libraries_a_node_asks() -> None:
    gpus = Gpus(of_machine=frozenset({FIRST}), own=frozenset({FIRST}), are_divided=False)
    amds = Gpus(of_machine=frozenset({FIRST}), own=frozenset({FIRST}), are_divided=False, are_amds=True)

    def modules(found: tuple[Meter, ...]) -> list[str]:
        return [meter._process._source for meter in found if isinstance(meter._process, AskedProcess)]

    assert modules(meters._meters_of(gpus, "127.0.0.1:5555")) == ["nvml_meter", "dcgm_meter"]
    assert modules(meters._meters_of(gpus, "")) == ["nvml_meter"]
    assert modules(meters._meters_of(amds, "127.0.0.1:5555")) == ["amd_meter"]
