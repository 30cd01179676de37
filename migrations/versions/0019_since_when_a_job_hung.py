"""A hang is a fault since the job stood still, not since it was found; and how it was found is part of its incident.

Until now such an incident began with its finding, seconds after training had stopped.

Revision ID: 0019
Revises: 0018
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

SINCE = "when 'node_lost' then (e.body->>'last_heard_at')::timestamptz"
SINCE_HUNG = f"{SINCE}\n                       when 'hang_found' then (e.body->>'since')::timestamptz"

FAULTS = "e.type in ('process_exited', 'node_lost', 'deadline_passed', 'bad_number')"
# One that was only observed led to nothing.
HANGS_TOO = f"""({FAULTS}
               or e.type = 'hang_found' and exists (
                   select from historian.events d
                   where d.type in ('incident_opened', 'reattempt', 'eviction', 'checks_started', 'rollback',
                                    'job_stopping') and d.job = e.job and d.cause = e.id))"""

EVIDENCE = "'process_exited', 'node_lost', 'node_departed', 'deadline_passed', 'bad_number'"

CAUSES = """        select e.cause from historian.events e
        where e.incident = o.incident and e.class = 'decision'
          and e.type <> 'progress' and e.type <> 'steps_measured'
"""
LOOKS = f"""{CAUSES}        union
        select s.id from historian.events e
        join historian.events s on s.type in ('hang_suspected', 'job_traced') and s.job = e.job
            and s.generation = e.generation and s.at between (e.body->>'since')::timestamptz and e.at
        where e.type = 'hang_found' and e.job = o.job and e.id in (
            select d.cause from historian.events d
            where d.incident = o.incident and d.class = 'decision'
              and d.type <> 'progress' and d.type <> 'steps_measured')
"""

ORDER = "case when t.class in ('evidence', 'finding') then 0"


def upgrade() -> None:
    """The views as they are, with more in them."""
    first, generations = _earlier("0002_historian.py"), _earlier("0009_when_noticed.py").GENERATIONS
    connection = op.get_bind()
    generations = _with(generations, EVIDENCE, f"{EVIDENCE}, 'inspection', 'hang_found'")
    connection.exec_driver_sql(_with(_with(generations, FAULTS, HANGS_TOO), SINCE, SINCE_HUNG))
    connection.exec_driver_sql(_again(_with(first.INCIDENTS, SINCE, SINCE_HUNG)))
    timeline = _with(first.INCIDENT_TIMELINE, CAUSES, LOOKS)
    connection.exec_driver_sql(_again(_with(timeline, ORDER, f"case when t.type = 'job_traced' then -1 {ORDER[5:]}")))


def _with(view: str, old: str, new: str) -> str:
    assert old in view
    return view.replace(old, new)


def _again(view: str) -> str:
    return _with(view, "create view", "create or replace view")


def _earlier(migration: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("earlier", Path(__file__).with_name(migration))
    assert spec and spec.loader
    earlier = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(earlier)
    return earlier
