"""What a real agent hears of its ranks' output and training logs, also of what happened while it was away."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.events import LogSignature, NumbersLogged, RanksStarted, StepsMeasured
from holdfast.events.parts.job import JobSpec
from tests.integration.agent_node import node, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from holdfast import trainer
from tensorboardX import SummaryWriter

here = Path(sys.argv[1])
trainer.describe_model(flops_per_token=6e6, peak_flops=1e12)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter(str(here / "logs"), flush_secs=1)
step = 0
while True:
    step += 1
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    writer.add_scalar("mine", 1.0 / step, 1000 + step)
    for name, line in (("first", "RuntimeError: CUDA error: first"), ("second", "OSError: No space left on device")):
        if (here / name).exists():
            (here / name).unlink()
            print(line, file=sys.stderr, flush=True)
            (here / f"{name}-printed").touch()
    time.sleep(0.02)
"""


async def test_signs_and_logged_numbers_are_said_once_across_an_agents_restart(
    node_place: Path, tmp_path: Path, embedded_nats: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    job = JobSpec(
        name="job-1",
        script=str(tmp_path / "train.py"),
        args=(str(tmp_path),),
        cwd=str(tmp_path),
        directory=str(tmp_path),
        tags={"loss": "mine"},
    )
    async with node("signals", node_place, embedded_nats) as it:
        port = (await it.registered()).facts.store_ports[0]
        await it.order(job, 1, port)
        await it.heard.wait(RanksStarted)
        (tmp_path / "first").touch()
        sign = await it.heard.wait(LogSignature)
        assert (sign.rank, sign.signature, sign.symptom, sign.stream) == (0, "cuda_error", "cuda_error", "err")
        assert sign.lines == ("RuntimeError: CUDA error: first",) and sign.generation == 1
        await it.heard.wait(NumbersLogged)

        it.kill_agent()
        (tmp_path / "second").touch()
        await until((tmp_path / "second-printed").exists)
        it.start()
        # The zygote kept it for whoever comes.
        adopted = await it.heard.wait(RanksStarted, lambda e: e.adopted)
        later = await it.heard.wait(LogSignature, lambda e: e.id != sign.id)
        assert (later.signature, later.lines) == ("disk_full", ("OSError: No space left on device",))
        await it.heard.wait(NumbersLogged, lambda e: e.at > adopted.at)
        logged = [sample for event in it.heard.all(NumbersLogged) for sample in event.samples]
        steps = [sample.logged_step for sample in logged]
        assert steps == sorted(set(steps)), "each is said once, in order"
        # The log counts from 1001, the ledger from 0.
        assert all(sample.logged_step - sample.step == 1001 and sample.loss for sample in logged)
        measured = it.heard.all(StepsMeasured)[-1]
        assert (measured.flops_per_token, measured.peak_flops) == (6e6, 1e12)
