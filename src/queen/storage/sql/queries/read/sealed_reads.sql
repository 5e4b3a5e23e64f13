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
-- Those of some queues to which something was written from a time of their own on and before $3,
-- and maybe some that have merged segments around that time.
select w.id from unnest($1::integer[], $2::timestamptz[]) w (id, since)
where exists (
    select 1 from queen.segments s
    where s.queue_id = w.id and s.created_at >= w.since and s.created_at < $3)
or exists (
    select 1 from queen.merged_segments m
    where m.queue_id = w.id and m.last_at >= w.since
      and m.last_at <= w.since + interval '10 minutes')

-- name: plan_page :many
-- Looks at the next $6 segments of a queue behind a place and before $5, in order of time, and
-- answers where a slice may begin: at every segment of a short page, at about $7 of a long one,
-- and nowhere inside of what is merged. A small segment costs more than its bytes, so each weighs
-- some more. A page that is full ends with its last place: what merged segments hold behind that
-- is the next one's.
with page as materialized (
    select s.created_at, s.partition_id, s.base_offset, s.end_offset, s.codec,
           octet_length(s.body) as bytes
    from queen.segments s
    where s.queue_id = $1 and s.created_at >= $2 and s.created_at < $5
      and (s.created_at, s.partition_id, s.base_offset) > ($2, $3, $4)
    order by s.created_at, s.partition_id, s.base_offset
    limit $6
), bound as (
    (select created_at as end_at, partition_id as end_partition, base_offset as end_base,
            true as is_full
     from page where (select count(*) from page) = $6
     order by created_at desc, partition_id desc, base_offset desc limit 1)
     union all
    select $5, -1, -1, false where (select count(*) from page) < $6
), part as (
    select created_at, partition_id, base_offset as low, end_offset as high,
           base_offset, end_offset, bytes, null::timestamptz as last_at
    from page where codec < 16
     union all
    select p.created_at, p.partition_id, p.base_offset,
           queen.offset_behind(p.partition_id, p.base_offset, end_at, end_partition, end_base),
           p.base_offset, p.end_offset, p.bytes, m.last_at
    from page p join queen.merged_segments m using (partition_id, base_offset), bound
    where p.codec >= 16
     union all
    -- Those that begin at the place or before it, and end behind it.
    select queen.stretch_time(w.partition_id, w.base_offset, w.low), w.partition_id, w.low, w.high,
           w.base_offset, w.end_offset, w.bytes, w.last_at
    from (
        select s.partition_id, s.base_offset, s.end_offset, octet_length(s.body) as bytes, m.last_at,
               queen.offset_behind(s.partition_id, s.base_offset, $2, $3, $4) as low,
               queen.offset_behind(s.partition_id, s.base_offset, end_at, end_partition, end_base)
                   as high
        from bound, queen.merged_segments m
        join queen.segments s using (partition_id, base_offset)
        where m.queue_id = $1 and m.last_at >= $2
          and m.last_at <= $2::timestamptz + interval '10 minutes'
          and (m.first_at, m.partition_id, m.base_offset) <= ($2, $3, $4)
    ) w where w.low < w.high
), held as materialized (
    select created_at, partition_id, low as base_offset, last_at, (high - low)::integer as messages,
           (bytes * (high - low) / (end_offset - base_offset))::integer as bytes
    from part
), total as (
    select count(*) as looked, sum(messages) as all_messages, sum(bytes) as all_bytes from held
), placed as (
    select *, row_number() over o - 1 as before, sum(messages) over o - messages as messages_before,
           sum(bytes) over o - bytes as bytes_before,
           coalesce(max(last_at) over (
               o rows between unbounded preceding and 1 preceding) < created_at, true) as is_clean
    from held window o as (order by created_at, partition_id, base_offset)
), step as (
    -- In how many steps of equal weight a segment lies.
    select *, (bytes_before + 256 * before) * $7::bigint / (all_bytes + 256 * looked) as number
    from placed, total where is_clean or before = 0
), mark as (
    select *, lag(number) over (order by before) as last_number from step
)
select created_at, partition_id, base_offset, before, messages_before, bytes_before,
       looked, all_messages, all_bytes, is_full, end_at, end_partition, end_base
from mark, bound
where looked <= $7 or number is distinct from last_number
order by before

-- name: plan_bounds :many
-- Which offsets [low, high) of some partitions were written from a time of their own on and
-- before $3, within [$4, $5).
select w.id as partition_id, w.low, w.high
from (
    select p.id, greatest(p.tail, $4::bigint, queen.offset_at(p.id, u.since)) as low,
           least($5::bigint, queen.offset_at(p.id, $3)) as high
    from unnest($1::bigint[], $2::timestamptz[]) u (id, since)
    join queen.partitions p on p.id = u.id
) w
where w.low < w.high
order by w.id

-- name: plan_offsets_page :many
-- The same as `plan_page` for offsets [$2, $3) of one partition. `read_to` is where the page ends.
with page as materialized (
    select greatest(s.base_offset, $2::bigint) as base_offset,
           least(s.end_offset, $3::bigint) as end_offset,
           (least(s.end_offset, $3::bigint) - greatest(s.base_offset, $2::bigint))::integer as messages,
           case when s.codec < 16 then octet_length(s.body)
                else (octet_length(s.body)
                      * (least(s.end_offset, $3::bigint) - greatest(s.base_offset, $2::bigint))
                      / (s.end_offset - s.base_offset))::integer end as bytes
    from queen.segments s
    where s.partition_id = $1 and s.base_offset < $3 and s.end_offset > $2
      and s.base_offset >= coalesce((
            select f.base_offset from queen.segments f
            where f.partition_id = $1 and f.base_offset <= $2
            order by f.base_offset desc limit 1), 0)
    order by s.base_offset
    limit $4
), total as (
    select count(*) as looked, sum(messages) as all_messages, sum(bytes) as all_bytes,
           max(end_offset) as read_to
    from page
), placed as (
    select *, row_number() over o - 1 as before, sum(messages) over o - messages as messages_before,
           sum(bytes) over o - bytes as bytes_before, lag(bytes) over o as last_bytes
    from page window o as (order by base_offset rows unbounded preceding)
)
select base_offset, before, messages_before, bytes_before, looked, all_messages, all_bytes,
       read_to, looked = $4 as is_full
from placed, total
where looked <= $5 or before = 0 or before = looked - 1
   or (bytes_before + 256 * before) * $5::bigint / (all_bytes + 256 * looked)
      <> (bytes_before - last_bytes + 256 * (before - 1)) * $5::bigint
         / (all_bytes + 256 * looked)
order by before
