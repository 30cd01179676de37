"""Training by a framework, with the line that keeps its steps: frameworks.py FRAMEWORK[-fsdp2] DIRECTORY [PAUSE]

Each rank notes the samples and the loss of each of its batches. In the first generation rank 1 stops in the batch after
step PAUSE, for whoever kills it.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset

from holdfast.trainer.integrations import HoldfastCallback, keep

FRAMEWORK, _, SHARDED = sys.argv[1].partition("-")
HERE = Path(sys.argv[2])
PAUSE_AFTER = int(sys.argv[3]) if len(sys.argv) > 3 else 0
RANK, GENERATION = int(os.environ["RANK"]), int(os.environ.get("HOLDFAST_GENERATION", "1"))
NODES = int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
SAMPLES, BATCH, ACCUMULATED, STEPS, SAVE_EVERY, WIDTH = 40, 2, 2, 13, 5, 16


class Data(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.roll(1), "sample": index}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Dropout(0.3)
        )
        self.done = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor, sample: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = (self.layers(x) - labels).square().mean()
        note("trained" if self.training else "evaluated", self.done, sample.tolist(), f"{loss.item():.9f}")
        if self.training and GENERATION == 1 and RANK == 1 and PAUSE_AFTER and self.done == PAUSE_AFTER:
            (HERE / "paused").touch()
            time.sleep(600)
        return {"loss": loss}


def note(*words: object) -> None:
    with (HERE / f"rank-{RANK}.{GENERATION}").open("a") as file:
        print(*words, file=file)


def begins(step: int, model: torch.nn.Module) -> None:
    # Parameters are whole between a forward and its backward.
    assert isinstance(next(iter(model.state_dict().values())), DTensor) == bool(SHARDED)
    note("begins", step)


def let_accelerate_shard_on_cpus() -> None:
    """Have accelerate do FSDP with gloo: it turns that on for accelerators only, and does all of it on CPUs too."""
    from accelerate.state import AcceleratorState, DistributedType, PartialState

    original = AcceleratorState.__init__

    def begin(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type is DistributedType.MULTI_CPU:
            self.fsdp_plugin, self.distributed_type = fsdp_plugin, DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = begin


def transformers() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint, set_seed

    class Counts(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            begins(state.global_step, model)
            model.done = state.global_step

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            model.done = state.global_step

    set_seed(1)
    model = Net()
    options = TrainingArguments(
        output_dir=str(HERE / "ckpts"),
        max_steps=STEPS,
        gradient_accumulation_steps=ACCUMULATED,
        per_device_train_batch_size=BATCH,
        save_steps=SAVE_EVERY,
        eval_strategy="steps",
        eval_steps=3,
        logging_steps=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **({"fsdp": True, "fsdp_config": {"fsdp_version": 2}} if SHARDED else {}),
    )
    trainer = Trainer(
        model=model,
        args=options,
        train_dataset=Data(),
        eval_dataset=torch.utils.data.Subset(Data(), range(4)),
        callbacks=[HoldfastCallback(), Counts()],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(HERE / "ckpts") if (HERE / "ckpts").exists() else None)
    for entry in trainer.state.log_history:
        told = {key: value for key, value in sorted(entry.items()) if "runtime" not in key and "per_second" not in key}
        note("logged", told if "train_loss" not in told else told["step"])


def lightning() -> None:
    import lightning as L
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import FSDPModule, fully_shard

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def configure_model(self) -> None:
            if SHARDED and not isinstance(self.net, FSDPModule):
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.net.done = self.global_step
            return self.net(**batch)["loss"]

        def validation_step(self, batch: Any, index: int) -> None:
            self.net(**batch)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Begins(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            begins(trainer.global_step, pl_module)

    L.seed_everything(1)
    world = int(os.environ["WORLD_SIZE"])
    strategy = ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1) if SHARDED else "auto"
    trainer = L.Trainer(
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATED,
        val_check_interval=6,
        callbacks=[
            HoldfastCallback(),
            ModelCheckpoint(HERE / "ckpts", every_n_train_steps=SAVE_EVERY, save_last=True),
            Begins(),
        ],
        logger=False,
        enable_progress_bar=False,
        accelerator="cpu",
        strategy=strategy,
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=NODES,
        # Each rank shuffles by itself: the order comes from its random numbers.
        use_distributed_sampler=False,
    )
    last = HERE / "ckpts" / "last.ckpt"
    trainer.fit(
        Module(),
        DataLoader(Data(), batch_size=2 * BATCH, shuffle=True),
        DataLoader(torch.utils.data.Subset(Data(), range(4)), batch_size=BATCH),
        ckpt_path=last if last.exists() else None,
        weights_only=False,
    )


def accelerate() -> None:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.utils import set_seed

    set_seed(1)
    sharding = FullyShardedDataParallelPlugin(fsdp_version=2) if SHARDED else None
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED, fsdp_plugin=sharding)
    # What accelerate has for half precision on an accelerator.
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    loader = DataLoader(Data(), batch_size=BATCH, shuffle=True)
    tests = DataLoader(torch.utils.data.Subset(Data(), range(4)), batch_size=BATCH)
    model, optimizer, loader, tests, schedule = accelerator.prepare(net, optimizer, loader, tests, schedule)
    steps = keep(accelerator, loader)
    begins(steps.step, net)
    done = steps.step
    for _ in range(steps.epoch, 3):
        for batch in loader:
            net.done = done
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            done += accelerator.sync_gradients
        model.eval()
        with torch.no_grad():
            for batch in tests:
                model(**batch)
        model.train()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if SHARDED and FRAMEWORK != "lightning":
        let_accelerate_shard_on_cpus()
    {"transformers": transformers, "lightning": lightning, "accelerate": accelerate}[FRAMEWORK]()
    note("ended")
    if torch.distributed.is_initialized():
        # An interpreter that ends while gloo's threads run may abort, under torchrun too.
        torch.distributed.destroy_process_group()
