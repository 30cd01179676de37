-- All views and the functions they use. `holdfast migrate` runs this whole script in its transaction whenever it differs
-- from the script that the database had last.
--
-- The body of an event may hold fields that its type does not declare, and those are not checked. So a view casts a
-- value from a body only if the type of the event declares it. It casts fractions to numeric, never to a float type:
-- only numeric takes every number that JSON can hold.

drop view if exists
    historian.ettr,
    historian.steps,
    historian.generations,
    historian.incidents,
    historian.incident_timeline,
    historian.incident_phases,
    historian.jobs,
    historian.events_by_type,
    historian.dead_letters,
    historian.throughput,
    historian.logged_numbers,
    historian.telemetry,
    historian.device_activity,
    historian.port_activity,
    historian.credential_changes,
    historian.shared_faults,
    historian.group_evictions,
    controller.node_history,
    ckpt.restorable,
    ckpt.odds;
drop function if exists historian.in_words(text, jsonb);
drop function if exists historian.ettr_between(timestamptz, timestamptz);
drop function if exists historian.is_start_known(jsonb);

create or replace function historian.seconds(since timestamptz, until timestamptz) returns double precision
language sql immutable parallel safe as $$
    select case when since is not null and until is not null
           then greatest(0, extract(epoch from until - since))::double precision end
$$;

create or replace function historian.real(value numeric) returns double precision
language sql immutable parallel safe as $$
    select case when abs(value) between 1e-300 and 1e300 then value::double precision
                when abs(value) < 1e-300 then 0 end
$$;

-- From a `first_step`: do its numbers show at which step of the job the generation went on? Agents of earlier releases
-- did not say where numbers come from; they counted from 0 what was not numbered, whatever the script had restored.
create function historian.is_start_known(body jsonb) returns boolean
language sql immutable parallel safe as $$
    select body->>'is_start_unknown' is distinct from 'true'
           and (body->>'is_numbered' is distinct from 'false' or coalesce(body->>'step_source', '') <> '')
$$;

create view historian.steps as
select e.job, e.generation, e.node, s.rank, s.step, s.ended_at, historian.real(s.duration_s) as duration_s,
       historian.real(s.loss) as loss, historian.real(s.grad_norm) as grad_norm, s.tokens, s.not_finite
from historian.events e
cross join lateral jsonb_to_recordset(e.body->'samples') as s(
    rank bigint, step bigint, ended_at timestamptz, duration_s numeric, loss numeric, grad_norm numeric, tokens bigint,
    not_finite jsonb)
where e.type = 'steps_measured';

comment on view historian.steps is 'completed steps of every rank: duration, loss, gradient norm, tokens';

create view historian.generations as
select g.job, g.generation, g.incident, c.type as cause, g.at as started_at,
       historian.seconds(f.at, f.noticed_at) as detect_s,
       historian.seconds(f.noticed_at, least(k.at, g.at)) as decide_s,
       historian.seconds(greatest(k.at, f.noticed_at), g.at) as wait_s,
       historian.seconds(g.at, s.at) as stop_s,
       historian.seconds(greatest(s.at, g.at), r.at) as start_s,
       historian.seconds(greatest(r.at, g.at), d.at) as first_step_s,
       historian.seconds(coalesce(f.at, g.at), d.at) as total_s,
       array(select jsonb_array_elements_text(g.body->'nodes')) as nodes,
       coalesce(nullif(n.first - 1, -1), w.step) as restore_step,
       -- A restart without a failure, for an update or in place of a slow node, may cost steps as well.
       case when g.previous = 0 or u.exists or not w.has_begun then null
            when n.first is not null then greatest(0, coalesce(l.reached, -1) + coalesce(p.first, 0) - (n.first - 1))
            -- Numbers of output are not compared with others: they begin at 0 or 1, as the script likes.
            when p.first > 1 then null
            -- A restored number beyond what was reached counts something else than optimizer steps.
            when w.source = 'restored' and w.step > l.reached + 2 then null
            else greatest(0, coalesce(l.reached, -1) - coalesce(w.step, -1)) end as lost_steps,
       case when g.next is not null then coalesce(x.type, 'replaced')
            when j.outcome is not null then j.outcome
            when x.type is not null then x.type
            when d.at is not null then 'training'
            else 'starting' end as outcome,
       f.at as fault_at, f.noticed_at, k.at as requested_at, s.at as stopped_at, r.at as ranks_started_at, d.at as first_step_at,
       coalesce(x.at, g.next_at, j.at) as ended_at,
       w.is_start_known or n.first is not null as is_start_known,
       case when n.first is null then w.source else 'log' end as step_source,
       coalesce(n.source_name, w.source_name) as step_source_name,
       g.previous > 0 as is_restart
