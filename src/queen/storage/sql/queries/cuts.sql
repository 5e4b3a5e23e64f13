-- name: cut :one
-- Seal queues at one instant; see the function.
select queen.cut($1, $2)

-- name: cut_queues :many
-- What a reader of whole queues must know of each: the oldest message, what retention has
-- removed, the sizes as they were last counted, and where its group stands.
select q.id, f.created_at as earliest, nullif(q.gone_until, '-infinity') as gone_until,
       coalesce(t.retained, 0) as messages, coalesce(t.stored_bytes, 0) as bytes,
       g.starts_at as done_until, g.moves, g.paused, g.reads_by_time
from queen.queues q
left join lateral (
    select s.created_at from queen.segments s
    where s.queue_id = q.id order by s.created_at limit 1
) f on true
left join queen.queue_stats t on t.queue_id = q.id
left join queen.groups g on g.queue_id = q.id and g.name = $2
where q.id = any ($1::integer[])

-- name: record_progress :many
select * from queen.record_progress($1, $2, $3, $4)

-- name: admit :one
select queen.admit($1, $2, $3, $4, $5)

-- name: lost_queues :many
-- Queues of which retention has removed something that was written at or after an instant.
-- Whoever starts at the beginning takes what there is.
select q.name from unnest($1::integer[], $2::timestamptz[]) w (id, since)
join queen.queues q on q.id = w.id
where q.gone_until >= w.since and w.since > 'epoch'
order by q.name

-- name: plan_queues :many
-- Cuts what was written to queues, each from a time of its own, into $4 slices of about equal
-- size, in order of time. A row is where a slice begins, or where it goes on in the next queue.
-- A small segment costs more than its bytes, so each counts for some more.
with found as (
    select s.queue_id, s.created_at, s.partition_id, s.base_offset,
           (s.end_offset - s.base_offset)::integer as messages, octet_length(s.body) as bytes
    from unnest($1::integer[], $2::timestamptz[]) w (queue_id, since)
    join queen.segments s
      on s.queue_id = w.queue_id and s.created_at >= w.since and s.created_at < $3
),
placed as (
    select *, sum(bytes + 256) over o - bytes - 256 as before, sum(bytes + 256) over () as total,
           sum(messages) over o - messages as messages_before,
           sum(bytes) over o - bytes as bytes_before,
           sum(messages) over () as all_messages, sum(bytes) over () as all_bytes
    from found
    window o as (order by queue_id, created_at, partition_id, base_offset
                 rows unbounded preceding)
),
numbered as (
    select *, (before * $4::integer / total)::integer as slice from placed
),
edges as (
    select *, lag(slice) over o as slice_before, lag(queue_id) over o as queue_before
    from numbered window o as (order by queue_id, created_at, partition_id, base_offset)
)
select slice, queue_id, created_at, partition_id, base_offset, messages_before, bytes_before,
       all_messages, all_bytes
from edges
where slice is distinct from slice_before or queue_id is distinct from queue_before
order by queue_id, created_at, partition_id, base_offset

-- name: plan_partitions :many
-- The same for some partitions, by offset: what was written to each from a time of its own on
-- and before $3, within the offsets [$4, $5). `high` is where the partition's part ends.
with lane as materialized (
    select p.id, p.queue_id,
           greatest(p.tail, $4::bigint, queen.offset_at(p.id, w.since)) as low,
           least($5::bigint, queen.offset_at(p.id, $3)) as high
    from unnest($1::bigint[], $2::timestamptz[]) w (id, since)
    join queen.partitions p on p.id = w.id
),
found as (
    select l.queue_id, s.partition_id, greatest(s.base_offset, l.low) as base_offset, l.high,
           (least(s.end_offset, l.high) - greatest(s.base_offset, l.low))::integer as messages,
           octet_length(s.body) as bytes
    from lane l
    join queen.segments s on s.partition_id = l.id and s.base_offset < l.high
     and s.base_offset >= coalesce((
            select f.base_offset from queen.segments f
            where f.partition_id = l.id and f.base_offset <= l.low
            order by f.base_offset desc limit 1), 0)
     and s.end_offset > l.low
    where l.low < l.high
),
placed as (
    select *, sum(bytes + 256) over o - bytes - 256 as before, sum(bytes + 256) over () as total,
           sum(messages) over o - messages as messages_before,
           sum(bytes) over o - bytes as bytes_before,
           sum(messages) over () as all_messages, sum(bytes) over () as all_bytes
    from found window o as (order by partition_id, base_offset rows unbounded preceding)
),
numbered as (
    select *, (before * $6::integer / total)::integer as slice from placed
),
edges as (
    select *, lag(slice) over o as slice_before, lag(partition_id) over o as partition_before
    from numbered window o as (order by partition_id, base_offset)
)
select slice, queue_id, partition_id, base_offset, high, messages_before, bytes_before,
       all_messages, all_bytes
from edges
where slice is distinct from slice_before or partition_id is distinct from partition_before
order by partition_id, base_offset

-- name: fetch_slice :many
-- Stored segments of a queue in order of time, from ($2, $3, $4) on and before ($5, $6, $7): no
-- more than $9 bytes at once, and at least one.
select partition_id, base_offset, end_offset, created_at, codec, body
from (
    select r.*, sum(octet_length(r.body)) over (
               order by r.created_at, r.partition_id, r.base_offset rows unbounded preceding)
               - octet_length(r.body) as bytes_before
    from (
        select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
        from queen.segments s
        where s.queue_id = $1 and s.created_at >= $2 and s.created_at <= $5
          and (s.created_at, s.partition_id, s.base_offset) >= ($2, $3, $4)
          and (s.created_at, s.partition_id, s.base_offset) < ($5, $6, $7)
        order by s.created_at, s.partition_id, s.base_offset
        limit $8
    ) r
) b
where bytes_before < $9::bigint
order by created_at, partition_id, base_offset

-- name: fetch_offsets :many
-- The same for one partition, by offset.
select partition_id, base_offset, end_offset, created_at, codec, body
from (
    select r.*, sum(octet_length(r.body)) over (order by r.base_offset rows unbounded preceding)
               - octet_length(r.body) as bytes_before
    from (
        select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
        from queen.segments s
        where s.partition_id = $1 and s.base_offset >= $2 and s.base_offset < $3
        order by s.base_offset
        limit $4
    ) r
) b
where bytes_before < $5::bigint
order by base_offset
