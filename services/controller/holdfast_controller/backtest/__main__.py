"""`python -m holdfast_controller.backtest`: the record of jobs under two policies, as JSON on the standard output.

The database's address is in HOLDFAST_DATABASE_URL. Progress goes to the standard error, a line of JSON for each job.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.events import Event
from holdfast.events.summaries import summary
from holdfast.settings.load import ConfigRefused, Settings, load
from holdfast.store import StoreUnavailable
from holdfast.store.connections import NotMigrated
from holdfast_controller.backtest.costs import Costs, response_of
from holdfast_controller.backtest.inputs import inputs_of
from holdfast_controller.backtest.lockstep import Parting, Unexplained, compare
from holdfast_controller.backtest.policies import changed, overlaid, rules_of
from holdfast_controller.backtest.recorded_jobs import JobRecord, Record, RecordedJob

SHOWN_MAX = 1000
"""Longest list of partings, and of decisions that are not reproduced, for one job."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="holdfast_controller.backtest", description=__doc__)
    parser.add_argument("--job", help="this job only")
    parser.add_argument("--since", type=datetime.fromisoformat, help="jobs with an incident since then")
    parser.add_argument("--was", help="TOML file with the settings that were in force; default: the present ones")
    parser.add_argument("--policy", help="TOML file with the settings to compare with, on top of those")
    args = parser.parse_args()
    try:
        was = load({} if args.was else os.environ, file=args.was)[0]
        other = overlaid(was, args.policy) if args.policy else was
        found = asyncio.run(_backtest(os.environ["HOLDFAST_DATABASE_URL"], args.job, args.since, was, other))
    except (ConfigRefused, StoreUnavailable, NotMigrated) as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")


async def _backtest(
    url: str, name: str | None, since: datetime | None, was: Settings, other: Settings
) -> dict[str, object]:
    record = await Record.connect(url)
    try:
        jobs = await record.jobs(name, since)
        tested = []
        for number, job in enumerate(jobs, start=1):
            _report_progress({"job": job.name, "number": number, "jobs": len(jobs)})
            read = await record.read(job, datetime.now(UTC) + timedelta(seconds=1))
            tested.append(_tested(job, read, was, other))
    finally:
        await record.close()
    return {"changed": changed(was, other), "jobs": tested}


def _tested(job: RecordedJob, read: JobRecord, was: Settings, other: Settings) -> dict[str, object]:
    inputs = inputs_of(read.seen, read.decisions)
    found = compare(inputs, rules_of(was, read.manifests), rules_of(other, read.manifests))
    costs = Costs(read.decisions)
    return {
        "job": job.name,
        "submitted_at": job.submitted_at,
        "finished_at": job.finished_at,
        "inputs": found.inputs,
        "unreadable": read.unreadable,
        "decisions": found.decisions,
        "reproduced": found.reproduced,
        "not_reproduced": [_unexplained(it) for it in found.unexplained[:SHOWN_MAX]],
        "partings": [_parting(it, costs) for it in found.partings[:SHOWN_MAX]],
    }


def _parting(parting: Parting, costs: Costs) -> dict[str, object]:
    return {
        "at": parting.at,
        "incident": parting.incident,
        "phase": parting.phase,
        "cause": _shown(parting.cause) if parting.cause else None,
        "recorded": [_shown(event) for event in parting.decided],
        "recorded_response": response_of(parting.decided),
        "instead": [_shown(event) for event in parting.would_decide],
        "response_instead": response_of(parting.would_decide),
        "cost": costs.of(parting),
    }


def _unexplained(it: Unexplained) -> dict[str, object]:
    return {
        "at": it.at,
        "cause": _shown(it.cause) if it.cause else None,
        "recorded": [_shown(event) for event in it.recorded],
        "reproduced": [_shown(event) for event in it.decided],
    }


def _shown(event: Event) -> dict[str, object]:
    return {"id": event.id, "type": event.type, "node": event.node, "what": summary(event) or ""}


def _report_progress(progress: object) -> None:
    sys.stderr.buffer.write(msgspec.json.encode(progress) + b"\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
