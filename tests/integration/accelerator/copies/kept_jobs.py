"""Ranks of a job that keeps every step with a `Checkpointer`, and goes on from the newest in its next generation."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from holdfast import trainer
from holdfast.node.vault.messages import AskShard, SealedShard, SealedStep
from holdfast.node.vault.mmap_file import map_file
from holdfast.trainer.checkpoint import Checkpointer
from holdfast.trainer.checkpoint.layout.dtensors import leaves, local_of
from holdfast.trainer.checkpoint.layout.recipe import recipe_of
from holdfast.trainer.checkpoint.layout.state_marks import KeyedState
from holdfast.trainer.device import copies as copies_module
from holdfast.trainer.device.adapters import on_stream
from holdfast.trainer.device.copies import DeviceCopies
from tests.integration.accelerator.copies.kept_steps import SIZES, held_for_a_while, slow_link
from tests.integration.accelerator.trainings import Gpt, batches, gpt, optimizer_of

Kind = Literal["alone", "ddp", "fsdp2"]


class Trained(NamedTuple):
    start: int
    """The step that was restored."""
    losses: list[float]
    """The losses of the steps since."""
    gated: int
    """Number of copies that are left to the gate."""
    began_with: dict[str, str]
    ended_with: dict[str, str]
    """Bits of the model and the optimizer, as text."""


def train(directory: Path, generation: int, kind: Kind, until: int, seed: int) -> Trained:
    """Restore, and train up to a step."""
    small = partial(DeviceCopies, sizes=SIZES)
    with (
        mock.patch.dict("os.environ", variables_of(directory, generation)),
        mock.patch.object(copies_module, "DeviceCopies", small),
    ):
        slow_link(seed)
        model = _model(kind)
        optimizer = optimizer_of(model, "foreach")
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        state = {"model": inner, "optimizer": optimizer}
        checkpointer = Checkpointer()
        start, copies = checkpointer.restore(state), checkpointer._memory._copies
        assert copies is not None
        began_with = _bits(inner, optimizer)
        data = batches("sim", until, seed=2 + (dist.get_rank() if dist.is_initialized() else 0))
        losses = []
        for step in range(start + 1, until + 1):
            loss = model(data[step - 1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            # A rank that is alone would skip the step on a busy machine.
            assert copies.wait_sealed(60) and checkpointer.keep(step, state)
        assert copies.wait_sealed(60) and copies.sealed == until
        gated = sum(copy.source >= 0 for copy in copies._laid.plan.copies) if copies._laid is not None else 0
        found = [float(loss) for loss in losses]
        copies.close()
        return Trained(start, found, gated, began_with, _bits(inner, optimizer))


def _bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return those of what this rank has."""
    parts = dict(leaves({"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}))
    tensors = {
        str(path): local_of(it) if isinstance(it, DTensor) else it
        for path, it in parts.items()
        if isinstance(it, torch.Tensor)
    }
    return {
        path: hashlib.sha256(it.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()
        for path, it in tensors.items()
    }


def train_by_dcp(directory: Path, generation: int, until: int, seed: int) -> tuple[int, list[float]]:
    """Train on a stream that is not the default one, and keep each step by `dcp.async_save`; return as `train`."""
    small = partial(DeviceCopies, sizes=SIZES)
    with (
        mock.patch.dict("os.environ", variables_of(directory, generation)),
        mock.patch.object(copies_module, "DeviceCopies", small),
        on_stream(torch.Stream("sim")),
    ):
        slow_link(seed)
        training = torch.accelerator.current_stream()
        model = _model("fsdp2")
        optimizer = optimizer_of(model, "foreach")
        state: dict[str, Any] = {"model": {}, "optimizer": {}}
        reader = trainer.storage_reader()
        state["model"], state["optimizer"] = get_state_dict(model, optimizer)
        if reader.step:
            dcp.load(state, storage_reader=reader)
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        data = batches("sim", until, seed=2 + dist.get_rank())
        losses = []
        for step in range(reader.step + 1, until + 1):
            loss = model(data[step - 1])
            loss.backward()
            losses.append(loss.detach())
            # The vault answers the first step only when it is sealed.
            with held_for_a_while(training) if step > 1 else nullcontext():
                optimizer.step()
                optimizer.zero_grad()
                state["model"], state["optimizer"] = get_state_dict(model, optimizer)
                dcp.async_save(state, storage_writer=trainer.storage_writer(step=step)).result()
        copies = reader._memory.tier._copies
        assert copies is not None and copies.wait_sealed(60) and copies.sealed == until
        found = [float(loss) for loss in losses]
        copies.close()
        return reader.step, found


def written_to_disk(directory: Path) -> tuple[int, list[str]]:
    """Keep a step; return how many tensors the vault would write to a disk, and those that it would get wrong."""
    small = partial(DeviceCopies, sizes=SIZES)
    variables = variables_of(directory, 1)
    with mock.patch.dict("os.environ", variables), mock.patch.object(copies_module, "DeviceCopies", small):
        model = gpt("sim")
        optimizer = optimizer_of(model, "fused")
        model(batches("sim", 1, seed=1)[0]).backward()
        optimizer.step()
        state = {"model": model, "optimizer": optimizer}
        checkpointer = Checkpointer()
        assert checkpointer.keep(1, state)
        tier = checkpointer._memory
        assert tier._copies is not None and tier._copies.wait_sealed(60) and tier._client is not None
        shard, descriptor = tier._client._ask(AskShard(sealed=SealedStep(generation=1, step=1)))
        assert isinstance(shard, SealedShard) and descriptor is not None
        memory = map_file(descriptor, shard.seal.nbytes, private=True)
        recipe = recipe_of(shard.index)
        assert recipe is not None
        there = dict(leaves(KeyedState(state, 0).state_dict()))
        wrong = []
        for row in recipe.rows:
            tensor = there[row.path].detach().cpu().contiguous().view(-1).view(torch.uint8)
            if bytes(memory[row.offset : row.offset + row.nbytes]) != tensor.numpy().tobytes():
                wrong.append(row.chunk.key)
        tier._copies.close()
        return len(recipe.rows), wrong


def variables_of(directory: Path, generation: int) -> dict[str, str]:
    return {
        "HOLDFAST_VAULT": str(directory),
        "HOLDFAST_JOB": directory.name,
        "HOLDFAST_JOB_SUBMITTED_MS": "1",
        "HOLDFAST_JOB_DIR": str(directory / "job"),
        "HOLDFAST_GENERATION": str(generation),
    }


def _model(kind: Kind) -> nn.Module:
    model = gpt("sim")
    if kind == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.05)  # type: ignore[arg-type]
    if kind == "fsdp2":
        mesh = init_device_mesh("sim", (dist.get_world_size(),))
        assert isinstance(model, Gpt)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    torch.manual_seed(1)
    return model
