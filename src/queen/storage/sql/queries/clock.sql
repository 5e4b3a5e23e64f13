-- name: pass_time :many once
select queue_id from queen.pass_time($1, $2) queue_id

-- name: horizon :one
-- The time, and the time before which no server is still writing anything.
select clock_timestamp() as now, least(clock_timestamp(), min(a.xact_start)) as seen_until
from pg_stat_activity a
where a.datname = current_database() and a.application_name = 'queen'
  and a.backend_xid is not null
