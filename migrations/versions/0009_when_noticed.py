"""A fault is noticed when somebody says it, and steps without numbers of their own tell of none that were lost.

Until now the controller's decision counted as the moment, which is that of its order as well: deciding took no time.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

GENERATIONS = """
create or replace view historian.generations as
select g.job, g.generation, g.incident, c.type as cause, g.at as started_at,
       historian.seconds(f.at, f.noticed_at) as detect_s,
       historian.seconds(f.noticed_at, g.at) as decide_s,
       historian.seconds(g.at, s.at) as stop_s,
       historian.seconds(coalesce(s.at, g.at), r.at) as start_s,
       historian.seconds(r.at, d.at) as first_step_s,
       historian.seconds(coalesce(f.at, g.at), d.at) as total_s,
       array(select jsonb_array_elements_text(g.body->'nodes')) as nodes,
       w.step as restore_step,
       case when f.at is not null and not u.exists then greatest(0,
            greatest(f.step, o.failed_step, -1) - coalesce(w.step, -1)) end as lost_steps,
       case when g.next is not null then coalesce(x.type, 'replaced')
            when j.outcome is not null then j.outcome
            when x.type is not null then x.type
            when d.at is not null then 'training'
            else 'starting' end as outcome,
       f.at as fault_at, f.noticed_at, s.at as stopped_at, r.at as ranks_started_at, d.at as first_step_at
from (
    select e.job, e.generation, e.incident, e.id, e.cause, e.at, e.body,
           coalesce(lag(e.generation) over w, 0) as previous, lag(e.at) over w as previous_at,
           lead(e.generation) over w as next, lead(e.at) over w as next_at, row_number() over (
               partition by e.job, e.incident order by e.generation) as nth_of_incident
    from historian.events e
    where e.type = 'generation_started'
    window w as (partition by e.job order by e.generation)
) g
left join lateral (
    select e.type from historian.events e where e.id = g.cause limit 1
) c on true
left join lateral (
    select e.cause, case when g.nth_of_incident = 1 then (e.body->>'failed_step')::bigint end as failed_step
    from historian.events e
    where e.type = 'incident_opened' and e.incident = g.incident
    limit 1
) o on true
left join lateral (
    select min(case e.type when 'process_exited' then (e.body->>'exited_at')::timestamptz
                           when 'node_lost' then (e.body->>'last_heard_at')::timestamptz
                           else e.at end) as at,
           min(e.at) as noticed_at,
           max(case e.type when 'process_exited' then (e.body->>'step')::bigint end) as step
    from (
        select e.type, e.at, e.body from historian.events e
        where e.type in ('process_exited', 'node_lost', 'deadline_passed', 'bad_number') and e.job = g.job
          and (e.generation >= g.previous and e.generation < g.generation
               or e.generation is null and e.at > g.previous_at and e.at <= g.at)
        union all
        select e.type, e.at, e.body from historian.events e
        where e.id in (g.cause, case when g.nth_of_incident = 1 then o.cause end)
          and e.type in ('process_exited', 'node_lost', 'node_departed', 'deadline_passed', 'bad_number')
    ) e
    where g.incident is not null
) f on true
left join lateral (
    select exists (
        select from historian.events e
        where e.type = 'first_step' and e.job = g.job and e.generation in (g.previous, g.generation)
          and e.body->>'is_numbered' = 'false'
    ) as exists
) u on true
left join lateral (
    select max(node.at) as at from (
        select min(e.at) as at from historian.events e
        where e.type = 'ranks_started' and e.job = g.job and e.generation = g.generation
          and e.body->>'adopted' is distinct from 'true'
        group by e.node
    ) node
    having count(*) >= jsonb_array_length(g.body->'nodes')
) r on true
left join lateral (
    -- A node that was cut off may end its old ranks long after the others went on without it.
    select max(e.at) as at from historian.events e
    where e.type = 'ranks_stopped' and e.job = g.job and e.generation >= g.previous and e.generation < g.generation
      and (e.at <= r.at or r.at is null)
) s on true
left join lateral (
    select max(node.at) as at from (
        select min((e.body->>'completed_at')::timestamptz) as at from historian.events e
        where e.type = 'first_step' and e.job = g.job and e.generation = g.generation
        group by e.node
    ) node
    having count(*) >= jsonb_array_length(g.body->'nodes')
) d on true
left join lateral (
    select e.type from historian.events e
    where e.type in ('process_exited', 'node_lost', 'deadline_passed', 'bad_number') and e.job = g.job
      and (e.generation >= g.generation and (e.generation < g.next or g.next is null)
           or e.generation is null and e.at > g.at and (e.at <= g.next_at or g.next_at is null))
    order by e.at limit 1
) x on true
left join lateral (
    select e.body->>'outcome' as outcome from historian.events e
    where e.type = 'job_finished' and e.job = g.job
    order by e.at desc limit 1
) j on true
left join lateral (
    -- What the ranks went on from. The order names the newest step that the controller had heard of, or an older one.
    select nullif(coalesce(min((e.body->>'step')::bigint) - 1, (g.body->>'restore_step')::bigint), -1) as step
    from historian.events e
    where e.type = 'first_step' and e.job = g.job and e.generation = g.generation
) w on true
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(GENERATIONS)
