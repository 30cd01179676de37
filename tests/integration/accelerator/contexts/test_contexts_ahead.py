"""Contexts made ahead: the next generation of a rank has one, training has the memory, and nothing hangs on them."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.events import ContextAhead, ProcessExited, RanksStarted
from holdfast.events.parts.job import JobSpec
from tests.accelerator.build import built
from tests.accelerator.children import on_accelerator
from tests.integration.accelerator.contexts.scene import (
    CONTEXT_BYTES,
    CONTEXT_MS,
    MIB,
    Job,
    device_node,
    end_zygote,
    spares_of,
)
from tests.integration.agent_node import gone, until

pytestmark = on_accelerator


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    built()
    place = tmp_path_factory.mktemp("device")
    yield place
    end_zygote(place)


async def test_a_killed_rank_goes_on_in_a_process_that_has_its_context(
    place: Path, tmp_path: Path, embedded_nats: str
) -> None:
    async with device_node("c-kill", place, embedded_nats) as it:
        job = Job(it, "job-1", tmp_path / "one")
        first = await job.start(1, stop_at=6)
        cold = await job.reached(1, 6)
        ready = await job.context(1)
        assert ready.device == "sim:0" and ready.took_s >= CONTEXT_MS / 1e3
        assert ready.free_before_bytes - ready.free_bytes >= CONTEXT_BYTES
        [spare] = spares_of(it)
        os.kill(first.ranks[0].pid, signal.SIGKILL)
        await it.heard.wait(ProcessExited, lambda event: event.generation == 1)
        second = await job.start(2, stop_at=12)
        warm = await job.reached(2, 12)
        assert (second.with_context, second.ranks[0].pid, warm["pid"]) == (1, spare, spare)
        assert (cold["has_context"], warm["has_context"]) == (False, True)
        assert warm["context_s"] < CONTEXT_MS / 1e3 <= cold["context_s"]
        assert warm["restored"] == 6
        # Another job, undisturbed: what was kept for the first one is gone before, and the losses are the same.
        await job.context(2)
        [spare] = spares_of(it)
        other = Job(it, "job-2", tmp_path / "two")
        third = await other.start(3, stop_at=12)
        await gone(spare)
        assert third.with_context == 0
        await other.reached(3, 12)
        assert job.losses(1, 2) == other.losses(3)


async def test_training_has_the_memory_that_it_asks_for(place: Path, tmp_path: Path, embedded_nats: str) -> None:
    async with device_node("c-memory", place, embedded_nats) as it:
        job = Job(it, "job-1", tmp_path / "one")
        (job.place / "allocate-first").write_text(str(350 * MIB))
        await job.start(1, stop_at=6)
        none = await job.context(1, is_ready=False)
        assert "MiB of sim:0 are free" in none.reason and not spares_of(it)
        await job.start(2, stop_at=12)
        await job.context(2)
        [spare] = spares_of(it)
        # 40 MiB are left, and then 104, of which the spare's 64 are a part.
        assert await job.allocate(2, "allocate", 340 * MIB) == "allocate"
        gone_now = await job.context(2, is_ready=False)
        assert "training needs the memory" in gone_now.reason
        await gone(spare)
        assert await job.allocate(2, "allocate-more", 80 * MIB) == "allocate-more"
        # More than is free beside a spare, all at once: the spare could not give its memory back before.
        await job.start(3, stop_at=18)
        await job.context(3)
        job.ask("need", 410 * MIB)
        failed = await it.heard.wait(ProcessExited, lambda event: event.generation == 3)
        assert failed.exception is not None and failed.exception.type == "torch.OutOfMemoryError"
        fourth = await job.start(4, stop_at=24)
        assert fourth.with_context == 0
        assert await job.allocate(4, "need", 410 * MIB) == "need"
        assert "ran out of memory" in (await job.context(4, is_ready=False)).reason


async def test_spares_that_are_stopped_or_dead_harm_nothing(place: Path, tmp_path: Path, embedded_nats: str) -> None:
    async with device_node("c-stop", place, embedded_nats) as it:
        job = Job(it, "job-1", tmp_path / "one")
        await job.start(1, stop_at=6)
        await job.context(1)
        [spare] = spares_of(it)
        os.kill(spare, signal.SIGSTOP)
        second = await job.start(2, stop_at=12)
        assert second.with_context == 0 and second.ranks[0].pid != spare
        await gone(spare)
        assert not (await job.reached(2, 12))["has_context"]
        await job.context(2)
        [spare] = spares_of(it)
        os.kill(spare, signal.SIGKILL)
        assert "ended by itself" in (await job.context(2, is_ready=False)).reason
        third = await job.start(3, stop_at=18)
        assert third.with_context == 0
        await job.reached(3, 18)
        await job.context(3)
        [spare] = spares_of(it)
        os.kill(spare, signal.SIGSTOP)
        # It could not give its memory back.
        await gone(spare)
        assert "stopped" in (await job.context(3, is_ready=False)).reason


AS_USER = """
import json, os, signal, sys, torch
from holdfast.trainer import step
has_context = torch.get_device_module("sim").is_initialized()
weight = torch.nn.Parameter(torch.ones(8, device="sim"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for number in range(1, 5):
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
    step(number, loss=weight.sum())
seen = {"uid": os.getuid(), "has_context": has_context, "weight": weight[0].item()}
print(json.dumps(seen))
signal.pause()
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_context_of_another_user_becomes_a_rank_of_that_user(embedded_nats: str) -> None:
    built()
    place = Path(tempfile.mkdtemp(prefix="holdfast-contexts-", dir="/tmp"))
    place.chmod(0o755)
    try:
        (place / "board").touch()
        (place / "board").chmod(0o666)
        (place / "train.py").write_text(AS_USER)
        async with device_node("c-user", place, embedded_nats, HOLDFAST_JOBS_RUN_AS="nobody") as it:
            job = JobSpec(name="job-1", script=str(place / "train.py"), cwd=str(place), directory=str(place / "jobs"))
            for generation in (1, 2):
                await it.order(job, generation, (await it.registered()).facts.store_ports[generation])
                started = await it.heard.wait(RanksStarted, lambda event: event.generation == generation)  # noqa: B023
                assert (started.user, started.with_context) == ("nobody", generation - 1)
                await it.heard.wait(ContextAhead, lambda event: event.generation == generation and event.is_ready)  # noqa: B023
            output = place / "state/logs/job-1/rank-0.out"
            await until(lambda: output.read_text().count("}") == 2)
            uid = pwd.getpwnam("nobody").pw_uid
            seen = [json.loads(line) for line in output.read_text().splitlines()]
            assert seen == [{"uid": uid, "has_context": has, "weight": pytest.approx(0.6)} for has in (False, True)]
    finally:
        end_zygote(place)
        shutil.rmtree(place)


@pytest.mark.long
async def test_interpreters_of_other_environments_have_contexts_too(
    place: Path, tmp_path: Path, embedded_nats: str
) -> None:
    async with device_node("c-other", place, embedded_nats) as it:
        job = Job(it, "job-1", tmp_path / "one", MALLOC_ARENA_MAX="1")
        await job.start(1, stop_at=6)
        await job.context(1)
        second = await job.start(2, stop_at=12)
        assert second.with_context == 1
        assert (await job.reached(2, 12))["has_context"]
