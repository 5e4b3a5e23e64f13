-- name: written_since :many
-- How far the partitions of queues that were written to, each since an instant of its own, reach.
select s.partition_id, max(s.end_offset) as head
from unnest($1::integer[], $2::timestamptz[]) with ordinality w (queue_id, since, number)
cross join lateral (
    select g.partition_id, g.end_offset from queen.segments g
    where g.queue_id = w.queue_id and g.created_at > w.since
    union all
    select m.partition_id, m.end_offset from queen.merged_segments m
    where m.queue_id = w.queue_id and m.last_at > w.since and m.first_at <= w.since
) s
group by w.number, s.partition_id
order by w.number, s.partition_id

-- name: sweep_pages :many
-- The next partitions of queues that groups read, at most $4 of each: those that have something to
-- read, and the last one that was looked at. `committed` is where the group stands at least: it
-- has nothing to read of what is gone, and where it has no cursor, nothing of what was written
-- before its subscription starts. `seen` counts the partitions up to a row.
select w.number, p.id, p.name, p.head, d.committed, c.lease_id,
       coalesce(c.lease_until > clock_timestamp(), false) as live, p.seen
from unnest($1::integer[], $2::integer[], $3::bigint[])
     with ordinality w (queue_id, group_id, after, number)
left join queen.groups g on g.id = w.group_id
cross join lateral (
    select f.*, row_number() over (order by f.id) as seen,
           lead(f.id) over (order by f.id) is null as is_last
    from (
        select id, name, head, tail, head_at from queen.partitions
        where queue_id = w.queue_id and id > w.after order by id limit $4
    ) f
) p
-- The limit keeps the planner from joining with all cursors there are.
left join lateral (
    select committed, lease_id, lease_until from queen.cursors
    where partition_id = p.id and group_id = w.group_id order by hops desc limit 1
) c on true
cross join lateral (
    select greatest(p.tail, coalesce(c.committed, case
        when p.head_at < g.starts_at then p.head else 0 end)) as committed
) d
where p.is_last or p.head > d.committed
order by w.number, p.id

-- name: horizon :one
-- The time, and the time before which no server is still writing anything.
select clock_timestamp() as now, least(clock_timestamp(), min(a.xact_start)) as seen_until
from pg_stat_activity a
where a.datname = current_database() and a.application_name = 'queen'
  and a.backend_xid is not null

-- name: free_partitions :many
-- Of partitions that groups have leased, as somebody believes, those that are free by now: not
-- leased at all, or (with $3, its own) not by the lease that it knows of.
select c.partition_id, c.group_id
from unnest($1::bigint[], $2::integer[], $3::uuid[]) w (partition_id, group_id, lease_id)
cross join lateral (
    select * from queen.cursors k
    where k.partition_id = w.partition_id and k.group_id = w.group_id order by k.hops desc limit 1
) c
where (c.lease_until is null or c.lease_until <= clock_timestamp() or c.lease_id <> w.lease_id)
  and (c.retry_at is null or c.retry_at <= clock_timestamp())
  and (c.handed is null or exists (
      select 1 from queen.shared_spans s
      where s.partition_id = c.partition_id and s.group_id = c.group_id
        and s.due_at <= clock_timestamp()))

-- name: touch_groups :exec again
-- Note that groups are in use; to within a minute is enough.
update queen.groups set used_at = clock_timestamp() where id = any ($1::integer[])
