"""Judges of code versions: a bad one leaves with its job going on, a good one stays, and what people asked for runs."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.events import CodeJudged, GenerationStarted, JobFinished, Rollback
from holdfast_proving.inside.cluster import Asked
from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.judging.history import History
from holdfast_proving.world.training import Training

BAD_CODE_S_MAX = 1800.0
"""A version leaves within this time after a bug of it showed: a restart, checks of all nodes and another restart."""
LATE_S = 900.0
"""Delay of an update that its job's own troubles may cause."""
SAME_DECISION_S = 1.0


def bad_code(history: History) -> Iterator[Complaint]:
    """Complain about jobs that go on with a version long after a bug of it showed."""
    over_s: dict[tuple[str, int], float] = {}
    for showing in history.ledger.showings:
        kind, place = history.ledger.records[showing.fault].fault.kind, (showing.job, showing.fault)
        if not kind.version or showing.at_s < over_s.get(place, 0.0):
            continue
        training = _training(history, showing.job)
        left_s = next(
            (at_s for at_s, version in _runs(history, showing.job) if at_s > showing.at_s and version != kind.version),
            _end_s(history, showing.job),
        )
        over_s[place] = left_s
        late_s = showing.at_s + BAD_CODE_S_MAX
        if late_s < left_s and late_s < history.end_s:
            text = f"it goes on with {kind.version}, which has the bug {kind.name}"
            yield Complaint(wrong=Wrong.BAD_CODE_STAYS, at_s=late_s, job=training.job, text=text)


def good_code(history: History) -> Iterator[Complaint]:
    """Complain about versions without a bug that are taken for bad."""
    for at_s, event in history.of(CodeJudged):
        job, name = event.job or "", _name(history, event.job or "", event.version)
        is_asked = any(it.job == job and abs(it.at_s - at_s) < SAME_DECISION_S for it in history.cluster.asked)
        if event.verdict == "bad" and not is_asked and not _has_bug(history, job, name):
            text = f"nothing is wrong with {name}: {event.reason}"
            yield Complaint(wrong=Wrong.GOOD_CODE_BLAMED, at_s=at_s, job=job, text=text)


def rollbacks(history: History) -> Iterator[Complaint]:
    """Complain about rollbacks to a version, though a newer one had trained for long and has no bug."""
    for at_s, event in history.of(Rollback):
        job = event.job or ""
        training = _training(history, job)
        names = [*training.versions.values()]
        target, left = _name(history, job, event.version), _name(history, job, event.previous)
        newer = names[names.index(target) + 1 :]
        sound = [
            name
            for name in newer
            if name != left and training.proven_s.get(name, at_s) < at_s and not _has_bug(history, job, name)
        ]
        if sound:
            text = f"it went back to {target}, and {sound[-1]} is sound and had trained"
            yield Complaint(wrong=Wrong.WENT_BACK_TOO_FAR, at_s=at_s, job=job, text=text)


def updates(history: History) -> Iterator[Complaint]:
    """Complain about versions that people asked for and that do not run in time, or not with the next start."""
    for number, asked in enumerate(history.cluster.asked):
        version, job = asked.update.version, asked.job
        if not version or not asked.is_accepted:
            continue
        late_s = asked.due_s + LATE_S
        until_s = min(history.end_s, _end_s(history, job), _superseded_s(history.cluster.asked[number + 1 :], job))
        started = next((it for it in _runs(history, job) if asked.at_s <= it[0] < min(until_s, late_s)), None)
        if started is not None and started[1] != version:
            text = f"the job was started without {version}, which people had asked for"
            yield Complaint(wrong=Wrong.UPDATE_LOST, at_s=started[0], job=job, text=text)
        elif started is None and late_s < until_s:
            text = f"{version} does not run, which people asked for at {asked.at_s:.0f} s"
            yield Complaint(wrong=Wrong.UPDATE_LOST, at_s=late_s, job=job, text=text)


def _superseded_s(later: list[Asked], job: str) -> float:
    return next((it.at_s for it in later if it.job == job and it.is_accepted), float("inf"))


def _runs(history: History, job: str) -> Iterator[tuple[float, str]]:
    """Return the starts of a job that decisions ordered, with the versions that they run."""
    for at_s, event in history.of(GenerationStarted):
        if event.job == job and event.code_version:
            yield at_s, _name(history, job, event.code_version)


def _end_s(history: History, job: str) -> float:
    return next((at_s for at_s, event in history.of(JobFinished) if event.job == job), float("inf"))


def _has_bug(history: History, job: str, version: str) -> bool:
    plan = _training(history, job).plan.name
    return any(kind.version == version and kind.of == plan for kind in history.scenario.faults)


def _name(history: History, job: str, digest: str) -> str:
    return _training(history, job).versions[digest]


def _training(history: History, job: str) -> Training:
    return next(it for it in history.cluster.trainings if it.plan.name == job.rpartition("-")[0])
