-- name: stream_by_name :maybe
select s.id, s.uuid, s.name, s.namespace, s.definition, s.planned_until, s.created_at, s.updated_at,
       array(select q.name from queen.stream_sources r join queen.queues q on q.id = r.queue_id
              where r.stream_id = s.id order by q.name) as sources
from queen.streams s where s.name = $1

-- name: lock_stream :maybe
-- The same, for who changes it.
select s.id, s.uuid, s.namespace, s.definition, s.planned_until,
       array(select q.name from queen.stream_sources r join queen.queues q on q.id = r.queue_id
              where r.stream_id = s.id order by q.name) as sources,
       exists (select 1 from queen.stream_groups g where g.stream_id = s.id) as is_read
from queen.streams s where s.name = $1 for update of s

-- name: create_stream :maybe once
insert into queen.streams (name, namespace, definition)
select $1, $2, $3::jsonb where not exists (select 1 from queen.streams s where s.name = $1)
on conflict (name) do nothing returning id

-- name: update_stream :exec again
update queen.streams set namespace = $2, definition = $3, updated_at = clock_timestamp(),
       plan_at = '-infinity'
where id = $1

-- name: set_stream_sources :exec again
with wanted as (
    select id from queen.queues where name = any ($2::text[])
), gone as (
    delete from queen.stream_sources
     where stream_id = $1 and queue_id not in (select id from wanted)
)
insert into queen.stream_sources (stream_id, queue_id) select $1, id from wanted
on conflict do nothing

-- name: lock_stream_groups :exec
-- Nobody settles or takes work of the stream's groups until the transaction ends.
select pg_advisory_xact_lock(7003, g.id)
from (select id from queen.stream_groups where stream_id = $1 order by id) g

-- name: lock_stream_group_rows :exec
-- The rows of the groups, after their locks: who forgets finished work takes them too.
select 1 from queen.stream_groups where stream_id = $1 order by id for no key update

-- name: balance_stream :exec once
-- As many windows of a key may be in flight as the definition says now, in every group.
select queen.balance_work(g.id, null, $2::integer, true)
from (select id from queen.stream_groups where stream_id = $1 order by id) g

-- name: recut_stream :exec once
-- Forget all windows: they are cut anew from where the slowest group stands.
with floors as (
    select g.id, least(
        (select min(w.starts_at) from queen.stream_work k
           join queen.stream_windows w on w.stream_id = $1 and w.id = k.window_id
          where k.group_id = g.id and k.state < 2),
        (select min(w.starts_at) from queen.stream_windows w
          where w.stream_id = $1 and w.id > g.frontier and w.ends_at > g.starts_at),
        -- What sessions and counts have gathered lies before this.
        greatest(g.starts_at, least(s.planned_until, (
            select min(o.begins_at) from queen.stream_open o where o.stream_id = $1)))) as at
    from queen.stream_groups g join queen.streams s on s.id = g.stream_id
    where g.stream_id = $1
), moved as (
    update queen.stream_groups g set starts_at = f.at, frontier = 0 from floors f where f.id = g.id
), dead as (
    delete from queen.stream_dead d using queen.stream_groups g
     where g.id = d.group_id and g.stream_id = $1
), work as (
    delete from queen.stream_work k using queen.stream_groups g
     where g.id = k.group_id and g.stream_id = $1
), open as (
    delete from queen.stream_open where stream_id = $1
), windows as (
    delete from queen.stream_windows where stream_id = $1
)
update queen.streams set planned_until = null, plan_at = '-infinity' where id = $1

-- name: delete_stream :maybe once
delete from queen.streams where name = $1 returning id

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
-- When the n-th segment since an instant was written: bounds how much is planned at once.
select max(w.created_at) from (
    select s.created_at from queen.stream_sources r
     cross join lateral (
        select created_at from queen.segments
         where queue_id = r.queue_id and created_at >= $2 order by created_at limit $3
     ) s
     where r.stream_id = $1 order by s.created_at limit $3
) w having count(*) = $3