from (
    select e.job, e.generation, e.incident, e.id, e.cause, e.at, e.body,
           coalesce(lag(e.generation) over w, 0) as previous, lag(e.at) over w as previous_at,
           lead(e.generation) over w as next, lead(e.at) over w as next_at, row_number() over (
               partition by e.job, e.incident order by e.generation) as nth_of_incident,
           min(e.generation) over (partition by e.job, e.incident) as first_of_incident
    from historian.events e
    where e.type = 'generation_started'
    window w as (partition by e.job order by e.generation)
) g
left join lateral (
    select e.type from historian.events e where e.id = g.cause limit 1
) c on true
left join lateral (
    -- The step of the fault counts until a generation has gone on from it.
    select e.cause, case when not exists (
        select from historian.events b
        where b.type = 'first_step' and b.job = g.job
          and b.generation >= g.first_of_incident and b.generation < g.generation
    ) then (e.body->>'failed_step')::bigint end as failed_step
    from historian.events e
    where e.type = 'incident_opened' and e.incident = g.incident
    limit 1
) o on true
left join lateral (
    select min(case e.type when 'process_exited' then (e.body->>'exited_at')::timestamptz
                           when 'node_lost' then (e.body->>'last_heard_at')::timestamptz
                       when 'hang_found' then (e.body->>'since')::timestamptz
                           else e.at end) as at,
           min(e.at) as noticed_at,
           (array_agg((e.body->>'step')::bigint order by e.at)
               filter (where e.type = 'process_exited' and (e.body->>'step')::bigint >= 0))[1] as step
    from (
        select e.type, e.at, e.body from historian.events e
        where (e.type in ('process_exited', 'node_lost', 'deadline_passed', 'bad_number')
               or e.type = 'hang_found' and exists (
                   select from historian.events d
                   where d.type in ('incident_opened', 'reattempt', 'eviction', 'checks_started', 'rollback',
                                    'job_stopping') and d.job = e.job and d.cause = e.id)) and e.job = g.job
          and (e.generation >= g.previous and e.generation < g.generation
               or e.generation is null and e.at > g.previous_at and e.at <= g.at)
        union all
        select e.type, e.at, e.body from historian.events e
        where e.id in (g.cause, case when g.nth_of_incident = 1 then o.cause end)
          and e.type in ('process_exited', 'node_lost', 'node_departed', 'deadline_passed', 'bad_number', 'inspection', 'hang_found')
    ) e
    where g.incident is not null
) f on true
left join lateral (
    -- The first request for nodes that the job stands still for.
    select min(e.at) as at from historian.events e
    where e.type = 'nodes_requested' and e.job = g.job and e.incident = g.incident
      and e.at > g.previous_at and e.at <= g.at and e.body->>'trains_on' is distinct from 'true'
) k on true
left join lateral (
    select max(e.generation) as generation from historian.events e
    where e.type = 'first_step' and e.job = g.job and e.generation < g.generation
) before on true
left join lateral (
    -- The number that the script gives to the first step, where steps are counted from 0.
    select min((e.body->>'step')::bigint) as first, min(e.body->>'step_source_name') as source_name
    from historian.events e
    where e.type = 'steps_numbered' and e.job = g.job and e.generation = g.generation
) n on true
left join lateral (
    select min((e.body->>'step')::bigint) as first from historian.events e
    where e.type = 'steps_numbered' and e.job = g.job and e.generation = before.generation
) p on true
left join lateral (
    select exists (
        select from historian.events e
        where e.type = 'first_step' and e.job = g.job and not historian.is_start_known(e.body)
          and e.generation in (g.generation, before.generation)
          and not exists (select from historian.events l where l.type = 'steps_numbered' and l.job = g.job
                          and l.generation = e.generation)
    ) as exists
) u on true
left join lateral (
    -- The last step before the fault, as the controller counts it: that of the first rank to end. Those that train on
    -- without it until they next exchange something add steps that are none of the job's. Where no rank has reported a
    -- step of its own at its end, it is the newest of any rank, which may be reported only when the ranks are stopped.
    select greatest(f.step, o.failed_step, case when f.step is null then (
        select max((sample->>'step')::bigint) from (
            select e.body from historian.events e
            where e.type = 'steps_measured' and e.job = g.job and e.generation = before.generation
              and before.generation >= g.previous
            order by e.at desc limit 32
        ) newest, jsonb_array_elements(newest.body->'samples') sample
    ) end) as reached
) l on true
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
    -- A node that was cut off may stop its old ranks long after the others have gone on without it.
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
    select e.type, case e.type when 'process_exited' then (e.body->>'exited_at')::timestamptz
                               when 'node_lost' then (e.body->>'last_heard_at')::timestamptz
                               when 'hang_found' then (e.body->>'since')::timestamptz
                               else e.at end as at
    from historian.events e
    where (e.type in ('process_exited', 'node_lost', 'deadline_passed', 'bad_number')
               or e.type = 'hang_found' and exists (
                   select from historian.events d
                   where d.type in ('incident_opened', 'reattempt', 'eviction', 'checks_started', 'rollback',
                                    'job_stopping') and d.job = e.job and d.cause = e.id)) and e.job = g.job
      and (e.generation >= g.generation and (e.generation < g.next or g.next is null)
           or e.generation is null and e.at > g.at and (e.at <= g.next_at or g.next_at is null))
    order by e.at limit 1
) x on true
left join lateral (
    select e.body->>'outcome' as outcome, e.at from historian.events e
    where e.type = 'job_finished' and e.job = g.job
    order by e.at desc limit 1
) j on true
left join lateral (
    -- The step that the ranks restored. The order names the newest step that the controller knew, or an older one.
    select nullif(coalesce(min((e.body->>'step')::bigint) - 1, (g.body->>'restore_step')::bigint), -1) as step,
           count(*) > 0 as has_begun, bool_and(historian.is_start_known(e.body)) as is_start_known,
           nullif(min(e.body->>'step_source'), '') as source, nullif(min(e.body->>'step_source_name'), '') as source_name
    from historian.events e
    where e.type = 'first_step' and e.job = g.job and e.generation = g.generation
) w on true;

