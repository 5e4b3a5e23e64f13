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
order by p.rank

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

-- name: delete_stream_group :maybe once
delete from queen.stream_groups where stream_id = $1 and name = $2 returning id

-- name: pause_stream_group :maybe again
update queen.stream_groups set paused = $3, used_at = clock_timestamp()
where stream_id = $1 and name = $2 returning id

-- name: stream_timeline :many
-- The last windows of some keys, the oldest of a key first, with what a group has done about them:
-- first keys with dead windows, then those whose windows are or were leased, then those with work to
-- do, of both the oldest first, then those whose windows closed last.
with candidates as materialized (
    (select w.key, 1 as rank, w.id
       from (select * from queen.stream_dead where group_id = $2
              order by window_id desc limit 1000) d
       join queen.stream_windows w on w.stream_id = $1 and w.id = d.window_id
      where $3::text is null or w.key = $3)
    union all
    (select k.key, case when k.attempts > 0 then 2 else 3 end, k.window_id from queen.stream_work k
      where k.group_id = $2 and k.state = 1 and ($3::text is null or k.key = $3)
      order by k.window_id limit 1000)
    union all
    (select w.key, 4, w.id from queen.stream_windows w
      where w.stream_id = $1 and ($3::text is null or w.key = $3)
      order by w.id desc limit 2000)
),
keys as materialized (
    select key, rank, case when rank in (2, 3) then first else -last end as place
    from (select key, min(rank) as rank, min(id) as first, max(id) as last
            from candidates group by key) c
    order by 2, 3, 1 limit $4
)
select y.key, w.id, w.starts_at, w.ends_at, w.messages, w.bytes,
       coalesce(k.attempts, d.attempts, 0) as attempts, k.consumer, coalesce(k.error, d.error) as error,
       case when k.lease_id is not null then k.available_at end as lease_until,
       case when k.lease_id is null and k.available_at > clock_timestamp()
            then k.available_at end as retry_at,
       k.granted_at, coalesce(k.done_at, d.failed_at) as settled_at,
       case when g.id is null then 'planned'
            when k.state = 2 then 'done'
            when k.state = 0 then 'waiting'
            when k.lease_id is not null and k.available_at > clock_timestamp() then 'leased'
            when k.state = 1 and k.available_at > clock_timestamp() then 'retrying'
            when k.state = 1 then 'ready'
            when d.id is not null then 'dead'
            when w.ends_at <= g.starts_at then 'before'
            when w.id > g.frontier then 'planned'
            else 'done' end as state
from keys y
left join queen.stream_groups g on g.id = $2
cross join lateral (
    select * from queen.stream_windows n
     where n.stream_id = $1 and n.key = y.key order by n.id desc limit $5
) w
left join lateral (
    select * from queen.stream_work n where n.group_id = $2 and n.window_id = w.id
) k on true
left join lateral (
    select * from queen.stream_dead n where n.group_id = $2 and n.window_id = w.id
) d on true
order by y.rank, y.place, y.key, w.id
