"""The processors that ranks are bound to are those that torchrun's own code chooses on the same machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from holdfast.events.parts.launch import NumaBinding
from holdfast.node.machine import Machine
from holdfast_agent.companions.processors import read_processors
from holdfast_agent.plan.devices.binding import CannotBind, bound_to
from holdfast_agent.plan.devices.visible_gpus import visible_gpus
from tests.scenes.gpu_machines import SHAPES, gpu_machine, uuid

BINDINGS: list[NumaBinding] = [it for it in get_args(NumaBinding) if it]


class Torchrun:
    """torchrun's code, which sees this machine as its own."""

    def __init__(self, machine: Machine, gpus: list[int], allowed: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
        """`gpus`: the machine's numbers of those that CUDA shows."""
        self._binding = pytest.importorskip("torch.numa.binding")

        def moved(path: Any) -> Path:
            return machine.sys / Path(path).relative_to("/sys")

        def properties(index: int) -> SimpleNamespace:
            return SimpleNamespace(pci_domain_id=0, pci_bus_id=0x10 + gpus[index], pci_device_id=0)

        monkeypatch.setattr(self._binding, "open", lambda path: moved(path).open(), raising=False)
        fake = SimpleNamespace(
            listdir=lambda path: os.listdir(moved(path)), sched_getaffinity=lambda pid: allowed, path=os.path
        )
        monkeypatch.setattr(self._binding, "os", fake)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")

    def chosen(self, binding: str, index: int) -> set[int] | None:
        """Return the processors; None: it fails."""
        options = self._binding.NumaOptions(affinity_mode=self._binding.AffinityMode(binding))
        try:
            found: set[int] = self._binding._get_validated_logical_cpus_to_bind_to(
                gpu_index=index, numa_options=options
            )
        except (RuntimeError, ValueError):
            return None
        return found


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("is_limited", [False, True], ids=["all processors", "half of them"])
def test_ranks_are_bound_as_torchrun_binds_them(
    shape: Any, is_limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = gpu_machine(tmp_path, shape)
    found = read_processors(machine, range(4096))
    everything = set[int]().union(*found.of_node.values())
    allowed = {cpu for cpu in everything if not is_limited or cpu % 2}
    found = read_processors(machine, allowed)
    assert [gpu.uuid for gpu in found.gpus] == [uuid(number) for number in range(len(shape.gpu_nodes))]
    count, compared = len(found.gpus), 0
    last_two = [count - 1, count - 2]
    for visible, gpus in ((None, list(range(count))), (",".join(map(str, last_two)), last_two)):
        torchrun = Torchrun(machine, gpus, allowed, monkeypatch)
        for binding in BINDINGS:
            for index in range(len(gpus)):
                try:
                    ours: set[int] | None = set(bound_to(binding, index, visible, found))
                except CannotBind:
                    ours = None
                assert ours == torchrun.chosen(binding, index), (visible, binding, index)
                compared += ours is not None
    assert compared


def test_what_a_process_sees_is_what_cuda_shows_it(tmp_path: Path) -> None:
    gpus = read_processors(gpu_machine(tmp_path, SHAPES["two sockets, eight GPUs"]), {0}).gpus
    uuids = [gpu.uuid for gpu in gpus]
    assert visible_gpus(" 7, GPU-2f ,0", uuids) == ((7, 2, 0), "")
    assert visible_gpus("1,GPU-,2", uuids) == ((1,), "GPU-"), "the name of several GPUs is the name of none"
    assert visible_gpus(f"MIG-{uuids[3]}/7/0", uuids) == ((3,), "")
    for none in ("", "-1", "8", "GPU"):
        assert visible_gpus(none, uuids) == ((), "")
    for unknown in ("GPU-9", "MIG-1"):
        assert visible_gpus(unknown, uuids) == ((), unknown)


def test_a_rank_without_a_gpu_is_not_bound(tmp_path: Path) -> None:
    found = read_processors(gpu_machine(tmp_path, SHAPES["two sockets, eight GPUs"]), {0})
    with pytest.raises(CannotBind, match="sees 1 GPUs"):
        bound_to("node", 1, "3", found)
    with pytest.raises(CannotBind, match="no processor of NUMA node 1"):
        bound_to("node", 7, None, found)
    with pytest.raises(CannotBind, match="1 cores for 4 GPUs"):
        bound_to("exclusive", 0, None, found)


def test_gpus_that_the_driver_does_not_list_are_not_this_containers(tmp_path: Path) -> None:
    machine = gpu_machine(tmp_path, SHAPES["two sockets, eight GPUs"])
    for folder in sorted((machine.proc / "driver/nvidia/gpus").iterdir())[:6]:
        shutil.rmtree(folder)
    assert [gpu.numa_node for gpu in read_processors(machine, {0}).gpus] == [1, 1]
    shutil.rmtree(machine.proc / "driver")
    assert [gpu.uuid for gpu in read_processors(machine, {0}).gpus] == [""] * 8
