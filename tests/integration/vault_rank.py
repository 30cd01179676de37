"""A rank that saves every step, changes everything at once, and kills itself: python vault_rank.py DIRECTORY STEPS."""

import os
import signal
import sys
from pathlib import Path

import torch

from holdfast.node.vault.messages import ShardName
from holdfast.trainer.vault_client.client import VaultClient

client = VaultClient(Path(sys.argv[1]), ShardName(job="job", submitted_ms=1, world_size=8, rank=3), generation=1)
weights = torch.zeros(2_000_000)
for step in range(1, int(sys.argv[2]) + 1):
    weights.fill_(float(step))
    client.save(step, {"weights": weights})
    weights.fill_(-1.0)
client.steps()
os.kill(os.getpid(), signal.SIGKILL)