comment on view historian.generations is 'one row per start of a job: nodes, cause, outcome, seconds per phase from fault to first step';

create view historian.incidents as
select o.incident, o.job, o.at as opened_at, c.at as closed_at,
       coalesce(case when d.at > c.at then d.symptom end, c.symptom, d.symptom, o.body->>'symptom') as symptom,
       o.node, (o.body->>'rank')::bigint as rank, (o.body->>'failed_step')::bigint as failed_step,
       array(select e.node from historian.events e
             where e.type = 'eviction' and e.incident = o.incident and e.job = o.job and e.node is not null
             group by e.node order by min(e.at)) as nodes_evicted,
       coalesce(c.attempts, (select count(*) from historian.events e
                             where e.type = 'generation_started' and e.incident = o.incident and e.job = o.job))
           as attempts,
       coalesce(c.outcome, 'open') as outcome,
       (select case when bool_or(g.is_restart and g.lost_steps is null
                                 and (g.is_start_known is not null or g.outcome in ('starting', 'completed', 'stopped')))
               then null else coalesce(sum(g.lost_steps), 0)::bigint end
        from historian.generations g where g.job = o.job and g.incident = o.incident) as lost_steps,
       case when c.outcome = 'recovered' then
           historian.seconds(coalesce(f.at, o.at), coalesce(r.at, c.at)) end as seconds_to_recover,
       f.at as fault_at, case when c.outcome = 'recovered' then coalesce(r.at, c.at) end as recovered_at,
       coalesce(c.summary, o.body->>'reason') as summary,
       coalesce(d.table_one, o.body->>'table_one', '') as table_one, coalesce(d.root, o.body->>'root', '') as root,
       case when d.symptom is null then o.node else d.node end as first_node, d.proof, d.rule
from historian.events o
left join lateral (
    select e.body->>'symptom' as symptom, coalesce(e.body->>'table_one', '') as table_one, e.body->>'root' as root,
           e.node, coalesce(e.body->>'proof', '') as proof, e.body->>'rule' as rule, e.at
    from historian.events e
    where e.type = 'incident_diagnosed' and e.incident = o.incident and e.job = o.job
    order by e.at desc limit 1
) d on true
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
                       when 'hang_found' then (e.body->>'since')::timestamptz
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
where o.type = 'incident_opened';

comment on view historian.incidents is 'one row per incident: symptom, its row of Table 1, root, first node, nodes evicted, outcome, steps lost, seconds to recover';

