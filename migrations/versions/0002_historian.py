"""The historian's events and the views over them.

Revision ID: 0002
Revises: 0001

The historian makes the partitions itself, day by day, so it owns the table. A view may cast what stands in a body
only where the type of the event vouches for it, since fields that an event does not know are kept unchecked; and
fractions only by way of numeric, which alone takes everything that JSON can hold.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SECONDS = """
create function historian.seconds(since timestamptz, until timestamptz) returns double precision
language sql immutable parallel safe as $$
    select case when since is not null and until is not null
           then greatest(0, extract(epoch from until - since))::double precision end
$$
"""

REAL = """
create function historian.real(value numeric) returns double precision
language sql immutable parallel safe as $$
    select case when abs(value) between 1e-300 and 1e300 then value::double precision
                when abs(value) < 1e-300 then 0 end
$$
"""

IN_WORDS = """
create function historian.in_words(type text, body jsonb) returns text
language sql immutable parallel safe as $$
    select case type
    when 'node_registered' then concat('agent started on ', body->'facts'->>'hostname')
    when 'node_inspected' then (
        select string_agg(concat_ws(' ', c->>'name', c->>'status', nullif(c->>'detail', '')), '; ')
        from jsonb_array_elements(body->'checks') c)
    when 'node_departed' then 'agent shut down on purpose'
    when 'process_exited' then concat(
        'rank ', body->>'rank',
        case when body->'exception'->>'type' is not null then concat(
                 ' raised ', body->'exception'->>'type',
                 ': ', left(split_part(body->'exception'->>'message', chr(10), 1), 200))
             when body->>'signal' is not null then concat(' was killed by signal ', body->>'signal')
             when body->>'exit_code' is not null then concat(' ended with exit code ', body->>'exit_code')
             else concat(' is gone: ', coalesce(nullif(body->>'detail', ''), 'no exit status')) end,
        case when coalesce(body->>'step', '-1') = '-1' then ', before any step'
             else concat(', last step ', body->>'step') end)
    when 'first_step' then concat('all ranks of the node completed step ', body->>'step')
    when 'message_rejected' then concat(body->>'consumer', ' rejected a message on ', body->>'subject',
                                        ': ', body->>'error')
    when 'order_refused' then concat('refused the order of epoch ', body->>'epoch', ' and generation ',
        body->>'generation', ', having obeyed ', body->>'newest_epoch', '/', body->>'newest_generation')
    when 'node_lost' then concat('not heard of for ', round((body->>'silent_s')::numeric, 1), ' s')
    when 'step_time_measured' then concat('a step takes ', round((body->>'median_s')::numeric, 3), ' s')
    when 'deadline_passed' then concat_ws(' ',
        'waited', concat(round((body->>'waited_s')::numeric, 1), ' s for'), body->>'awaited',
        (select concat('(missing: ', string_agg(n, ', '), ')')
         from jsonb_array_elements_text(body->'missing_nodes') n having count(*) > 0))
    when 'step_restorable' then concat('step ', body->>'step', ' can be restored')
    when 'incident_opened' then concat_ws(': ', body->>'symptom', body->>'reason')
    when 'incident_closed' then concat_ws(': ', body->>'outcome', body->>'reason')
    when 'job_finished' then concat_ws(': ', body->>'outcome', body->>'reason')
    when 'generation_started' then concat_ws(': ', concat(
        'generation ', body->>'generation', ' on ',
        (select string_agg(n, ', ') from jsonb_array_elements_text(body->'nodes') n),
        case when body->>'restore_step' is not null then concat(' from step ', body->>'restore_step') end),
        body->>'reason')
    when 'ranks_stopped' then concat(
        jsonb_array_length(body->'ranks'), ' ranks ended, ', body->>'killed', ' by SIGKILL, in ',
        round((body->>'took_s')::numeric, 3), ' s')
    when 'ranks_started' then concat(
        jsonb_array_length(body->'ranks'), case when body->>'adopted' = 'true' then ' ranks adopted' else
        ' ranks started' end, ' in ', round((body->>'took_s')::numeric, 3), ' s')
    when 'ranks_finished' then concat(jsonb_array_length(body->'ranks'), ' ranks finished')
    when 'nodes_granted' then concat('granted ', (
        select string_agg(g->>'node', ', ') from jsonb_array_elements(body->'grants') g))
    when 'nodes_awaited' then concat(body->>'available', ' of ', body->>'wanted', ' nodes available')
    when 'node_state_changed' then concat(body->>'old_state', ' to ', body->>'new_state', ': ', body->>'reason')
    when 'checkpoint_saved' then concat('checkpoint of step ', body->>'step', ' saved in ',
                                        round((body->>'took_s')::numeric, 3), ' s')
    else body->>'reason' end
