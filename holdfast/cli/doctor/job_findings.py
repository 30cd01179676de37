"""Rules that find what is wrong with jobs: phases that last, ranks' users, copies of checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cli.doctor.facts import Facts, JobRow
from holdfast.cli.doctor.finding import Finding, Severity, warning

CLAIM_S_MAX = 60.0
PHASE_S_MAX = {"starting": 1800.0, "checking": 1800.0, "replaying": 7200.0, "waiting": 3600.0, "stopping": 120.0}
"""More than the default limits that the controller itself sets to each phase."""
STEP_S_MAX = 600.0
STEP_MULTIPLE = 20.0


def lasting_phases(facts: Facts) -> Iterator[Finding]:
    """Yield jobs that have waited for nodes, or been in one phase, for too long."""
    for job in facts.database.jobs if facts.database else ():
        if job.phase == "claiming" and job.unchanged_s > CLAIM_S_MAX:
            yield _waits_for_nodes(job)
        elif job.phase == "waiting" and job.waits_because:
            yield warning(
                kind="job",
                about=job.job,
                what=f"it is paused since {job.unchanged_s:.0f} s: {job.waits_because}",
                cure="mend what it waits for, and it goes on; or `holdfast stop` it",
            )
        elif job.unchanged_s > PHASE_S_MAX.get(job.phase, float("inf")):
            # A script without optimizer steps never leaves this phase.
            may_stay = job.phase == "starting"
            yield Finding(
                kind="job",
                severity=Severity.WARNING if may_stay else Severity.ERROR,
                about=job.job,
                what=f"it is {job.phase} since {job.unchanged_s:.0f} s, and nothing about it has changed",
                cure=f"`holdfast jobs {job.job}` shows its ranks, `holdfast logs controller` what is decided"
                + ("; a script that makes no optimizer steps stays in this phase" if may_stay else ""),
            )
        elif job.phase == "running" and job.step_seen_s is not None:
            limit_s = max(STEP_S_MAX, STEP_MULTIPLE * (job.step_s or 0.0))
            if job.step_seen_s > limit_s:
                yield Finding(
                    kind="job",
                    about=job.job,
                    what=f"it is running, but no step was recorded for {job.step_seen_s:.0f} s",
                    cure=f"`holdfast hang {job.job}` traces its ranks; if they train, the bus or the historian lags",
                )


def users_of_ranks(facts: Facts) -> Iterator[Finding]:
    """Yield jobs whose ranks run as root, or as different users on different nodes."""
    for job in facts.database.jobs if facts.database else ():
        if job.root_because:
            yield warning(
                kind="user",
                about=job.job,
                what=f"its script runs as root and may do everything on its machines: {job.root_because}",
                cure="open it to other users and submit the job again; if that is meant so, `holdfast up --run-as "
                "agent` or [jobs] run_as sets it (docs/security.md)",
            )
        if len(job.users) > 1:
            named = " and ".join(user or "the agent's user" for user in sorted(job.users))
            yield warning(
                kind="user",
                about=job.job,
                what=f"its ranks run as different users, {named}, and cannot write each other's checkpoints",
                cure="give all nodes the same [jobs] run_as, start their agents with it, and `chown -R` the job's "
                "directory to its user (docs/security.md)",
            )


def slow_without_checkpoints(facts: Facts) -> Iterator[Finding]:
    """Yield jobs that are slow and cannot be restarted, since they have no checkpoints."""
    for job in facts.database.jobs if facts.database else ():
        if job.slow_because:
            yield warning(
                kind="slow",
                about=job.job,
                what=job.slow_because,
                cure="let the script make checkpoints (docs/checkpoints.md); or stop the job, and take the machine out",
            )


def kept_for_lack_of_others(facts: Facts) -> Iterator[Finding]:
    """Yield nodes that are probably broken and stay, since no other node can replace them."""
    for job in facts.database.jobs if facts.database else ():
        for why in job.unreplaced:
            yield warning(
                kind="spare",
                about=job.job,
                what=f"one of its nodes is probably broken, and stays as it cannot be replaced: {why}",
                cure="start another agent, or take a repaired node off the blocklist (`holdfast nodes release`): the "
                "job takes it at its next failure",
            )


def shared_faults(facts: Facts) -> Iterator[Finding]:
    """Yield faults of what the nodes of a job share."""
    for job in facts.database.jobs if facts.database else ():
        for fault in job.shared_faults:
            yield warning(
                kind="shared",
                about=job.job,
                what=f"its nodes share a fault: {fault}",
                cure="repair it; no node is evicted for it, and the job goes on if it trains "
                '(`holdfast sql "select * from historian.shared_faults"`)',
            )


def machines_without_copies(facts: Facts) -> Iterator[Finding]:
    """Yield jobs of which the loss of one machine would lose steps in memory."""
    for odds in facts.database.odds if facts.database else ():
        loss = odds.one_machine
        # A job on one machine has no other that could keep a copy.
        if loss.survived < loss.losses and loss.losses > 1:
            yield warning(
                kind="copies",
                about=odds.job,
                what=f"the loss of one machine, for {loss.losses - loss.survived} of {loss.losses}, would lose "
                f"what its memory holds: {odds.reason}",
                cure=f"`holdfast ckpt plan {odds.job}` shows the nodes without a copy: each needs a vault and "
                "another node to keep its copies; or bring steps to the disk more often (--persist-every)",
            )


def _waits_for_nodes(job: JobRow) -> Finding:
    since = f"it waits for nodes since {job.unchanged_s:.0f} s"
    if job.wanted is None:
        what = f"{since}, but the standby service knows no claim of it: the claim was lost on the bus"
        cure = "restart the controller, which claims again"
    elif job.free >= job.wanted:
        what = f"{since}: {job.wanted} wanted, {job.free} free, but none granted"
        cure = "another job may be before it (`holdfast status`); else `holdfast logs standby` shows the reason"
    else:
        what = f"{since}: {job.wanted} wanted, {job.free} free"
        cure = "start more agents, or take repaired nodes off the blocklist: `holdfast nodes release`"
    return warning(kind="job", about=job.job, what=what, cure=cure)