-- Each mark is the beginning of a phase, and the next mark is its end: phases are disjoint, and together as long as the
-- incident. Within a generation a mark is never before the one that it follows, whatever clock or late event says so.
create view historian.incident_phases as
with bounds as not materialized (
    select i.incident, i.job, coalesce(i.fault_at, i.opened_at) as since, i.opened_at,
           greatest(coalesce(i.fault_at, i.opened_at), coalesce(i.recovered_at, i.closed_at, now())) as until
    from historian.incidents i
), started as not materialized (
    select g.incident, g.job, g.generation, g.fault_at, greatest(g.noticed_at, g.fault_at) as noticed_at,
           greatest(g.requested_at, g.noticed_at, g.fault_at) as requested_at, g.requested_at is not null as has_request,
           g.started_at, greatest(g.stopped_at, g.started_at) as stopped_at, g.ranks_started_at, g.first_step_at,
           case when g.outcome in ('process_exited', 'node_lost', 'deadline_passed', 'bad_number', 'hang_found')
                then g.ended_at end as failed_at
    from historian.generations g
    where g.incident is not null
), marks as (
    select b.incident, b.job, s.generation, m.nth, m.phase, m.at
    from bounds b
    cross join lateral (
        select min(s.generation) as generation from started s where s.job = b.job and s.incident = b.incident
    ) s
    cross join lateral (values
        (-2, 'detect', b.since), (-1, 'decide', case when s.generation is null then b.opened_at end)) m(nth, phase, at)
    union all
    select s.incident, s.job, s.generation, m.nth, m.phase, m.at
    from started s
    cross join lateral (values
        (1, 'detect', s.fault_at), (2, 'decide', s.noticed_at),
        (3, 'wait for nodes', case when s.has_request then s.requested_at end),
        (4, 'stop', s.started_at), (5, 'start', s.stopped_at),
        (6, 'first step', case when s.ranks_started_at is not null
                               then greatest(s.ranks_started_at, s.stopped_at) end),
        (7, 'training between attempts', case when s.first_step_at is not null
                                              then greatest(s.first_step_at, s.ranks_started_at, s.stopped_at) end),
        (8, 'decide', s.failed_at)) m(nth, phase, at)
    union all
    select e.incident, e.job, e.generation, 9, case e.type when 'checks_started' then 'test' when 'replay_started' then 'test'
                                                    when 'suspension' then 'pause' else 'decide' end, e.at
    from historian.events e
    where e.type in ('checks_started', 'checks_ended', 'replay_started', 'replay_ended', 'suspension')
      and e.incident is not null
      -- A job that is suspended because nodes are missing waits for them: that phase has begun.
      and (e.type <> 'suspension' or e.body->>'pause_s' is not null)
), spans as (
    select b.incident, b.job, m.generation, m.phase, c.at as began_at,
           coalesce(lead(c.at) over w, b.until) as ended_at
    from marks m
    join bounds b on b.incident = m.incident and b.job = m.job
    cross join lateral (select least(b.until, greatest(b.since, m.at)) as at) c
    where m.at is not null
    window w as (partition by b.job, b.incident order by c.at, m.generation, m.nth)
)
select incident, job, generation, phase, began_at, ended_at, historian.seconds(began_at, ended_at) as seconds
from spans
where ended_at > began_at;

comment on view historian.incident_phases is 'where the time of an incident went: disjoint phases of each generation, from the fault until training resumed';

create view historian.incident_timeline as
select t.incident, t.job, t.at,
       extract(epoch from t.at - min(t.at) over (partition by t.incident))::double precision as seconds,
       t.class, t.type, t.generation, t.node,
       case when t.type in ('process_exited', 'incident_opened', 'incident_diagnosed') then (t.body->>'rank')::bigint end as rank,
       coalesce(t.summary, nullif(t.body->>'summary', ''), nullif(t.body->>'reason', ''), replace(t.type, '_', ' '))
           as what, t.id as event,
       row_number() over (
           partition by t.incident order by t.at,
           -- All events of one decision have the same time.
           case when t.type = 'job_traced' then -1 when t.class in ('evidence', 'finding') then 0
                when t.type in ('incident_opened', 'incident_diagnosed', 'shared_fault_found') then 1
                when t.type = 'generation_started' then 3
                when t.type in ('incident_closed', 'shared_fault_over') then 4
                when t.class = 'decision' then 2
                else 5 end, t.id) as nth
