-- name: queues_to_clean :many
-- Queues whose options say that something may be removed. Compared as JSON: an option that is no
-- number is none, and no error for all other queues.
select id, name, options from queen.queues
where (options -> 'retentionEnabled' = 'true'
       and (options -> 'retentionSeconds' > '0' or options -> 'completedRetentionSeconds' > '0'))
   or options -> 'maxWaitTimeSeconds' > '0'
   or options -> 'ttl' > '0'
order by id

-- name: expire_segments :one once
-- Remove old segments of one queue; see the function.
select * from queen.expire_segments(
    $1, clock_timestamp() - $2::bigint * interval '1 second', $3,
    case when $4::bigint is not null
         then clock_timestamp() - $4::bigint * interval '1 second' end, $5)

-- name: count_older :one
-- How many messages of a queue were written longer than $2 seconds ago, in the oldest $3 segments.
with instant as materialized (
    select clock_timestamp() - $2::bigint * interval '1 second' as at
)
select coalesce(sum(w.messages), 0)::bigint as messages, count(*) as segments
from (
    select case when s.codec < 16 then s.end_offset
                else queen.offset_behind(s.partition_id, s.base_offset, i.at, -1, -1) end
           - s.base_offset as messages
    from instant i, queen.segments s
    where s.queue_id = $1 and s.created_at < i.at
    order by s.created_at limit $3
) w

-- name: record_retention :exec once
insert into queen.retention_history (queue_id, kind, segments, messages)
values ($1, $2, $3, $4)

-- name: record_idle_partitions :exec once
insert into queen.retention_history (queue_id, kind, segments)
select queue_id, 'partition_cleanup', dropped
from unnest($1::integer[], $2::bigint[]) w (queue_id, dropped)

-- name: drop_idle_partitions :one once
select * from queen.drop_idle_partitions(
    $1, clock_timestamp() - $2::bigint * interval '1 second', $3)

-- name: clear_queue :one once
select queen.clear_queue($1, $2)
