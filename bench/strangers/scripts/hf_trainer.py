# type: ignore
"""In the style of a script for Hugging Face's Trainer: saves by steps, goes on from the newest checkpoint."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class DataArguments:
    samples: int = field(default=4096)
    read_ms: float = field(default=3.0)


class Made(Dataset):
    def __init__(self, data_args: DataArguments) -> None:
        self.args = data_args

    def __len__(self) -> int:
        return self.args.samples

    def __getitem__(self, index: int):
        time.sleep(self.args.read_ms / 1000)
        ids = torch.tensor([(index * 7 + k * k) % 97 for k in range(16)])
        return {"input_ids": ids, "labels": ids}


class Log(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and logs and "loss" in logs:
            with open(os.path.join(args.output_dir, "log.txt"), "a") as file:
                file.write(f"{state.global_step} {logs['loss']!r}\n")


def main() -> None:
    data_args, training_args = HfArgumentParser((DataArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(training_args.seed)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=97, n_positions=16, use_cache=False))
    last_checkpoint = None
    if os.path.isdir(training_args.output_dir):
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
    trainer = Trainer(model=model, args=training_args, train_dataset=Made(data_args), callbacks=[Log()])
    trainer.train(resume_from_checkpoint=last_checkpoint)


if __name__ == "__main__":
    main()