from (
    select o.incident, o.job, e.at, e.class, e.type, e.generation, e.node, e.body, e.summary, e.id
    from historian.events o
    left join lateral (
        select min(e.at) as at from historian.events e
        where e.type in ('incident_closed', 'shared_fault_over') and e.incident = o.incident and e.job = o.job
    ) c on true
    cross join lateral (
        select e.id from historian.events e
        where e.incident = o.incident and e.type <> 'progress' and e.type <> 'steps_measured'
          and e.type not in ('step_time_measured', 'checkpoint_saved', 'step_restorable')
          and (c.at is null or e.class = 'decision' or e.type = 'suspects_tested'
               or e.at <= c.at + interval '10 seconds')
        union
        select e.cause from historian.events e
        where e.incident = o.incident and e.class = 'decision'
          and e.type <> 'progress' and e.type <> 'steps_measured'
        union
        select s.id from historian.events e
        join historian.events s on s.type in ('hang_suspected', 'job_traced') and s.job = e.job
            and s.generation = e.generation and s.at between (e.body->>'since')::timestamptz and e.at
        where e.type = 'hang_found' and e.job = o.job and e.id in (
            select d.cause from historian.events d
            where d.incident = o.incident and d.class = 'decision'
              and d.type <> 'progress' and d.type <> 'steps_measured')
    ) member
    join historian.events e on e.id = member.id and (e.incident = o.incident or e.class in ('evidence', 'finding'))
    where o.type in ('incident_opened', 'shared_fault_found')
) t;

comment on view historian.incident_timeline is 'the events of an incident in plain English, with seconds since its first sign';

create view historian.jobs as
select s.job, s.at as submitted_at, f.at as finished_at, coalesce(f.outcome, 'running') as outcome,
       (select count(*) from historian.events e
        where e.type = 'generation_started' and e.job = s.job) as generations,
       -- Of the newest generation that has made a step: an earlier one may have been further, before a rollback.
       (select nullif(max(m.step), -1) from (
            select (sample->>'step')::bigint + coalesce((
                select min((n.body->>'step')::bigint) from historian.events n
                where n.type = 'steps_numbered' and n.job = s.job and n.generation = newest.generation), 0) as step,
                newest.generation
            from (
                select e.body, e.generation from historian.events e
                where e.type = 'steps_measured' and e.job = s.job
                order by e.generation desc, e.at desc limit 64
            ) newest, jsonb_array_elements(newest.body->'samples') sample
            union all
            select (e.body->>'step')::bigint, e.generation from historian.events e
            where e.type in ('first_step', 'checkpoint_saved', 'process_exited') and e.job = s.job
              and (e.body->>'step')::bigint >= 0
            order by generation desc nulls last fetch first row with ties
        ) m) as last_step,
       (select count(*) from historian.events e
        where e.type = 'incident_opened' and e.job = s.job) as incidents,
       (select case when bool_or(g.is_restart and g.lost_steps is null
                                 and (g.is_start_known is not null or g.outcome in ('starting', 'completed', 'stopped')))
                         or f.outcome = 'stopped' and bool_and(g.is_start_known is null)
               then null else coalesce(sum(g.lost_steps), 0) end
        from historian.generations g where g.job = s.job) as lost_steps,
       s.body->'spec'->>'script' as script,
       (select coalesce(e.body->>'step_source_name', e.body->>'step_source') from historian.events e
        where e.type in ('first_step', 'steps_numbered') and e.job = s.job
        order by e.generation desc, e.at desc limit 1) as step_source
from historian.events s
left join lateral (
    select e.at, e.body->>'outcome' as outcome from historian.events e
    where e.type = 'job_finished' and e.job = s.job
    order by e.at desc limit 1
) f on true
where s.type = 'job_submitted';

comment on view historian.jobs is 'one row per job: outcome, generations, present step and its source, incidents, steps trained twice (null: not known)';

-- A generation trains from its first step to its end. What it repeats of earlier generations comes first.
create function historian.ettr_between(since timestamptz, until timestamptz)
returns table (job text, began_at timestamptz, ended_at timestamptz, wall_s double precision,
               training_s double precision, redone_s double precision, productive_s double precision,
               ettr double precision)
