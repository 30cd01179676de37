"""How many threads a forked rank computes with where nobody has set it."""

from __future__ import annotations

import os
import subprocess
import sys

from holdfast_agent.zygote.fork_rank import threads_of_torch


def test_a_fork_has_as_many_threads_as_torch_takes_by_itself() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    line = (sys.executable, "-c", "import torch; print(torch.get_num_threads())")
    done = subprocess.run(line, env=environment, check=True, capture_output=True, text=True, timeout=120)
    assert threads_of_torch() == int(done.stdout)
