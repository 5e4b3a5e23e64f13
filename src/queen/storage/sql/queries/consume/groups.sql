-- name: groups_page :many
-- Groups with their queues and their counts, by name; a null matches all. A group that was not
-- counted yet has no counts.
select g.id, g.name, g.queue_id, q.name as queue, g.subscription_mode, g.starts_at,
       g.created_at, g.paused, g.used_at, s.members, s.consumers, s.leased_partitions, s.partitions_behind,
       s.pending, s.oldest_unread_at, g.reads_by_time, g.shared,
       b.opened_at as breaker_opened_at
from queen.groups g join queen.queues q on q.id = g.queue_id
left join queen.group_breakers b on b.group_id = g.id
left join queen.group_stats s on s.group_id = g.id
where ($1::text is null or g.name = $1) and ($2::text is null or q.name = $2)
  and ($5::text[] is null or q.namespace = any ($5))
order by g.name, q.name
limit $3 offset $4

-- name: group_partitions :many
-- A page of the partitions of each queue a group reads, and where it stands in them.
select g.id as group_id, p.id, p.name, p.head, o.position,
       coalesce(c.committed, case when g.reads_by_time then o.position end) as committed,
       coalesce(c.lease_until > clock_timestamp(), false) as live,
       c.lease_until, c.consumers, coalesce(c.attempts, 0) as attempts,
       coalesce(c.ahead, 0) as ahead,
       extract(epoch from clock_timestamp() - case when s.codec < 16 then s.created_at
                   else queen.stretch_time(p.id, s.base_offset, o.position) end
       )::double precision as lag_seconds
from unnest($1::integer[]) w (group_id)
join queen.groups g on g.id = w.group_id
cross join lateral (
    select * from queen.partitions f
    where f.queue_id = g.queue_id order by f.id limit $2 offset $3
) p
left join lateral (
    -- Of a shared group, the lease that ends last, what is tried for longest, and some of those who
    -- hold something.
    select k.committed, coalesce(k.lease_until, w.lease_until) as lease_until,
           coalesce(w.attempts, k.attempts) as attempts, queen.done_ahead(k) as ahead,
           coalesce(queen.consumer_of(k.lease_id), w.consumers) as consumers
    from queen.cursors k
    left join lateral (
        select max(s.due_at) filter (where s.lease_id is not null) as lease_until,
               max(s.attempts) as attempts,
               (select string_agg(distinct queen.consumer_of(l.lease_id), ', ') from (
                    select h.lease_id from queen.shared_spans h
                    where h.partition_id = p.id and h.group_id = g.id and h.lease_id is not null
                      and h.due_at > clock_timestamp() limit 20) l) as consumers
        from queen.shared_spans s
        where k.handed is not null and s.partition_id = p.id and s.group_id = g.id
    ) w on true
    where k.partition_id = p.id and k.group_id = g.id limit 1
) c on true
cross join lateral (
    select queen.next_offset(p, c.committed, g.starts_at) as position offset 0
) o
left join lateral (
    select h.created_at, h.base_offset, h.codec from queen.segments h
    where h.partition_id = p.id and h.base_offset <= o.position
    order by h.base_offset desc limit 1
) s on p.head > o.position
order by g.id, p.id

-- name: delete_group :one once
select queen.delete_group($1, $2)

-- name: seal :one again
select queen.seal($1)

-- name: seek :many once
select * from queen.seek($1, $2, $3, $4, $5)

-- name: written_at :maybe
-- When the message at an offset was written.
select case when codec < 16 then created_at
            else queen.stretch_time(partition_id, base_offset, $2) end as created_at
from queen.segments
where partition_id = $1 and base_offset <= $2 and end_offset > $2
order by base_offset desc limit 1

-- name: subscribe_groups :exec once
-- Change where groups start in partitions they have not read yet. What they are moved back to
-- is kept, as by a seek.
with held as materialized (
    select queen.hold_retention(array(
        select g.queue_id from queen.groups g where g.id = any ($1::integer[])))
)
update queen.groups
set used_at = clock_timestamp(), starts_at = $2, moves = moves + reads_by_time::integer,
    subscription_mode = case when reads_by_time then 'time' else 'timestamp' end
from held
where id = any ($1::integer[])

-- name: pause_groups :exec again
update queen.groups set paused = $2 where id = any ($1::integer[])