language sql stable parallel safe as $$
    with known as (
        select g.job, g.generation, g.first_step_at, g.ended_at, g.restore_step, g.lost_steps, g.is_start_known,
               g.is_restart, g.outcome
        from historian.generations g
    ), trained as (
        select g.job, g.first_step_at as began_at, coalesce(g.ended_at, least(until, now())) as ended_at,
               coalesce(g.restore_step, -1) as restored,
               -- The last step before the end, as the next generation that trains shows it.
               lead(coalesce(g.restore_step, -1) + coalesce(g.lost_steps, 0)) over w as reached,
               max(coalesce(g.restore_step, -1) + coalesce(g.lost_steps, 0)) over w as reached_before,
               not g.is_start_known or g.is_restart and g.lost_steps is null as is_unknown
        from known g
        where g.first_step_at is not null
        window w as (partition by g.job order by g.generation)
    ), paced as (
        select t.*, reached_before - restored as repeated,
               case when reached > restored then historian.seconds(t.began_at, t.ended_at) / (reached - restored) end
                   as own_pace_s,
               sum(historian.seconds(t.began_at, t.ended_at)) filter (where reached > restored) over j
                   / sum(reached - restored) filter (where reached > restored) over j as pace_s
        from trained t
        window j as (partition by t.job)
    ), spans as (
        select p.job, p.began_at, p.ended_at,
               least(p.ended_at, p.began_at + coalesce(own_pace_s, pace_s, 0) * repeated * interval '1 second') as new_at
        from paced p
        where p.ended_at > p.began_at
    )
    select j.job, j.began_at, j.ended_at, j.wall_s, t.training_s,
           case when j.is_numbered then t.redone_s end, case when j.is_numbered then t.training_s - t.redone_s end,
           case when j.is_numbered then (t.training_s - t.redone_s) / nullif(j.wall_s, 0) end
    from (
        select s.job, greatest(s.submitted_at, since) as began_at,
               least(coalesce(s.finished_at, now()), until) as ended_at,
               historian.seconds(greatest(s.submitted_at, since), least(coalesce(s.finished_at, now()), until))
                   as wall_s,
               not exists (select from trained t where t.job = s.job and t.is_unknown)
                   -- It trained without steps that could be seen.
                   and not exists (select from known g where g.job = s.job and g.first_step_at is null
                                   and (g.outcome = 'completed' or g.outcome = 'stopped'
                                        and not exists (select from trained t where t.job = g.job))) as is_numbered
        from historian.jobs s
    ) j
    cross join lateral (
        select coalesce(sum(historian.seconds(greatest(s.began_at, j.began_at), least(s.ended_at, j.ended_at))), 0)
                   as training_s,
               coalesce(sum(historian.seconds(greatest(s.began_at, j.began_at), least(s.new_at, j.ended_at))), 0)
                   as redone_s
        from spans s where s.job = j.job
    ) t
    where j.ended_at > j.began_at
$$;

comment on function historian.ettr_between(timestamptz, timestamptz) is
    'the productive share of each job''s time between two times; null: since its submission, until its end or now';

create view historian.ettr as select * from historian.ettr_between(null, null);

comment on view historian.ettr is 'one row per job: seconds since its submission, of training, of repeated steps, and the productive share';

create view historian.events_by_type as
select class, type, job, count(*) as events, min(at) as first_at, max(at) as last_at
from historian.events
group by class, type, job;

comment on view historian.events_by_type is 'number of events of each type in a job, and their times';

create view historian.dead_letters as
select at, body->>'consumer' as consumer, body->>'subject' as subject, body->>'error' as error,
       (body->>'body_bytes')::bigint as body_bytes, (body->>'deliveries')::bigint as deliveries,
       node, source, id as event
from historian.events
where type = 'message_rejected';

comment on view historian.dead_letters is 'messages that a consumer could not read or handle, with the error';

create view historian.credential_changes as
select at, body->>'change' as change, coalesce(body->>'kind', 'password') as kind,
       array(select jsonb_array_elements_text(body->'users')) as users, body->>'by' as by, node, id as event
from historian.events
where type = 'credentials_changed';

comment on view historian.credential_changes is 'passwords and keys that were renewed, nodes revoked and restored';

create view historian.shared_faults as
select f.incident, f.job, f.at as opened_at, o.at as closed_at, f.body->>'thing' as thing,
       f.body->>'symptom' as symptom,
       array(select jsonb_array_elements_text(coalesce(o.nodes, f.body->'nodes'))) as nodes,
       f.body->>'reason' as summary, f.id as event
from historian.events f
left join lateral (
    select e.at, e.body->'nodes' as nodes from historian.events e
    where e.type = 'shared_fault_over' and e.incident = f.incident and e.job = f.job
    order by e.at limit 1
) o on true
where f.type = 'shared_fault_found';

