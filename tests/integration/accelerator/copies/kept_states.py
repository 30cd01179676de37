"""States of other kinds than a training's on the simulated accelerator, each kept a few times and read back."""

from __future__ import annotations

import mmap
import os
from contextlib import nullcontext, suppress
from pathlib import Path

import torch

from holdfast.node.vault.messages import SealedStep
from holdfast.trainer.device import StepSkipped
from holdfast.trainer.device.copies import DeviceCopies
from holdfast.trainer.vault_client.client import VaultClient
from holdfast.trainer.vault_client.shard_layout import take_apart
from tests import accelerator
from tests.integration.accelerator.copies.kept_steps import SIZES, Job, bits_of, flat, name_of, slow_link, truth_of


def kept_without_elements(directory: Path) -> tuple[int, bool]:
    """Keep a state whose only tensor on the device has no elements; return the last step that was sealed, and whether
    copies still go beside training.
    """
    copies = DeviceCopies(directory, name_of(), 1, None, sizes=SIZES)
    client = VaultClient(directory, name_of(), 1, copies=copies)
    state = {"none": torch.zeros(0, 5, device="sim"), "step": 1}
    client.save(1, state)
    assert copies.wait_sealed(60)
    leaves, _ = take_apart(state)
    found = copies.sealed, copies.takes(leaves)
    client.close()
    copies.close()
    return found


def kept_beside_writes_of_device(directory: Path) -> list[float]:
    """Keep a state that lies on the host, with one pinned tensor that the device then writes to: past the pages of this
    process, by another mapping of the same memory, as a device does. Return the values that are kept of it.
    """
    nbytes = 8 << 20
    file = os.memfd_create("pinned")
    os.truncate(file, nbytes)
    ours, of_device = (torch.frombuffer(mmap.mmap(file, nbytes), dtype=torch.float32) for _ in range(2))
    os.close(file)
    ours.fill_(1.0)
    # torch asks no device that has pinned nothing yet.
    other = torch.zeros(4).pin_memory().to("sim")
    accelerator.register_host(ours.data_ptr(), nbytes)
    assert ours.is_pinned()
    copies = DeviceCopies(directory, name_of(), 1, None, sizes=SIZES)
    client = VaultClient(directory, name_of(), 1, copies=copies)
    # What is copied first takes a while.
    state = {"large": torch.zeros(50_000_000), "pinned": ours, "other": other}
    client.save(1, state)
    client.save(2, state)  # the first waits until it is sealed
    of_device.fill_(2.0)
    values = client.restore(client.steps()[0])["pinned"].unique().tolist()
    client.close()
    copies.close()
    accelerator.unregister_host(ours.data_ptr())
    return [float(value) for value in values]


def busy(directory: Path, world_size: int) -> tuple[int, int, int, int]:
    """Keep three steps at once over a slow link; return how many were skipped, waited, and the last that was kept and
    that was sealed.
    """
    accelerator.bandwidth(2e6)
    copies = DeviceCopies(directory, name_of(world_size), 1, None, sizes=SIZES)
    client = VaultClient(directory, name_of(world_size), 1, copies=copies)
    tensor, last = torch.zeros(100_000, device="sim"), 0
    client.save(1, {"tensor": tensor})  # the first waits for its seal
    for step in (2, 3, 4):
        with suppress(StepSkipped):
            client.save(step, {"tensor": tensor})
            last = step
    assert copies.wait_sealed(60)
    found = copies.skipped, copies.waited, last, copies.sealed
    client.close()
    copies.close()
    return found


def kept_in_inference_mode(directory: Path) -> tuple[int, bool]:
    """Keep a step as a validation does that keeps one, and the next as usual; return the last that was sealed, and
    whether copies still go beside training.
    """
    copies = DeviceCopies(directory, name_of(), 1, None, sizes=SIZES)
    client = VaultClient(directory, name_of(), 1, copies=copies)
    state = {"tensor": torch.zeros(100_000, device="sim"), "small": torch.zeros(4, device="sim")}
    for step, mode in ((1, torch.inference_mode()), (2, nullcontext())):
        with mode:
            client.save(step, state)
        assert copies.wait_sealed(60)
    leaves, _ = take_apart(state)
    found = copies.sealed, copies.takes(leaves)
    client.close()
    copies.close()
    return found


def kept_of_odd_dtypes(directory: Path) -> dict[str, bool]:
    """Keep tensors of dtypes that few operators take, small ones and those of a copy each, on the device and the host;
    return for each dtype whether the same bits come back, to the same device.
    """
    names = ("bool", "uint1", "int4", "uint16", "float8_e4m3fn", "float4_e2m1fn_x2", "complex64")
    dtypes = {name: getattr(torch, name) for name in names}
    counts = torch.arange(4 * SIZES.small_bytes, dtype=torch.int64).fmod(2).to(torch.uint8)
    copies = DeviceCopies(directory, name_of(), 1, None, sizes=SIZES)
    client = VaultClient(directory, name_of(), 1, copies=copies)
    state = {
        name: [counts.to("sim").view(dtype), counts[:64].to("sim").view(dtype), counts[:64].view(dtype)]
        for name, dtype in dtypes.items()
    }
    client.save(1, state)
    assert copies.wait_sealed(60)
    found = client.restore(SealedStep(generation=1, step=1), to_device=True)
    client.close()
    copies.close()
    return {
        name: [it.device.type for it in found[name]] == ["sim", "sim", "cpu"]
        and all(it.dtype is dtypes[name] and _is_start_of(counts, it) for it in found[name])
        for name in names
    }


def _is_start_of(counts: torch.Tensor, tensor: torch.Tensor) -> bool:
    return torch.equal(tensor.view(torch.uint8).cpu(), counts[: tensor.nbytes])


def brought_back(directory: Path) -> list[str]:
    """Keep a step, restore it to the device over a slow link; return what differs."""
    slow_link(1)
    job = Job("fused", 2, 1)
    copies = DeviceCopies(directory, name_of(), 1, None, sizes=SIZES)
    client = VaultClient(directory, name_of(), 1, copies=copies)
    job.forward()
    job.update()
    state = job.state()
    client.save(1, state)
    assert copies.wait_sealed(60)
    # So slow that what does not wait for the last slices is read before they come.
    accelerator.bandwidth(1e6)
    found = client.restore(SealedStep(generation=1, step=1), to_device=True)
    came, truth = truth_of(found), truth_of(state)
    devices = {path: it.device.type for path, it in flat(state) if isinstance(it, torch.Tensor)}
    differing = [
        str(path) for path, it in flat(found) if isinstance(it, torch.Tensor) and it.device.type != devices[path]
    ]
    differing += [
        str(path)
        for path, it in truth.items()
        if isinstance(it, torch.Tensor) and not bits_of(it).equal(bits_of(came[path]))
    ]
    client.close()
    copies.close()
    return differing
