"""What the commands that read find in the tests' database, and how they are run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec
from click.testing import CliRunner, Result

from holdfast.cli.main import main
from holdfast.engines.record.history import Mark, MarkKind, NodeRecord
from holdfast.events import BreakerOpened, JobFinished, NodesAwaited
from holdfast.events.parts.ranks import RankException
from holdfast.fresh_ids import uuid7
from holdfast_controller.plan.incident.incident import Rung, RungTaken
from tests.integration.historian_scene import Story, killed_and_restarted, record

_NODE = """
insert into standby.nodes (key, version, body, state, job, reason, blocked_until, epoch)
values ($1, 1, '{}', $2, $3, $4, case when $2 = 'evicted' then timestamptz '2025-11-21 16:51:07+00' end, $5)
"""
_JOB = """
insert into controller.jobs (key, version, body, phase, generation, incident, exit_code, submitted_at)
values ($1, 1, '{}', $2, $3, $4, $5, $6)
"""
_USED_NAME = "insert into controller.used_names (key, version, body, ended_at) values ('old', 1, '{}', $1)"
_CLAIM = """
insert into standby.claims (key, version, body, job, wanted, requested_at)
values ($1, 1, jsonb_build_object('id', $2::text), $1, $3, $4)
"""
_INCIDENT = """
insert into controller.incidents (key, version, body, job, opened_at, closed_at, symptom, outcome, attempts, summary)
values ($1, 1, $9::jsonb, $2, $3, $4, $5, $6, $7, $8)
"""
_RECORD = """
insert into controller.node_records (key, version, body, chance, failures, last_at)
values ($1, 1, $2::jsonb, 0.2, 1, now())
"""

WAITS = "waits for 3 nodes, 1 free, behind job gpt; 1 on the blocklist (`holdfast nodes release --all`)"
NOT_RECORDED = uuid7()


class Scene:
    """A database with a job that recovered, and one that failed by its own exception and is still open."""

    def __init__(self, urls: dict[str, str]) -> None:
        self.urls = urls
        self.story, self.recovered = killed_and_restarted("gpt")
        self.open = self._raised()
        self.claim = uuid7()
        self.late, self.failed = Story("late"), Story("failed")
        self.late.submit()
        self.late.say(NodesAwaited, 2, claim=self.claim, wanted=3, available=1, behind="gpt")
        self.late.say(BreakerOpened, 2, evictions=3, window_s=3600.0, reason="too many of them")
        self.failed.submit()
        self.failed.say(BreakerOpened, 2, evictions=1, window_s=3600.0, reason="the job is over")
        self.failed.start(0.001, 0.5)
        self.failed.say(JobFinished, 3, outcome="failed", exit_code=1, reason="rank 0 raised ValueError twice")

    def _raised(self) -> str:
        story = Story("broken")
        story.submit()
        story.start(0.001, 0.5)
        died = story.kill(1, step=-1)
        error = RankException(type="ValueError", message="bad batch", traceback="Traceback:\n  line \x1b[31mred\n")
        self.raised = story.say(
            type(died),
            1.5,
            node="n1",
            rank=0,
            local_rank=0,
            exit_code=1,
            exited_at=story.at(1.4),
            exception=error,
            log_tail="".join(f"line {number}\n" for number in range(40)),
        )
        story.open(1.6, self.raised, failed_step=-1, symptom="user_exception", reason="rank 0 on n1 raised ValueError")
        self.broken = story
        assert story.incident is not None
        return story.incident

    async def set_up(self) -> None:
        stories = (self.story, self.broken, self.late, self.failed)
        await record(self.urls["historian"], [event for story in stories for event in story.events])
        controller = await asyncpg.connect(self.urls["controller"])
        at = self.story.at
        await controller.execute(_JOB, "gpt", "running", 2, None, None, at(0))
        await controller.execute(_JOB, "broken", "starting", 1, self.open, None, at(1))
        await controller.execute(_USED_NAME, at(-3))
        await controller.execute(_JOB, "late", "claiming", 0, None, None, at(-2))
        # To end the ranks uses up a generation.
        await controller.execute(_JOB, "failed", "failed", 2, None, 1, at(-1))
        await controller.execute(
            *(_INCIDENT, self.recovered, "gpt", at(10), at(10.4), "killed", "recovered", 1, "rank 1 on n2 was killed"),
            "{}",
        )
        taken = RungTaken(
            at=at(11),
            generation=1,
            rung=Rung.REATTEMPT,
            reason="rank 0 on n1 raised ValueError",
            evidence=(self.raised.id, NOT_RECORDED),
            next="stop",
        )
        await controller.execute(
            *(_INCIDENT, self.open, "broken", at(11), None, "user_exception", None, 1, "rank 0 raised ValueError"),
            msgspec.json.encode({"taken": [taken]}).decode(),
        )
        for number in range(1, 5):
            crashed = Mark(at=datetime.now(UTC), kind=MarkKind.CRASH, job="gpt", nodes=256, rack="r7", rack_nodes=8)
            of_node = NodeRecord(node=f"n{number}", marks=(crashed,), counts={"crash": 1})
            await controller.execute(_RECORD, of_node.node, msgspec.json.encode(of_node).decode())
        await controller.close()
        standby = await asyncpg.connect(self.urls["standby"])
        await standby.execute(_NODE, "n1", "active", "gpt", "granted", 3)
        await standby.execute(_NODE, "n2", "evicted", None, "failed twice", 4)
        await standby.execute(_NODE, "n3", "standby", None, "", 0)
        await standby.execute(_CLAIM, "late", self.claim, 3, at(-2))
        await standby.close()


def holdfast(scene: Scene, *arguments: str, role: str = "reader", given: str | None = None) -> Result:
    return CliRunner().invoke(main, [*arguments, "--database-url", scene.urls[role]], input=given)


def data(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