-- name: slides_page :one
-- Looks at the next $5 segments of a stream's sources from $3 on and before $4, whole instants at
-- a time, and answers what each partition got between two boundaries ($2 apart).
with page as materialized (
    select s.* from queen.stream_sources r
    cross join lateral (
        select f.partition_id, f.base_offset, f.end_offset, f.created_at,
               octet_length(f.body) as bytes
        from queen.segments f
        where f.queue_id = r.queue_id and f.created_at >= $3 and f.created_at < $4
        order by f.created_at fetch first $5 rows with ties
    ) s
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

-- name: planned :exec again
update queen.streams set planned_until = $2, plan_at = $3 where id = $1

-- name: segments_to_gather :many
-- What was written to the sources in a time range, in order, whole instants at a time.
select s.partition_id, p.name as partition, s.base_offset, s.end_offset, s.created_at,
       octet_length(s.body) as bytes
from queen.stream_sources r
join queen.segments s on s.queue_id = r.queue_id
join queen.partitions p on p.id = s.partition_id
where r.stream_id = $1 and s.created_at >= $2 and s.created_at < $3
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

-- name: open_stream_group :one again
select queen.open_stream_group($1, $2, $3)

-- name: stream_group :maybe
select id from queen.stream_groups where stream_id = $1 and name = $2

-- name: claim_window :one once
select * from queen.claim_window($1, $2, $3, $4, $5)

-- name: leased_window :maybe
-- The window that a live lease holds, and whose it is.
select w.id, w.key, w.starts_at, w.ends_at, w.partitions, w.from_offsets, w.to_offsets,
       w.messages, w.bytes, s.name as stream, s.namespace, g.name as group_name
from queen.stream_work k
join queen.stream_groups g on g.id = k.group_id
join queen.streams s on s.id = g.stream_id
join queen.stream_windows w on w.stream_id = g.stream_id and w.id = k.window_id
where k.group_id = $1 and k.window_id = $2 and k.lease_id = $3
  and k.available_at > clock_timestamp()

-- name: stream_of_group :maybe
select s.id, s.name, s.namespace, s.definition, g.name as group_name
from queen.stream_groups g join queen.streams s on s.id = g.stream_id where g.id = $1

-- name: settle_window :one again
select queen.settle_window($1, $2, $3, $4, $5, $6, $7)

-- name: return_window :exec again
-- Take a grant back that nobody received: it does not count.
update queen.stream_work
set lease_id = null, available_at = '-infinity', attempts = attempts - 1
where group_id = $1 and window_id = $2 and lease_id = $3

-- name: release_window :maybe once
-- Give a leased window back without fault: it comes again at once and does not count.
update queen.stream_work
set lease_id = null, available_at = '-infinity', attempts = attempts - 1
where group_id = $1 and window_id = $2 and lease_id = $3 and available_at > clock_timestamp()
returning true

-- name: renew_window :maybe again
update queen.stream_work k
set available_at = clock_timestamp() + $4::bigint * interval '1 millisecond'
where k.group_id = $1 and k.window_id = $2 and k.lease_id = $3
  and k.available_at > clock_timestamp()
returning k.available_at

-- name: seek_stream :one once
select queen.seek_stream($1, $2)

-- name: window_segments :many
-- What is stored of some ranges of offsets, in order of time: no more than about $4 bytes.
-- `all_bytes` is how many there are.
select partition_id, base_offset, end_offset, created_at, codec, body, all_bytes
from (
    select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body,
           sum(octet_length(s.body)) over () as all_bytes,
           sum(octet_length(s.body)) over (
               order by s.created_at, s.partition_id, s.base_offset rows unbounded preceding)
               - octet_length(s.body) as bytes_before
    from unnest($1::bigint[], $2::bigint[], $3::bigint[]) w (id, low, high)
    join queen.segments s
      on s.partition_id = w.id and s.end_offset > w.low and s.base_offset < w.high
     and s.base_offset >= (
        select coalesce(max(f.base_offset), 0) from queen.segments f
         where f.partition_id = w.id and f.base_offset <= w.low)
) b
-- One of them tells that there is too much.
where all_bytes <= $4::bigint or bytes_before = 0
order by created_at, partition_id, base_offset

-- name: window_page :many
-- Some segments of one range, in order: no more than $5 bytes at once, and at least one.
select partition_id, base_offset, end_offset, created_at, codec, body
from (
    select r.*, sum(octet_length(r.body)) over (order by r.base_offset rows unbounded preceding)
               - octet_length(r.body) as bytes_before
    from (
        select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
        from queen.segments s
        where s.partition_id = $1 and s.end_offset > $2 and s.base_offset < $3
          and s.base_offset >= (
            select coalesce(max(f.base_offset), 0) from queen.segments f
             where f.partition_id = $1 and f.base_offset <= $2)
        order by s.base_offset limit $4
    ) r
) b
where bytes_before < $5::bigint
order by base_offset

-- name: tails :many
-- Where partitions begin now: what stood before was removed.
select id, tail from queen.partitions where id = any ($1::bigint[])

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

-- name: streams_page :many
select s.id, s.uuid, s.name, s.namespace, s.definition, s.planned_until, s.created_at, s.updated_at,
       array(select q.name from queen.stream_sources r join queen.queues q on q.id = r.queue_id
              where r.stream_id = s.id order by q.name) as sources,
       (select count(*) from queen.stream_groups g where g.stream_id = s.id) as groups,
       (select count(*) from queen.stream_groups g
          join queen.stream_work k on k.group_id = g.id and k.state = 1
         where g.stream_id = s.id and k.lease_id is not null
           and k.available_at > clock_timestamp()) as leases
from queen.streams s
where ($1::text[] is null or s.namespace = any ($1)) and ($2 = '' or s.name = $2)
order by s.name limit $3 offset $4

-- name: stream_stats :one
select count(*) as streams,
       count(*) filter (where (s.definition ->> 'partitioned')::boolean) as partitioned,
       coalesce(sum(g.groups), 0)::bigint as groups,
       coalesce(sum(g.leases), 0)::bigint as leases,
       coalesce(sum(g.consumers), 0)::bigint as consumers,
       coalesce(sum(g.done), 0)::bigint as done,
       coalesce(sum(g.last_hour), 0)::bigint as last_hour,
       coalesce(avg(g.lease_s), 0)::double precision as lease_s,
       coalesce(sum(g.dead), 0)::bigint as dead
from queen.streams s
left join lateral (
    select count(*) as groups, sum(x.done + w.done) as done, sum(w.leases) as leases,
           sum(w.consumers) as consumers, sum(w.last_hour) as last_hour, avg(w.lease_s) as lease_s,
           sum((select count(*) from queen.stream_dead d where d.group_id = x.id)) as dead
    from queen.stream_groups x
    cross join lateral (
        select count(*) filter (where k.state = 2) as done,
               count(*) filter (where k.lease_id is not null
                                  and k.available_at > clock_timestamp()) as leases,
               count(distinct k.consumer) filter (where k.lease_id is not null
                                  and k.available_at > clock_timestamp()) as consumers,
               count(*) filter (where k.done_at > clock_timestamp() - interval '1 hour') as last_hour,
               avg(extract(epoch from k.done_at - k.granted_at)) as lease_s
        from queen.stream_work k where k.group_id = x.id
    ) w
    where x.stream_id = s.id
) g on true
where $1::text[] is null or s.namespace = any ($1)

-- name: stream_consumers :many
select g.name, g.paused, g.created_at,
       greatest(g.last_done_at, w.last_done_at) as last_done_at,
       greatest(g.last_done_end, (
            select n.ends_at from queen.stream_windows n
             where n.stream_id = g.stream_id and n.id = w.last)) as last_done_end,
       g.done + w.done as done, b.leased, b.retrying, b.unfinished as waiting,
       (select count(*) from queen.stream_dead d where d.group_id = g.id) as dead,
       coalesce(greatest(0, extract(epoch from clock_timestamp() - b.oldest_end)), 0)
           ::double precision as behind_s
from (
    select * from queen.stream_groups where stream_id = $1 order by name limit $2 offset $3
) g
cross join lateral queen.stream_backlog(g.id, 100000) b
cross join lateral (
    select count(*) as done, max(k.done_at) as last_done_at, max(k.window_id) as last
    from queen.stream_work k where k.group_id = g.id and k.state = 2
) w
order by g.name

-- name: stream_gauges :many
-- How far the groups of streams are that were used last.
select s.name as stream, g.name as group_name, b.unfinished, b.leased, b.retrying,
       (select count(*) from queen.stream_dead d where d.group_id = g.id) as dead,
       coalesce(greatest(0, extract(epoch from clock_timestamp() - b.oldest_end)), 0)
           ::double precision as behind_s
from (select * from queen.stream_groups order by used_at desc, id limit $1) g
join queen.streams s on s.id = g.stream_id
cross join lateral queen.stream_backlog(g.id, 10000) b

-- name: stream_windows :many
-- Windows of a stream, newest first.
select w.id, w.key, w.starts_at, w.ends_at, w.messages, w.bytes
from queen.stream_windows w
where w.stream_id = $1 and ($2::text is null or w.key = $2)
order by w.id desc limit $3 offset $4

-- name: window_ranges :many
-- Whole windows of a stream between two times and where their messages lie, by their ends; with
-- a group, those that it has finished.
select w.id, w.key, w.starts_at, w.ends_at, w.messages, w.bytes,
       w.partitions, w.from_offsets, w.to_offsets
from queen.stream_windows w
where w.stream_id = $1 and w.starts_at >= $2 and w.ends_at > $2 and w.ends_at <= $3
  and w.ends_at >= $4 and (w.ends_at, w.id) > ($4, $5)
  and ($6::integer is null or exists (
    select 1 from queen.stream_groups g
    left join queen.stream_work k on k.group_id = g.id and k.window_id = w.id
    where g.id = $6 and w.ends_at > g.starts_at and w.id <= g.frontier
      and (k.state = 2 or (k.state is null and not exists (
        select 1 from queen.stream_dead d where d.group_id = g.id and d.window_id = w.id)))))
order by w.ends_at, w.id limit $7

-- name: group_windows :many
-- The same with what a group has done about them; see `queen.pick_windows`.
select w.id, w.key, w.starts_at, w.ends_at, w.messages, w.bytes, k.attempts, k.consumer,
       coalesce(k.error, d.error) as error,
       case when k.lease_id is not null then k.available_at end as lease_until,
       case when k.lease_id is null and k.available_at > clock_timestamp()
            then k.available_at end as retry_at,
       case when k.state = 2 then 'done'
            when k.state = 0 then 'waiting'
            when k.lease_id is not null and k.available_at > clock_timestamp() then 'leased'
            when k.state = 1 and k.available_at > clock_timestamp() then 'retrying'
            when k.state = 1 then 'ready'
            when d.id is not null then 'dead'
            when w.id > g.frontier then 'planned'
            else 'done' end as state
from queen.pick_windows($1, $2, $3, $4, $5) p
join queen.stream_groups g on g.id = $1
join lateral (
    select * from queen.stream_windows n where n.stream_id = g.stream_id and n.id = p.window_id
) w on true
left join lateral (
    select * from queen.stream_work n where n.group_id = g.id and n.window_id = p.window_id
) k on true
left join lateral (
    select * from queen.stream_dead n where n.group_id = g.id and n.window_id = p.window_id
) d on true
order by p.place

-- name: explained_work :many
-- What a group has not finished, the oldest first.
select w.key, w.starts_at, w.ends_at, w.messages, k.state, k.attempts, k.consumer, k.error,
       k.lease_id, k.available_at, k.available_at > clock_timestamp() as is_held
from queen.stream_groups g
join queen.stream_work k on k.group_id = g.id and k.state < 2
join queen.stream_windows w on w.stream_id = g.stream_id and w.id = k.window_id
where g.id = $1 and ($2::text is null or k.key = $2)
order by k.window_id limit $3

-- name: explained_dead :many
select w.key, w.starts_at, w.ends_at, w.messages, d.attempts, d.error, d.failed_at
from queen.stream_groups g
join queen.stream_dead d on d.group_id = g.id
join queen.stream_windows w on w.stream_id = g.stream_id and w.id = d.window_id
where g.id = $1 and ($2::text is null or w.key = $2)
order by d.id desc limit $3

-- name: explained_open :many
select key, begins_at, closes_at from queen.stream_open
where stream_id = $1 and ($2::text is null or key = $2) order by closes_at limit $3

-- name: dead_windows :many
select g.name as group_name, w.id, w.key, w.starts_at, w.ends_at, w.messages,
       w.partitions, w.from_offsets, w.to_offsets, d.attempts, d.error, d.failed_at
from queen.stream_groups g
join queen.stream_dead d on d.group_id = g.id
join queen.stream_windows w on w.stream_id = g.stream_id and w.id = d.window_id
where g.stream_id = $1 and ($2 = '' or g.name = $2)
order by d.id desc limit $3 offset $4

-- name: count_dead_windows :one
select count(*) from queen.stream_dead d join queen.stream_groups g on g.id = d.group_id
where g.stream_id = $1 and ($2 = '' or g.name = $2)

-- name: hold_retention_of_group :exec again
-- What windows hold that a group of a stream gets again is not cleaned up meanwhile.
select queen.hold_retention(array(
    select r.queue_id from queen.stream_groups g
    join queen.stream_sources r on r.stream_id = g.stream_id where g.id = $1))

-- name: lock_stream_group :exec
select pg_advisory_xact_lock(7003, $1)

-- name: retry_dead_windows :one once
-- Give windows that were given up another full set of tries, each when its key has room.
with again as (
    delete from queen.stream_dead d using queen.stream_groups g
     where g.id = d.group_id and d.group_id = $1 and ($2::text is null or exists (
        select 1 from queen.stream_windows w
         where w.stream_id = g.stream_id and w.id = d.window_id and w.key = $2
           and w.starts_at = $3 and w.ends_at = $4 and w.id = coalesce($5, w.id)))
    returning d.window_id, g.stream_id
), work as (
    insert into queen.stream_work (group_id, window_id, key, state)
    select $1, a.window_id, w.key, 0
    from again a join queen.stream_windows w on w.stream_id = a.stream_id and w.id = a.window_id
    on conflict (group_id, window_id) do nothing
)
select count(*) from again

-- name: balance_group :exec once
select queen.balance_work($1, $2, (s.definition ->> 'maxInFlight')::integer, false)
from queen.stream_groups g join queen.streams s on s.id = g.stream_id where g.id = $1

-- name: delete_stream_group :maybe once
delete from queen.stream_groups where stream_id = $1 and name = $2 returning id

-- name: pause_stream_group :maybe again
update queen.stream_groups set paused = $3, used_at = clock_timestamp()
where stream_id = $1 and name = $2 returning id
