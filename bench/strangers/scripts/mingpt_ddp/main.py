# type: ignore
"""In the style of minGPT-ddp: configured by Hydra, epochs, one snapshot."""

from __future__ import annotations

import hydra
import torch
from char_dataset import CharDataset, DataConfig
from model import GPT, GPTConfig, OptimizerConfig, create_optimizer
from omegaconf import DictConfig
from torch.distributed import destroy_process_group, init_process_group
from trainer import Trainer, TrainerConfig


@hydra.main(version_base=None, config_path=".", config_name="gpt2_train_cfg")
def main(cfg: DictConfig) -> None:
    init_process_group(backend="gloo")
    torch.manual_seed(1234)
    data_config = DataConfig(**cfg["data_config"])
    model = GPT(GPTConfig(**cfg["gpt_config"], block_size=data_config.block_size))
    optimizer = create_optimizer(model, OptimizerConfig(**cfg["optimizer_config"]))
    trainer = Trainer(TrainerConfig(**cfg["trainer_config"]), model, optimizer, CharDataset(data_config))
    trainer.train()
    destroy_process_group()


if __name__ == "__main__":
    main()
