"""The catalogue of restorable steps stays small, and what is late of a job that is over begins nothing anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.daemon.jobs.finished_jobs import FinishedJobs
from holdfast.effects import Effect
from holdfast.events import AnyEvent, CheckpointSaved, JobFinished, StepRestorable, StepsMeasured
from holdfast.events.parts.samples import StepSample
from holdfast.fresh_ids import uuid7
from holdfast.settings.load import Settings
from holdfast_analyzer.register import engines_of
from holdfast_analyzer.service import Analyzer
from holdfast_ckpt.plan.catalogue import KEPT_MAX
from holdfast_ckpt.plan.records import CataloguedStep
from holdfast_ckpt.service import Coordinator
from holdfast_ckpt.store import STEPS, TABLES

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FINISHED = JobFinished(id=uuid7(), at=NOW, source="controller", job="a/b", outcome="completed", exit_code=0, reason="r")


def saved(step: int, after_s: int, *steps: int) -> CheckpointSaved:
    at = NOW + timedelta(seconds=after_s)
    return CheckpointSaved(
        id=uuid7(),
        at=at,
        source="agent/n",
        job="a/b",
        step=step,
        path="/p",
        checkpoint_bytes=1,
        took_s=1.0,
        steps=steps,
    )


class Catalogue:
    """A coordinator and the rows that it wrote."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.rows: dict[str, CataloguedStep] = {}

    def hear(self, event: AnyEvent) -> Effect:
        effect = self.coordinator.on_event(event, NOW)
        self.coordinator.adopt(effect)
        for row in effect.rows:
            if isinstance(row.row, CataloguedStep):
                self.rows[row.key] = row.row
            else:
                del self.rows[row.key]
        return effect

    def steps(self) -> set[int]:
        return {row.step for row in self.rows.values()}


def test_the_catalogue_keeps_the_newest_steps_by_time_also_after_a_start_anew() -> None:
    catalogue = Catalogue()
    for number in range(KEPT_MAX + 5):
        catalogue.hear(saved(10 * number, number))
    assert catalogue.steps() == {10 * number for number in range(5, KEPT_MAX + 5)}
    catalogue.coordinator = Coordinator()
    catalogue.coordinator.load({table.name: {} for table in TABLES} | {STEPS.name: catalogue.rows})
    catalogue.hear(saved(7, 100))
    assert catalogue.steps() == {7, *(10 * number for number in range(6, KEPT_MAX + 5))}


def test_who_says_what_is_there_leaves_no_other_step_in_the_catalogue() -> None:
    catalogue = Catalogue()
    for number in range(5):
        catalogue.hear(saved(number, number))
    catalogue.hear(saved(5, 5, 3, 4, 5))
    assert catalogue.steps() == {3, 4, 5}
    catalogue.hear(saved(6, 6))
    assert catalogue.steps() == {3, 4, 5, 6}


def test_the_catalogue_of_a_job_goes_with_the_job_and_does_not_come_back() -> None:
    catalogue = Catalogue()
    catalogue.hear(saved(10, 1))
    catalogue.hear(FINISHED)
    assert catalogue.rows == {}
    late = catalogue.hear(saved(20, 2))
    assert late.rows == () and isinstance(late.events[0], StepRestorable)


def test_samples_that_come_after_the_end_begin_no_window() -> None:
    analyzer = Analyzer(engines_of(Settings()))
    samples = tuple(StepSample(rank=0, step=step, ended_at=NOW, duration_s=1.0) for step in range(10))
    measured = StepsMeasured(id=uuid7(), at=NOW, source="agent/n", job="a/b", generation=1, node="n", samples=samples)
    assert analyzer.on_event(measured, NOW).events
    analyzer.on_event(FINISHED, NOW)
    assert analyzer.on_event(measured, NOW).is_nothing


def test_only_the_jobs_that_ended_last_are_remembered() -> None:
    finished = FinishedJobs(kept_max=2)
    for job in ("a", "b", "b", "c"):
        finished.add(job)
    assert [job in finished for job in ("a", "b", "c")] == [False, True, True]