comment on view historian.shared_faults is 'one row per fault of something that nodes share, for which no node was blamed';

create view historian.group_evictions as
select g.incident, g.job, g.evicted_at, t.at as tested_at,
       array(select jsonb_array_elements_text(g.together)) as nodes,
       array(select one->>'node' from jsonb_array_elements(t.body->'at_fault') one) as at_fault,
       array(select jsonb_array_elements_text(t.body->'cleared')) as cleared,
       array(select jsonb_array_elements_text(t.body->'in_doubt')) as in_doubt,
       historian.real((t.body->>'took_s')::numeric) as took_s,
       historian.real((t.body->>'pool_s')::numeric) as pool_s, g.reason as summary
from (
    select e.incident, e.job, e.body->'together' as together, min(e.at) as evicted_at, min(e.body->>'reason') as reason
    from historian.events e
    where e.type = 'eviction' and jsonb_array_length(e.body->'together') > 0
    group by e.incident, e.job, e.body->'together'
) g
left join lateral (
    select e.at, e.body from historian.events e
    where e.type = 'suspects_tested' and e.incident = g.incident and e.job = g.job and e.at >= g.evicted_at
    order by e.at limit 1
) t on true;

comment on view historian.group_evictions is 'nodes evicted together because one is at fault: their tests, and what it cost the pool';

create view historian.throughput as
select e.job, e.generation, e.at, (e.body->>'step')::bigint as step,
       historian.real((e.body->>'step_s')::numeric) as step_s,
       historian.real((e.body->>'tokens_per_s')::numeric) as tokens_per_s,
       historian.real((e.body->>'mfu')::numeric) as mfu,
       coalesce((e.body->>'is_logged')::boolean, false) as is_logged
from historian.events e
where e.type = 'throughput_measured';

comment on view historian.throughput is 'throughput of a job: seconds a step, tokens a second of the whole job, MFU';

create view historian.logged_numbers as
select e.job, e.generation, e.node, s.rank, s.step, s.logged_step, s.logged_at, historian.real(s.loss) as loss,
       historian.real(s.grad_norm) as grad_norm, historian.real(s.tokens_per_s) as tokens_per_s,
       historian.real(s.mfu) as mfu, historian.real(s.learning_rate) as learning_rate, s.not_finite,
       e.body->>'kind' as kind, e.body->>'path' as path
from historian.events e
cross join lateral jsonb_to_recordset(e.body->'samples') as s(
    rank bigint, step bigint, logged_step bigint, logged_at timestamptz, loss numeric, grad_norm numeric,
    tokens_per_s numeric, mfu numeric, learning_rate numeric, not_finite jsonb)
where e.type = 'numbers_logged';

comment on view historian.logged_numbers is 'numbers from TensorBoard or W&B logs, and the step that they belong to';

create view historian.telemetry as
select e.job, e.generation, e.node, r.rank, e.at, r.cpu_cores, r.memory_bytes, r.io_bytes_per_s, r.sent_bytes_per_s,
       r.collectives_per_s
from historian.events e
cross join lateral jsonb_to_recordset(e.body->'ranks') as r(
    rank bigint, cpu_cores float8, memory_bytes bigint, io_bytes_per_s float8, sent_bytes_per_s float8,
    collectives_per_s float8)
where e.type = 'telemetry_measured';

comment on view historian.telemetry is 'resource use of each rank: cores, memory, input and output, network';

create view historian.device_activity as
select e.job, e.generation, e.node, d.device, d.rank, e.at, historian.real(d.busy_share) as busy_share,
       historian.real(d.tensor_share) as tensor_share, historian.real(d.pcie_bytes_per_s) as pcie_bytes_per_s,
       historian.real(d.link_sent_bytes_per_s) as link_sent_bytes_per_s,
       historian.real(d.link_received_bytes_per_s) as link_received_bytes_per_s
from historian.events e
cross join lateral jsonb_to_recordset(e.body->'devices') as d(
    device text, rank bigint, busy_share numeric, tensor_share numeric, pcie_bytes_per_s numeric,
    link_sent_bytes_per_s numeric, link_received_bytes_per_s numeric)
where e.type = 'telemetry_measured';

comment on view historian.device_activity is 'activity of each GPU: kernels, tensor cores, PCIe, NVLink or xGMI';

create view historian.port_activity as
select e.job, e.generation, e.node, p.port, e.at, historian.real(p.sent_bytes_per_s) as sent_bytes_per_s,
       historian.real(p.received_bytes_per_s) as received_bytes_per_s
