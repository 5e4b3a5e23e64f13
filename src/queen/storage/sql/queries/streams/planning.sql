-- name: streams_to_plan :many
-- Streams at which a look may be worth it now, the longest waiting first.
select s.id, s.name, s.definition, s.planned_until, clock_timestamp() as now,
       array(select r.queue_id from queen.stream_sources r where r.stream_id = s.id
              order by r.queue_id) as queue_ids
from queen.streams s where s.plan_at <= clock_timestamp() order by s.plan_at limit 100

-- name: next_plan :maybe
-- In how many seconds a stream is due that nobody here is at.
select extract(epoch from w.plan_at - clock_timestamp())::double precision
from queen.streams w where w.plan_at > '-infinity' and w.id <> all ($1::integer[])
order by w.plan_at limit 1

-- name: take_stream :maybe
-- Take a stream to plan it; none when another server is at it.
select planned_until, definition, clock_timestamp() as now from queen.streams where id = $1
for no key update skip locked

-- name: sources_of_stream :many
select queue_id from queen.stream_sources where stream_id = $1 order by queue_id

-- name: seal_until :one again
select queen.seal_until($1, $2, $3)

-- name: first_of_sources :one
-- When the oldest message of a stream's sources was written.
select min((select min(s.created_at) from queen.segments s where s.queue_id = r.queue_id))
from queen.stream_sources r where r.stream_id = $1

-- name: instant_after :maybe
-- When the n-th stretch since an instant was written: bounds how much is planned at once.
select max(w.created_at) from (
    select s.created_at from queen.stream_sources r
     cross join lateral queen.stretches_after(r.queue_id, $2, -1, -1, 'infinity', $3::integer) s
     where r.stream_id = $1 order by s.created_at limit $3
) w having count(*) = $3

-- name: slides_page :one
-- Looks at the next $5 stretches of a stream's sources from $3 on and before $4, whole instants at
-- a time, and answers what each partition got between two boundaries ($2 apart).
with page as materialized (
    select s.* from queen.stream_sources r
    cross join lateral queen.stretches_after(r.queue_id, $3, -1, -1, $4, $5::integer, true) s
    where r.stream_id = $1
    order by s.created_at fetch first $5 rows with ties
), slides as (
    select p.partition_id, date_bin($2, p.created_at, timestamptz 'epoch') as at,
           min(p.base_offset) as low, max(p.end_offset) as high,
           sum(p.end_offset - p.base_offset)::bigint as messages, sum(p.bytes)::bigint as bytes
    from page p group by 1, 2
)
select (select count(*) from page) as looked, (select max(created_at) from page) as looked_until,
       coalesce(array_agg(partition_id), '{}') as partitions,
       coalesce(array_agg(at), '{}') as at, coalesce(array_agg(low), '{}') as low,
       coalesce(array_agg(high), '{}') as high, coalesce(array_agg(messages), '{}') as messages,
       coalesce(array_agg(bytes), '{}') as bytes
from slides

-- name: defer_plan :exec again
-- Somebody is at a stream, and for longer: others need not begin with it too.
update queen.streams set plan_at = clock_timestamp() + $4::integer * interval '1 second'
where id = $1 and definition = $2::jsonb and planned_until is not distinct from $3

