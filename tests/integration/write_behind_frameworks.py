"""Training by frameworks, for their test: write_behind_frameworks.py DIRECTORY FRAMEWORK [kill STEP]

The script is the framework's own way to save and to go on; the process is killed at its first batch after STEP steps.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

HERE, FRAMEWORK = Path(sys.argv[1]), sys.argv[2]
KILL_AT = int(sys.argv[4]) if sys.argv[3:4] == ["kill"] else 0
STEPS, EVERY, BATCH, WIDTH = 30, 10, 4, 64


class Data(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.roll(1)} if FRAMEWORK == "transformers" else x


def note(step: int, loss: torch.Tensor) -> None:
    with (HERE / "losses").open("a") as file:
        file.write(f"{step} {loss.item():.9f}\n")


def killed(step: int) -> None:
    if KILL_AT and step == KILL_AT:
        os.kill(os.getpid(), signal.SIGKILL)


def lightning() -> None:
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(WIDTH, WIDTH)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            killed(self.global_step)
            # Lightning does not find the place in a loader again.
            batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(self.global_step))
            loss = (self.net(batch) - batch.roll(1, 1)).square().mean()
            self.log("loss", loss)
            note(self.global_step + 1, loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    L.seed_everything(1)
    keeps = ModelCheckpoint(HERE / "ckpts", every_n_train_steps=EVERY, save_top_k=1, monitor="step", mode="max")
    keeps.save_last = "link"
    trainer = L.Trainer(
        max_steps=STEPS, callbacks=[keeps], logger=False, enable_progress_bar=False, accelerator="cpu", devices=1
    )
    last = HERE / "ckpts" / "last.ckpt"
    trainer.fit(
        Module(),
        torch.utils.data.DataLoader(Data(), batch_size=BATCH),
        ckpt_path=last if last.exists() else None,
        weights_only=False,
    )


def transformers() -> None:
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint, set_seed

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            loss = (self.net(x) - labels).square().mean()
            if self.training:
                done = trainer.state.global_step
                killed(done)
                note(done + 1, loss)
            return {"loss": loss}

    set_seed(1)
    options = TrainingArguments(
        output_dir=str(HERE / "ckpts"),
        max_steps=STEPS,
        save_steps=EVERY,
        save_total_limit=1,
        per_device_train_batch_size=BATCH,
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=Model(), args=options, train_dataset=Data())
    trainer.train(resume_from_checkpoint=get_last_checkpoint(HERE / "ckpts") if (HERE / "ckpts").exists() else None)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
    torch.set_num_threads(1)
    import holdfast.trainer.memory_checkpoints  # noqa: F401

    {"lightning": lightning, "transformers": transformers}[FRAMEWORK]()
    from holdfast.trainer.write_behind.switch_on import _started

    print("kept", _started[0]._step if _started else 0, flush=True)
    print("done", sorted(str(path.relative_to(HERE)) for path in (HERE / "ckpts").rglob("*")), flush=True)