from historian.events e
cross join lateral jsonb_to_recordset(e.body->'ports') as p(
    port text, sent_bytes_per_s numeric, received_bytes_per_s numeric)
where e.type = 'telemetry_measured';

comment on view historian.port_activity is 'traffic of each InfiniBand or RoCE port of the machines of a job';

create view controller.node_history as
select r.key as node, r.chance, r.last_at as chance_at, (m.mark->>'at')::timestamptz as at, m.mark->>'kind' as kind,
       m.mark->>'kind' in ('crash', 'killed', 'hardware', 'witnessed', 'alert', 'hang', 'slow') and m.mark->>'struck' is null as counts,
       m.mark->>'job' as job, m.mark->>'incident' as incident, m.mark->>'symptom' as symptom,
       m.mark->>'device' as device, m.mark->>'peer' as peer, m.mark->>'rack' as rack,
       coalesce(m.mark->>'struck', m.mark->>'text') as text, m.mark->>'event' as event
from controller.node_records r
cross join lateral jsonb_array_elements(r.body->'marks') m (mark);

comment on view controller.node_history is 'what is known of each node over incidents and jobs, one row per entry, and its chance of a lasting fault';

create view ckpt.restorable as
select r.job, r.tier, r.step, r.generation, r.known_at, r.path, coalesce(r.step <= c.step, false) as certified
from (
    select job, 'disk' as tier, step, (body->>'generation')::bigint as generation, saved_at as known_at, path
    from ckpt.steps
    union all
    -- Nodes report in turn: a step that the last of them has is on all. A node that has left the job is lost as a
    -- rule, with the shards that only it had.
    select s.job, 'memory', min(s.step), s.generation, max(s.reported_at), null
    from ckpt.plans p join ckpt.shards s on s.job = p.key
    where p.body->'layout'->'nodes' ?| array[s.node, s.keeper]
    group by s.job, s.generation, p.nnodes
    having count(*) = p.nnodes
    union all
    select key, 'memory', held_step, held_generation, updated_at, null
    from ckpt.plans
    where held_step is not null
) r
left join ckpt.certified c on c.key = r.job;

comment on view ckpt.restorable is 'steps that a job can restore, from disk or memory';

create view ckpt.odds as
select p.key as job, p.generation, o.plan, coalesce(o.in_use, false) as in_use, coalesce(o.offered, false) as offered,
       o.memory_factor, l.loss, l.losses, l.survived, l.survived::double precision / nullif(l.losses, 0) as share
from ckpt.plans p
cross join lateral jsonb_to_recordset(coalesce(p.body->'odds', '[]')) as o(
    plan text, in_use boolean, offered boolean, memory_factor double precision, odds jsonb)
cross join lateral jsonb_to_recordset(o.odds) as l(loss text, losses bigint, survived bigint);

comment on view ckpt.odds is 'losses of machines that leave every shard of a job in memory, under its plan and others';

grant select on
    historian.steps,
    historian.generations,
    historian.incidents,
    historian.incident_timeline,
    historian.incident_phases,
    historian.jobs,
    historian.ettr,
    historian.events_by_type,
    historian.dead_letters,
    historian.throughput,
    historian.logged_numbers,
    historian.telemetry,
    historian.device_activity,
    historian.port_activity,
    historian.credential_changes,
    historian.shared_faults,
    historian.group_evictions,
    controller.node_history,
    ckpt.restorable,
    ckpt.odds
to holdfast_reader;

-- The role that owns the partitions of `historian.events` must own what reads them.
alter view historian.steps owner to holdfast_historian;
alter view historian.generations owner to holdfast_historian;
alter view historian.incidents owner to holdfast_historian;
alter view historian.incident_timeline owner to holdfast_historian;
alter view historian.incident_phases owner to holdfast_historian;
alter view historian.ettr owner to holdfast_historian;
alter view historian.jobs owner to holdfast_historian;
alter view historian.events_by_type owner to holdfast_historian;
alter view historian.dead_letters owner to holdfast_historian;
alter view historian.throughput owner to holdfast_historian;
alter view historian.logged_numbers owner to holdfast_historian;
alter view historian.telemetry owner to holdfast_historian;
alter view historian.device_activity owner to holdfast_historian;
alter view historian.port_activity owner to holdfast_historian;
alter view historian.credential_changes owner to holdfast_historian;
alter view historian.shared_faults owner to holdfast_historian;
alter view historian.group_evictions owner to holdfast_historian;