$$
"""

STEPS = """
create view historian.steps as
select e.job, e.generation, e.node, s.rank, s.step, s.ended_at, historian.real(s.duration_s) as duration_s,
       historian.real(s.loss) as loss, historian.real(s.grad_norm) as grad_norm, s.tokens
from historian.events e
cross join lateral jsonb_to_recordset(e.body->'samples') as s(
    rank bigint, step bigint, ended_at timestamptz, duration_s numeric, loss numeric, grad_norm numeric, tokens bigint)
where e.type = 'steps_measured'
"""

GENERATIONS = """
create view historian.generations as
select g.job, g.generation, g.incident, c.type as cause, g.at as started_at,
       historian.seconds(f.at, n.at) as detect_s,
       historian.seconds(n.at, g.at) as decide_s,
       historian.seconds(g.at, s.at) as stop_s,
       historian.seconds(coalesce(s.at, g.at), r.at) as start_s,
       historian.seconds(r.at, d.at) as first_step_s,
       historian.seconds(coalesce(f.at, g.at), d.at) as total_s,
       array(select jsonb_array_elements_text(g.body->'nodes')) as nodes,
       (g.body->>'restore_step')::bigint as restore_step,
       case when f.at is not null then greatest(0,
            greatest(f.step, o.failed_step, -1) - coalesce((g.body->>'restore_step')::bigint, -1)) end as lost_steps,
       case when g.next is not null then coalesce(x.type, 'replaced')
            when j.outcome is not null then j.outcome
            when x.type is not null then x.type
            when d.at is not null then 'training'
            else 'starting' end as outcome,
       f.at as fault_at, n.at as noticed_at, s.at as stopped_at, r.at as ranks_started_at, d.at as first_step_at
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
           max(case e.type when 'process_exited' then (e.body->>'step')::bigint end) as step
    from (
        select e.type, e.at, e.body from historian.events e
        where e.type in ('process_exited', 'node_lost', 'deadline_passed') and e.job = g.job
          and (e.generation >= g.previous and e.generation < g.generation
               or e.generation is null and e.at > g.previous_at and e.at <= g.at)
        union all
        select e.type, e.at, e.body from historian.events e
        where e.id in (g.cause, case when g.nth_of_incident = 1 then o.cause end)
          and e.type in ('process_exited', 'node_lost', 'node_departed', 'deadline_passed')
    ) e
    where g.incident is not null
) f on true
left join lateral (
    select min(e.at) as at from historian.events e
    where e.incident = g.incident and e.class = 'decision' and e.type <> 'progress' and e.type <> 'steps_measured'
      and e.at <= g.at and (e.at > g.previous_at or g.previous_at is null)
) n on true
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
    where e.type in ('process_exited', 'node_lost', 'deadline_passed') and e.job = g.job
      and (e.generation >= g.generation and (e.generation < g.next or g.next is null)
           or e.generation is null and e.at > g.at and (e.at <= g.next_at or g.next_at is null))
    order by e.at limit 1
) x on true
left join lateral (
    select e.body->>'outcome' as outcome from historian.events e
    where e.type = 'job_finished' and e.job = g.job
    order by e.at desc limit 1
) j on true
"""

INCIDENTS = """
create view historian.incidents as
select o.incident, o.job, o.at as opened_at, c.at as closed_at, coalesce(c.symptom, o.body->>'symptom') as symptom,
       o.node, (o.body->>'rank')::bigint as rank, (o.body->>'failed_step')::bigint as failed_step,
       array(select e.node from historian.events e
             where e.type = 'eviction' and e.incident = o.incident and e.job = o.job and e.node is not null
             group by e.node order by min(e.at)) as nodes_evicted,
       coalesce(c.attempts, (select count(*) from historian.events e
                             where e.type = 'generation_started' and e.incident = o.incident and e.job = o.job))
           as attempts,
       coalesce(c.outcome, 'open') as outcome,
       case when c.outcome = 'recovered' then
           historian.seconds(coalesce(f.at, o.at), coalesce(r.at, c.at)) end as seconds_to_recover,
       f.at as fault_at, case when c.outcome = 'recovered' then coalesce(r.at, c.at) end as recovered_at,
       coalesce(c.summary, o.body->>'reason') as summary
