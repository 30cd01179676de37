-- The last incidents, and what happened in the newest one:
--
--     eval "$(holdfast connect --env)"
--     psql -f incidents.sql
--
-- docs/tools.md names the views.
select job, opened_at, symptom, node, outcome, round(seconds_to_recover::numeric, 2) as seconds, lost_steps
from historian.incidents
order by opened_at desc
limit 10;

select nth, round(seconds::numeric, 3) as seconds, type, node, what
from historian.incident_timeline
where incident = (select incident from historian.incidents order by opened_at desc limit 1)
order by nth;
