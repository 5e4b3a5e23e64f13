-- name: store_results :exec again
-- Store what jobs returned, or why they were given up. The first word on a job counts, unless it
-- was given up then and is done now: dead letters come back.
insert into queen.job_results (queue, job_id, state, result, codec, error, expires_at)
select w.queue, w.job_id, w.state, w.result, w.codec, w.error,
       clock_timestamp() + make_interval(secs => w.keep_s)
from unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::smallint[], $6::text[],
            $7::float8[])
     w (queue, job_id, state, result, codec, error, keep_s)
order by w.queue, w.job_id
on conflict (queue, job_id) do update
   set state = excluded.state, result = excluded.result, codec = excluded.codec,
       error = excluded.error, finished_at = excluded.finished_at, expires_at = excluded.expires_at
 where job_results.state = 'failed' and excluded.state = 'done'

-- name: job_result :maybe
select state, result, codec, error, finished_at, expires_at
from queen.job_results
where queue = $1 and job_id = $2 and expires_at > clock_timestamp()

-- name: finished_among :many
-- Which of some jobs have a result.
select r.queue, r.job_id
from unnest($1::text[], $2::text[]) w (queue, job_id)
join queen.job_results r on r.queue = w.queue and r.job_id = w.job_id

-- name: forget_results :one once
-- Remove results that have expired, oldest first; how many there were.
with old as (
    select queue, job_id from queen.job_results
    where expires_at <= clock_timestamp()
    order by expires_at limit $1
), gone as (
    delete from queen.job_results r using old o
    where r.queue = o.queue and r.job_id = o.job_id
    returning 1
)
select count(*) from gone

-- name: scheduled_job :maybe
-- When a job is due that waits for its time.
select deliver_at from queen.staged
where deliver_at is not null and queue = $1 and transaction_id = $2
order by deliver_at limit 1

-- name: job_key :maybe
select job_id, partition, group_name, held_until > clock_timestamp() as is_held
from queen.job_keys where queue = $1 and key = $2

-- name: take_job_key :maybe again
-- Take a key that nobody has; nothing when somebody has it.
insert into queen.job_keys (queue, key, job_id, partition, group_name, held_until)
values ($1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6::float8))
on conflict (queue, key) do nothing
returning job_id

-- name: pass_job_key :maybe again
-- Give the key of a job that has ended to another; nothing when somebody was quicker.
update queen.job_keys
   set job_id = $3, partition = $4, group_name = $5, checked_at = clock_timestamp(),
       held_until = clock_timestamp() + make_interval(secs => $6::float8)
 where queue = $1 and key = $2 and job_id = $7
returning job_id

-- name: release_job_keys :exec again
-- Give back the keys of jobs that are done, unless they are kept for a time.
delete from queen.job_keys k
using (
    select l.queue, l.key from queen.job_keys l
    join unnest($1::text[], $2::text[], $3::text[]) w (queue, key, job_id)
      on l.queue = w.queue and l.key = w.key and l.job_id = w.job_id
    where l.held_until <= clock_timestamp()
    order by l.queue, l.key
    for update of l
) done
where k.queue = done.queue and k.key = done.key

-- name: stale_job_keys :many
-- Keys that nobody has looked at for long, those that were not for longest first.
select queue, key, job_id, partition, group_name
from queen.job_keys
where checked_at < clock_timestamp() - make_interval(secs => $1::float8)
  and held_until <= clock_timestamp()
order by checked_at limit $2

-- name: drop_job_key :exec again
delete from queen.job_keys
where queue = $1 and key = $2 and job_id = $3 and held_until <= clock_timestamp()

-- name: note_job_key :exec again
-- Note that the job of a key is still to be done.
update queen.job_keys set checked_at = clock_timestamp()
where queue = $1 and key = $2 and job_id = $3