from historian.events o
left join lateral (
    select e.at, e.body->>'outcome' as outcome, (e.body->>'attempts')::bigint as attempts,
           nullif(e.body->>'symptom', '') as symptom, nullif(e.body->>'summary', '') as summary
    from historian.events e
    where e.type = 'incident_closed' and e.incident = o.incident and e.job = o.job
    order by e.at limit 1
) c on true
left join lateral (
    select case e.type when 'process_exited' then (e.body->>'exited_at')::timestamptz
                       when 'node_lost' then (e.body->>'last_heard_at')::timestamptz
                       else e.at end as at
    from historian.events e
    where e.id = o.cause and e.class in ('evidence', 'finding')
    limit 1
) f on true
left join lateral (
    select max((e.body->>'completed_at')::timestamptz) as at
    from historian.events e
    where e.type = 'first_step' and e.job = o.job and e.generation = (
        select max(g.generation) from historian.events g
        where g.type = 'generation_started' and g.incident = o.incident and g.job = o.job)
) r on true
where o.type = 'incident_opened'
"""

INCIDENT_TIMELINE = """
create view historian.incident_timeline as
select t.incident, t.job, t.at,
       extract(epoch from t.at - min(t.at) over (partition by t.incident))::double precision as seconds,
       t.class, t.type, t.generation, t.node,
       case when t.type in ('process_exited', 'incident_opened') then (t.body->>'rank')::bigint end as rank,
       historian.in_words(t.type, t.body) as what, t.id as event,
       row_number() over (
           partition by t.incident order by t.at,
           -- What one decision says, it says at one moment.
           case when t.class in ('evidence', 'finding') then 0
                when t.type = 'incident_opened' then 1
                when t.type = 'generation_started' then 3
                when t.type = 'incident_closed' then 4
                when t.class = 'decision' then 2
                else 5 end, t.id) as nth
from (
    select o.incident, o.job, e.at, e.class, e.type, e.generation, e.node, e.body, e.id
    from historian.events o
    left join lateral (
        select min(e.at) as at from historian.events e
        where e.type = 'incident_closed' and e.incident = o.incident and e.job = o.job
    ) c on true
    cross join lateral (
        select e.id from historian.events e
        where e.incident = o.incident and e.type <> 'progress' and e.type <> 'steps_measured'
          and e.type not in ('step_time_measured', 'checkpoint_saved', 'step_restorable')
          and (c.at is null or e.class = 'decision' or e.at <= c.at + interval '10 seconds')
        union
        select e.cause from historian.events e
        where e.incident = o.incident and e.class = 'decision'
          and e.type <> 'progress' and e.type <> 'steps_measured'
    ) member
    join historian.events e on e.id = member.id and (e.incident = o.incident or e.class in ('evidence', 'finding'))
    where o.type = 'incident_opened'
) t
"""

JOBS = """
create view historian.jobs as
select s.job, s.at as submitted_at, f.at as finished_at, coalesce(f.outcome, 'running') as outcome,
       (select count(*) from historian.events e
        where e.type = 'generation_started' and e.job = s.job) as generations,
       nullif(greatest(
           (select max(m.step) from (
                select (sample->>'step')::bigint as step from (
                    select e.body from historian.events e
                    where e.type = 'steps_measured' and e.job = s.job
                    order by e.generation desc, e.at desc limit 64
                ) newest, jsonb_array_elements(newest.body->'samples') sample
            ) m),
           (select max((e.body->>'step')::bigint) from historian.events e
            where e.type in ('first_step', 'checkpoint_saved', 'process_exited') and e.job = s.job)), -1) as last_step,
       (select count(*) from historian.events e
        where e.type = 'incident_opened' and e.job = s.job) as incidents,
       (select coalesce(sum(g.lost_steps), 0) from historian.generations g where g.job = s.job) as lost_steps,
       s.body->'spec'->>'script' as script
