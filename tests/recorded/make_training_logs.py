"""Makes the recorded training logs beside it anew, with the real writers: `pip install wandb tensorboard`, then

    python tests/recorded/make_training_logs.py

They are recorded because both libraries together take 250 MB. What is in them: 40 steps of a loss and a gradient norm,
the loss of step 30 NaN; besides them what else such files hold (a histogram, text, an image, hyperparameters).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
STEPS = 40
NAN_AT = 30


def loss(step: int) -> float:
    return float("nan") if step == NAN_AT else 4.0 / (step + 1)


def tensorboard(folder: Path) -> Path:
    import torch
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        writer.add_text("config", "layers: 2")
        for step in range(STEPS):
            writer.add_scalar("train/loss", loss(step), step)
            writer.add_scalar("train/grad_norm", 1.0 + step / 10, step)
            writer.add_scalar("eval/loss", 9.0, step)
            writer.add_scalar("train/learning_rate", 1e-3, step, new_style=True)
            writer.add_scalar("mfu(%)", 41.5, step, new_style=True, double_precision=True)
        writer.add_histogram("weights", torch.arange(100.0), STEPS)
        # Above what a reader of scalars takes in: it is passed over.
        writer.add_histogram("large", torch.arange(20_000.0), STEPS, bins=4_500)
        writer.add_scalar("train/loss", 0.5, STEPS)
    (path,) = folder.glob("events.out.tfevents.*")
    return path


def wandb_offline(folder: Path) -> Path:
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)}
    import wandb

    settings = wandb.Settings(
        console="off",
        host="host",
        username="user",
        email="",
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    run = wandb.init(project="recorded", config={"layers": 2, "text": "x" * 10_000}, settings=settings)
    for step in range(STEPS):
        run.log(
            {
                "train": {"loss": loss(step)},
                "train/grad_norm": 1.0 + step / 10,
                "eval/loss": 9.0,
                "note": "x" * 700,
                "flag": True,
            },
            step=step,
        )
    folder = Path(run.dir).parent
    run.finish()
    # Only the end of its own process writes the last block out.
    wandb.teardown()
    (path,) = folder.glob("run-*.wandb")
    return path


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="logs-") as scratch:
        os.chdir(scratch)
        shutil.copy(tensorboard(Path("tensorboard")), HERE / "events.out.tfevents.recorded")
        shutil.copy(wandb_offline(Path("wandb-runs")), HERE / "run-recorded.wandb")


if __name__ == "__main__":
    main()
