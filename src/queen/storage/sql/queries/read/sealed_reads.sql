-- name: cut :one again
-- Seal queues at one instant; see the function.
select queen.cut($1, $2)

-- name: cut_matching :one again
-- Seal the queues that match a pattern at one instant; see the function.
select sealed, queues from queen.cut_matching($1, $2, $3, $4)

-- name: cut_queues :many
-- What a reader of whole queues must know of each: the oldest message, what retention has
-- removed, the sizes as they were last counted, and where its group stands.
select q.id, q.name, f.created_at as earliest, nullif(q.gone_until, '-infinity') as gone_until,
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

-- name: record_progress :many again
select * from queen.record_progress($1, $2, $3, $4)

-- name: latest_instant_within :one
select queen.latest_instant_within($1, $2, $3, $4, $5)

-- name: lost_queues :many
-- Queues of which retention has removed something that was written at or after an instant.
-- Whoever starts at the beginning takes what there is.
select q.name from unnest($1::integer[], $2::timestamptz[]) w (id, since)
join queen.queues q on q.id = w.id
where q.gone_until >= w.since and w.since > 'epoch'
order by q.name

-- name: written_queues :many
-- Those of some queues to which something was written from a time of their own on and before $3.
select w.id from unnest($1::integer[], $2::timestamptz[]) w (id, since)
where exists (
    select 1 from queen.segments s
    where s.queue_id = w.id and s.created_at >= w.since and s.created_at < $3)

-- name: plan_page :many
-- Looks at the next $6 segments of a queue behind a place and before $5, in order of time, and
-- answers where a slice may begin: at every segment of a short page, at about $7 of a long one,
-- and at the last. A small segment costs more than its bytes, so each weighs some more.
with page as materialized (
    select s.created_at, s.partition_id, s.base_offset,
           (s.end_offset - s.base_offset)::integer as messages, octet_length(s.body) as bytes
    from queen.segments s
    where s.queue_id = $1 and s.created_at >= $2 and s.created_at < $5
      and (s.created_at, s.partition_id, s.base_offset) > ($2, $3, $4)
    order by s.created_at, s.partition_id, s.base_offset
    limit $6
), total as (
    select count(*) as looked, sum(messages) as all_messages, sum(bytes) as all_bytes from page
), placed as (
    select *, row_number() over o - 1 as before, sum(messages) over o - messages as messages_before,
           sum(bytes) over o - bytes as bytes_before, lag(bytes) over o as last_bytes
    from page
    window o as (order by created_at, partition_id, base_offset rows unbounded preceding)
)
select created_at, partition_id, base_offset, before, messages_before, bytes_before,
       looked, all_messages, all_bytes
from placed, total
-- In how many steps of equal weight a segment lies, and the one before it.
where looked <= $7 or before = 0 or before = looked - 1
   or (bytes_before + 256 * before) * $7::bigint / (all_bytes + 256 * looked)
      <> (bytes_before - last_bytes + 256 * (before - 1)) * $7::bigint
         / (all_bytes + 256 * looked)
order by before

-- name: plan_bounds :many
-- Which offsets [low, high) of some partitions were written from a time of their own on and
-- before $3, within [$4, $5), and where the first segment of them begins.
select w.id as partition_id, w.low, w.high, coalesce((
           select f.base_offset from queen.segments f
           where f.partition_id = w.id and f.base_offset <= w.low
           order by f.base_offset desc limit 1), 0) as first
from (
    select p.id, greatest(p.tail, $4::bigint, queen.offset_at(p.id, u.since)) as low,
           least($5::bigint, queen.offset_at(p.id, $3)) as high
    from unnest($1::bigint[], $2::timestamptz[]) u (id, since)
    join queen.partitions p on p.id = u.id
) w
where w.low < w.high
order by w.id

-- name: plan_offsets_page :many
-- The same as `plan_page` for offsets [$3, $4) of one partition, behind the segment at $2.
with page as materialized (
    select greatest(s.base_offset, $3::bigint) as base_offset,
           (least(s.end_offset, $4::bigint) - greatest(s.base_offset, $3::bigint))::integer as messages,
           octet_length(s.body) as bytes
    from queen.segments s
    where s.partition_id = $1 and s.base_offset > $2 and s.base_offset < $4 and s.end_offset > $3
    order by s.base_offset
    limit $5
), total as (
    select count(*) as looked, sum(messages) as all_messages, sum(bytes) as all_bytes from page
), placed as (
    select *, row_number() over o - 1 as before, sum(messages) over o - messages as messages_before,
           sum(bytes) over o - bytes as bytes_before, lag(bytes) over o as last_bytes
    from page window o as (order by base_offset rows unbounded preceding)
)
select base_offset, before, messages_before, bytes_before, looked, all_messages, all_bytes
from placed, total
where looked <= $6 or before = 0 or before = looked - 1
   or (bytes_before + 256 * before) * $6::bigint / (all_bytes + 256 * looked)
      <> (bytes_before - last_bytes + 256 * (before - 1)) * $6::bigint
         / (all_bytes + 256 * looked)
order by before
