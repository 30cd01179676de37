"""Secrets of jobs that are not in the database any more."""

from __future__ import annotations

from datetime import UTC, datetime

from structlog.testing import capture_logs

from holdfast.events.parts.job import JobSpec
from holdfast_controller.job_secrets import SecretsApart
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Claiming
from holdfast_controller.store import JobSecrets

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def state(job: str, env: dict[str, str]) -> JobState:
    spec = JobSpec(name=job, script="train.py", cwd="/", directory="/", env=env)
    return JobState(spec=spec, phase=Claiming(), submitted_at=NOW, members=(None,))


def test_a_job_whose_secrets_were_deleted_is_named() -> None:
    states = [state("whole", {"KEY": "***"}), state("robbed", {"KEY": "***"}), state("has none", {})]
    with capture_logs() as logs:
        loaded = SecretsApart().load({"whole": JobSecrets(env={"KEY": "value"}, token="")}, states)
    assert loaded["whole"].spec.env == {"KEY": "value"}
    assert [line["job"] for line in logs] == ["robbed"]
