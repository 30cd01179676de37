"""What an incident shows of the steps that were lost in it."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.fresh_ids import uuid7
from holdfast.symptoms import Symptom
from holdfast_controller.plan.incident.incident import Incident


def test_one_loss_is_shown_once_however_often_the_job_restarted_from_its_step() -> None:
    """As when the power is cut again before the job has come any further."""
    lost, before = (
        "64 steps were lost: the job went on from step 280",
        "9 steps were lost: the job went on from step 271",
    )
    incident = Incident(
        id=uuid7(),
        opened_at=datetime(2026, 11, 29, tzinfo=UTC),
        symptom=Symptom.RANKS_VANISHED,
        failed_step=344,
        summary="rank 0 disappeared",
        losses=(before, lost, lost, lost),
    )
    assert incident.full_summary == f"rank 0 disappeared; {before}; {lost}"
