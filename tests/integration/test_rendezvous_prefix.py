"""Keys that a stranger writes into the store of a generation are not those that the job reads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from holdfast.node.rank_variables import STORE_PREFIX
from tests.warm_python import run_warm

pytestmark = pytest.mark.integration

HOST = "127.0.0.1"
SCRIPT = """
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
store, _, _ = next(rendezvous("env://"))
print("read", store.check(["stranger"]))
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("prefix", ["a-secret-of-this-generation", ""])
def test_the_job_reads_only_keys_with_its_secret(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    stranger = TCPStore(HOST, store.port, is_master=False)
    stranger.set("stranger", b"forged")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")} | {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        STORE_PREFIX: prefix,
    }
    command = [sys.executable, "-m", "holdfast.trainer.rank", "train.py"]
    assert f"read {not prefix}" in run_warm(command, cwd=tmp_path, env=environment, timeout=120).stdout
