-- name: insert_schedule :maybe again
-- Store a schedule; nothing when there is one of that name.
insert into queen.schedules
    (name, queue, partition, cron, zone, payload, codec, catch_up, catch_up_limit, producer_sub,
     next_at, due_at)
select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11
where not exists (select 1 from queen.schedules s where s.name = $1)
on conflict (name) do nothing
returning id

-- name: lock_schedule :maybe
-- A schedule, which nobody else changes or ticks until the transaction ends; `now` is its time.
select s.*, queen.namespace_of(s.queue) as namespace,
       clock_timestamp() + (s.next_at - s.due_at) as now
from queen.schedules s where s.name = $1 for update

-- name: replace_schedule :exec once
-- Store another definition under the same name; its time goes on.
update queen.schedules
   set queue = $2, partition = $3, cron = $4, zone = $5, payload = $6, codec = $7, catch_up = $8,
       catch_up_limit = $9, producer_sub = $10, due_at = $11::timestamptz - (next_at - due_at),
       next_at = $11, held_until = '-infinity', updated_at = clock_timestamp()
 where name = $1

-- name: turn_schedule :exec once
-- Pause a schedule, or let it go on with the tick that comes next.
update queen.schedules
   set is_paused = $2, due_at = $3::timestamptz - (next_at - due_at), next_at = $3,
       updated_at = clock_timestamp()
 where name = $1

-- name: schedules_page :many
-- Schedules by name, one or all; `$2` of a queue, `$3` of queues of some namespaces.
select s.*, clock_timestamp() + (s.next_at - s.due_at) as now, count(*) over () as total
from queen.schedules s
where ($1::text is null or s.name = $1) and ($2::text is null or s.queue = $2)
  and ($3::text[] is null or queen.namespace_of(s.queue) = any ($3::text[]))
order by s.name
limit $4 offset $5

-- name: delete_schedule :maybe once
delete from queen.schedules where name = $1 returning name

-- name: tell_schedules :one
-- Tell all servers that a schedule has changed.
select pg_notify('queen_schedules', '')

-- name: due_schedules :many
-- Schedules whose tick is due, and which nobody else has at hand; `now` is the time of each.
select s.*, clock_timestamp() + (s.next_at - s.due_at) as now
from queen.schedules s
where not s.is_paused and s.due_at <= clock_timestamp() and s.held_until <= clock_timestamp()
order by s.due_at limit $1
for update skip locked

-- name: tick_schedule :exec once
-- Note which ticks were pushed, how many were left out, and which comes next.
update queen.schedules
   set last_at = coalesce($2, last_at), ticks = ticks + $3, missed = missed + $4,
       due_at = $5::timestamptz - (next_at - due_at), next_at = $5
 where id = $1

-- name: hold_schedule :exec again
-- Leave a schedule that this server cannot do to others for a while.
update queen.schedules
   set held_until = clock_timestamp() + make_interval(secs => $2::float8)
 where id = $1

-- name: next_tick_due :one
-- How long, in seconds, until a schedule comes due; null when there is none.
select extract(epoch from min(due_at) - clock_timestamp())::float8
from queen.schedules where not is_paused