from historian.events s
left join lateral (
    select e.at, e.body->>'outcome' as outcome from historian.events e
    where e.type = 'job_finished' and e.job = s.job
    order by e.at desc limit 1
) f on true
where s.type = 'job_submitted'
"""

EVENTS_BY_TYPE = """
create view historian.events_by_type as
select class, type, job, count(*) as events, min(at) as first_at, max(at) as last_at
from historian.events
group by class, type, job
"""

DEAD_LETTERS = """
create view historian.dead_letters as
select at, body->>'consumer' as consumer, body->>'subject' as subject, body->>'error' as error,
       (body->>'body_bytes')::bigint as body_bytes, (body->>'deliveries')::bigint as deliveries,
       node, source, id as event
from historian.events
where type = 'message_rejected'
"""

VIEWS = {
    "steps": (STEPS, "completed steps of every rank: duration, loss, gradient norm, tokens"),
    "generations": (GENERATIONS, "starts of a job: nodes, cause, outcome, seconds per phase from fault to first step"),
    "incidents": (INCIDENTS, "one row an incident: symptom, nodes evicted, attempts, outcome, seconds to recover"),
    "incident_timeline": (
        INCIDENT_TIMELINE,
        "what happened in an incident, in words, with seconds since its first sign",
    ),
    "jobs": (JOBS, "one row a job: outcome, generations, last step, incidents, steps trained twice"),
    "events_by_type": (EVENTS_BY_TYPE, "how many events of each type a job has, and when"),
    "dead_letters": (DEAD_LETTERS, "messages that a consumer could not read or handle, and why"),
}

FREQUENT_LEFT_OUT = "type <> 'progress' AND type <> 'steps_measured'"


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), primary_key=True),
        sa.Column("class", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("job", sa.Text),
        sa.Column("generation", sa.BigInteger),
        sa.Column("node", sa.Text),
        sa.Column("cause", sa.Uuid),
        sa.Column("incident", sa.Uuid),
        sa.Column("body", postgresql.JSONB, nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        schema="historian",
        postgresql_partition_by="RANGE (at)",
        comment="every event, in daily partitions by the emitter's clock; body is the event as it was on the bus",
    )
    for name, columns, options in (
        ("events_at", ["at"], {"postgresql_using": "brin"}),
        ("events_type", ["type", "job", "generation"], {"postgresql_where": sa.text(FREQUENT_LEFT_OUT)}),
        (
            "events_incident",
            ["incident"],
            {"postgresql_where": sa.text(f"incident IS NOT NULL AND {FREQUENT_LEFT_OUT}")},
        ),
        ("events_samples", ["job", "generation", "at"], {"postgresql_where": sa.text("type = 'steps_measured'")}),
    ):
        op.create_index(name, "events", columns, schema="historian", **options)
    op.execute(SECONDS)
    op.execute(REAL)
    op.execute(IN_WORDS)
    for name, (definition, line) in VIEWS.items():
        op.execute(definition)
        op.execute(f"comment on view historian.{name} is $${line}$$")
        op.execute(f"grant select on historian.{name} to holdfast_reader")
    op.execute("grant select on historian.events to holdfast_reader")
    op.execute("grant usage, create on schema historian to holdfast_historian")
    op.execute("alter table historian.events owner to holdfast_historian")
    for name in VIEWS:
        op.execute(f"alter view historian.{name} owner to holdfast_historian")
    op.execute(
        "alter default privileges for role holdfast_historian in schema historian "
        "grant select on tables to holdfast_reader"
    )