-- name: plan_windows :one once
select queen.plan_windows($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: set_planned_until :exec again
update queen.streams set planned_until = $2, plan_at = $3 where id = $1

-- name: segments_to_gather :many
-- What was written to the sources in a time range, in order, whole instants at a time.
select s.partition_id, p.name as partition, s.base_offset, s.end_offset, s.created_at, s.bytes
from queen.stream_sources r
cross join lateral queen.stretches_after(r.queue_id, $2, -1, -1, $3, $4::integer, true) s
join queen.partitions p on p.id = s.partition_id
where r.stream_id = $1
order by s.created_at fetch first $4 rows with ties

-- name: gathered :many
-- What some keys have gathered, and those whose time has come.
select key, gathered from queen.stream_open where stream_id = $1 and key = any ($2::text[])
union
select key, gathered from queen.stream_open where stream_id = $1 and closes_at <= $3

-- name: keep_gathered :exec again
insert into queen.stream_open as o (stream_id, key, begins_at, closes_at, gathered)
select $1, w.key, w.begins_at, w.closes_at, w.gathered
from unnest($2::text[], $3::timestamptz[], $4::timestamptz[], $5::bytea[])
     w (key, begins_at, closes_at, gathered)
on conflict (stream_id, key) do update
set begins_at = excluded.begins_at, closes_at = excluded.closes_at, gathered = excluded.gathered

-- name: gathered_of_queues :many
-- What the streams over some queues have gathered.
select o.stream_id, o.key, o.gathered, s.definition
from queen.stream_open o join queen.streams s on s.id = o.stream_id
where o.stream_id in (select r.stream_id from queen.stream_sources r
                       where r.queue_id = any ($1::integer[]))

-- name: change_gathered :exec again
update queen.stream_open o set gathered = w.gathered
from unnest($1::integer[], $2::text[], $3::bytea[]) w (stream_id, key, gathered)
where o.stream_id = w.stream_id and o.key = w.key

-- name: drop_gathered :exec again
delete from queen.stream_open where stream_id = $1 and key = any ($2::text[])

-- name: write_windows :exec once
-- Arrays of arrays do not travel: the ranges of window i are those with its number.
insert into queen.stream_windows
    (stream_id, key, starts_at, ends_at, partitions, from_offsets, to_offsets, messages, bytes)
select $1, w.key, w.starts_at, w.ends_at,
       coalesce(r.partitions, '{}'), coalesce(r.lows, '{}'), coalesce(r.highs, '{}'),
       w.messages, w.bytes
from unnest($2::text[], $3::timestamptz[], $4::timestamptz[], $5::bigint[], $6::bigint[])
     with ordinality w (key, starts_at, ends_at, messages, bytes, n)
left join (
    select x.n, array_agg(x.partition_id order by x.partition_id) as partitions,
           array_agg(x.low order by x.partition_id) as lows,
           array_agg(x.high order by x.partition_id) as highs
    from unnest($7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[])
         x (n, partition_id, low, high)
    group by x.n
) r on r.n = w.n
order by w.n

-- name: forget_done_windows :one again
-- Rows of finished work are kept for a while, so that a repeated ack is told so. Groups come
-- before their work in the order of locks; one that somebody has just now is left for later.
with old as materialized (
    select group_id, window_id from queen.stream_work
     where state = 2 and done_at < clock_timestamp() - interval '10 minutes'
     order by done_at limit $1
), held as materialized (
    select g.id from queen.stream_groups g where g.id in (select group_id from old)
     order by g.id for no key update skip locked
), gone as (
    delete from queen.stream_work k using old, held
     where k.group_id = old.group_id and k.window_id = old.window_id and old.group_id = held.id
    returning k.group_id, k.window_id, k.done_at
), counted as (
    update queen.stream_groups g set done = g.done + w.n,
           last_done_at = greatest(g.last_done_at, w.done_at),
           last_done_end = greatest(g.last_done_end, (
                select x.ends_at from queen.stream_windows x
                 where x.stream_id = g.stream_id and x.id = w.last))
      from (select group_id, count(*) as n, max(done_at) as done_at, max(window_id) as last
              from gone group by group_id) w
     where g.id = w.group_id
)
select count(*) from gone

-- name: forget_empty_windows :one again
-- Windows whose messages retention has removed, and that no group has to be told about.
with floors as (
    select s.id as stream_id, least(
        (select min(coalesce(
            (select min(x.created_at) from queen.segments x where x.queue_id = r.queue_id),
            q.sealed_until))
           from queen.stream_sources r join queen.queues q on q.id = r.queue_id
          where r.stream_id = s.id), s.planned_until) as at,
        coalesce((select min(g.frontier) from queen.stream_groups g where g.stream_id = s.id),
                 9223372036854775807) as frontier
    from queen.streams s
), old as (
    select w.stream_id, w.id from floors f
     cross join lateral (
        select n.stream_id, n.id from queen.stream_windows n
         where n.stream_id = f.stream_id and n.ends_at <= f.at and n.id <= f.frontier
         order by n.ends_at limit $1
     ) w
     where not exists (
        select 1 from queen.stream_groups g
          left join queen.stream_work k
            on k.group_id = g.id and k.window_id = w.id and k.state < 2
          left join queen.stream_dead d on d.group_id = g.id and d.window_id = w.id
         where g.stream_id = w.stream_id and (k.group_id is not null or d.id is not null))
), gone as (
    delete from queen.stream_windows w using old
     where w.stream_id = old.stream_id and w.id = old.id returning 1
)
select count(*) from gone
