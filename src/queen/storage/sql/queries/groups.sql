-- name: groups_page :many
-- Groups with their queues, by name; a null matches all.
select g.id, g.name, g.queue_id, q.name as queue, g.subscription_mode, g.starts_at,
       g.created_at, g.paused, g.used_at
from queen.groups g join queen.queues q on q.id = g.queue_id
where ($1::text is null or g.name = $1) and ($2::text is null or q.name = $2)
  and ($5::text[] is null or q.namespace = any ($5))
order by g.name, q.name
limit $3 offset $4

-- name: groups_after :many
-- Ids of the next groups there are; a null is all namespaces.
select g.id from queen.groups g join queen.queues q on q.id = g.queue_id
where g.id > $1 and ($3::text[] is null or q.namespace = any ($3))
order by g.id limit $2

-- name: lag_pages :many
-- For each group one page of its queue's partitions, from behind a partition on: how much the
-- group has not read there, and since when. `late` partitions wait longer than some seconds.
select g.id, t.*, clock_timestamp() as now
from unnest($1::integer[], $2::bigint[]) w (group_id, after)
join queen.groups g on g.id = w.group_id
cross join lateral (
    select count(*) as seen, max(l.id) as last, count(l.committed) as members,
           count(*) filter (where l.live) as leases,
           count(*) filter (where l.lag > 0) as partitions_with_lag,
           coalesce(sum(l.lag), 0)::bigint as total_lag, min(l.unread_at) as oldest_at,
           array_agg(l.id order by l.id) filter (where l.late) as late_ids,
           array_agg(l.lag order by l.id) filter (where l.late) as late_lags,
           array_agg(l.unread_at order by l.id) filter (where l.late) as late_at
    from (
        select p.id, c.committed, coalesce(c.lease_until > clock_timestamp(), false) as live,
               greatest(p.head - o.position, 0) as lag, s.created_at as unread_at,
               s.created_at < clock_timestamp() - make_interval(secs => $3) as late
        from (
            select * from queen.partitions f
            where f.queue_id = g.queue_id and f.id > w.after order by f.id limit $4
        ) p
        left join lateral (
            select k.committed, k.lease_until from queen.cursors k
            where k.partition_id = p.id and k.group_id = g.id limit 1
        ) c on true
        cross join lateral (
            -- The offset keeps this from being worked out again wherever it is used.
            select queen.next_offset(p, c.committed, g.starts_at) as position offset 0
        ) o
        left join lateral (
            select h.created_at from queen.segments h
            where h.partition_id = p.id and h.base_offset <= o.position
            order by h.base_offset desc limit 1
        ) s on p.head > o.position
    ) l
) t

-- name: group_partitions :many
-- A page of the partitions of each queue a group reads, and where it stands in them.
select g.id as group_id, p.id, p.name, p.head, c.committed, o.position,
       coalesce(c.lease_until > clock_timestamp(), false) as live,
       c.lease_until, coalesce(c.attempts, 0) as attempts,
       extract(epoch from clock_timestamp() - s.created_at)::double precision as lag_seconds
from unnest($1::integer[]) w (group_id)
join queen.groups g on g.id = w.group_id
cross join lateral (
    select * from queen.partitions f
    where f.queue_id = g.queue_id order by f.id limit $2 offset $3
) p
left join lateral (
    select k.committed, k.lease_until, k.attempts from queen.cursors k
    where k.partition_id = p.id and k.group_id = g.id limit 1
) c on true
cross join lateral (
    select queen.next_offset(p, c.committed, g.starts_at) as position offset 0
) o
left join lateral (
    select h.created_at from queen.segments h
    where h.partition_id = p.id and h.base_offset <= o.position
    order by h.base_offset desc limit 1
) s on p.head > o.position
order by g.id, p.id

-- name: group_names :many
select g.id, g.name, q.name as queue from queen.groups g join queen.queues q on q.id = g.queue_id
where g.id = any ($1::integer[])

-- name: delete_group :one
select queen.delete_group($1, $2)

-- name: seal :one
select queen.seal($1)

-- name: seek :many
select * from queen.seek($1, $2, $3, $4, $5)

-- name: written_at :one
-- When the message at an offset was written.
select created_at from queen.segments
where partition_id = $1 and base_offset <= $2 and end_offset > $2
order by base_offset desc limit 1

-- name: subscribe_groups :exec
-- Change where groups start in partitions they have not read yet.
update queen.groups set starts_at = $2, subscription_mode = 'timestamp'
where id = any ($1::integer[])

-- name: pause_groups :exec
update queen.groups set paused = $2 where id = any ($1::integer[])

-- name: touch_groups :exec
-- Note that groups are in use; to within a minute is enough.
update queen.groups set used_at = clock_timestamp() where id = any ($1::integer[])
