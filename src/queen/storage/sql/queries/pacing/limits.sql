-- name: lock_paced_queues :many
-- The buckets of queues, locked in order and before those of groups, and the time of each look.
select b.queue_id, b.tokens, b.filled_at, clock_timestamp() as now
from queen.paced_queues b where b.queue_id = any ($1::integer[])
order by b.queue_id for no key update

-- name: lock_free_paced_queues :many
-- The same without those that somebody holds.
select b.queue_id, b.tokens, b.filled_at, clock_timestamp() as now
from queen.paced_queues b where b.queue_id = any ($1::integer[])
order by b.queue_id for no key update skip locked

-- name: ensure_paced_queues :exec again
insert into queen.paced_queues (queue_id)
select q.id from queen.queues q where q.id = any ($1::integer[]) order by q.id
on conflict do nothing

-- name: store_paced_queues :exec once
-- Write buckets back that were locked in the same transaction.
update queen.paced_queues b set tokens = w.tokens, filled_at = w.filled_at
from unnest($1::integer[], $2::double precision[], $3::timestamptz[]) w (queue_id, tokens, filled_at)
where b.queue_id = w.queue_id

-- name: groups_of_queues :many
-- The groups that share the limits of their queues.
select g.id, g.queue_id from queen.groups g where g.queue_id = any ($1::integer[])

-- name: lock_paced_groups :many
-- The buckets of groups, locked in order, and the time at which each was looked at.
select b.group_id, b.tokens, b.filled_at, clock_timestamp() as now
from queen.paced_groups b where b.group_id = any ($1::integer[])
order by b.group_id for no key update

-- name: lock_free_paced_groups :many
-- The same without those that somebody holds.
select b.group_id, b.tokens, b.filled_at, clock_timestamp() as now
from queen.paced_groups b where b.group_id = any ($1::integer[])
order by b.group_id for no key update skip locked

-- name: ensure_paced_groups :exec again
insert into queen.paced_groups (group_id)
select g.id from queen.groups g where g.id = any ($1::integer[]) order by g.id
on conflict do nothing

-- name: read_paced_partitions :many
-- The buckets of partitions, under the locks of their groups.
select b.group_id, b.partition_id, b.tokens, b.filled_at
from unnest($1::integer[], $2::bigint[]) w (group_id, partition_id)
join queen.paced_partitions b on b.group_id = w.group_id and b.partition_id = w.partition_id

-- name: messages_held :many
-- What groups have on leases, under their locks, by partition: none where there is none any more.
select h.group_id, h.partition_id, (coalesce(o.held, 0) + coalesce(s.held, 0))::bigint as held
from queen.paced_partitions h
left join lateral (
    select c.batch_end - c.committed - coalesce(bit_count(
               queen.bits_within(c.acked, null, 0, c.batch_end - c.committed)), 0) as held
    from queen.cursors c
    where c.partition_id = h.partition_id and c.group_id = h.group_id
      and c.lease_until > clock_timestamp()
) o on true
left join lateral (
    select sum(queen.left_in(k)) as held from queen.shared_spans k
    where k.partition_id = h.partition_id and k.group_id = h.group_id
      and k.lease_id is not null and k.due_at > clock_timestamp()
) s on true
where h.group_id = any ($1::integer[]) and h.may_hold

-- name: let_go_partitions :exec again
-- Nothing of these partitions is on a lease any more.
update queen.paced_partitions b set may_hold = false
from unnest($1::integer[], $2::bigint[]) w (group_id, partition_id)
where b.group_id = w.group_id and b.partition_id = w.partition_id

-- name: store_paced_groups :exec once
-- Write buckets back that were locked in the same transaction.
update queen.paced_groups b set tokens = w.tokens, filled_at = w.filled_at
from unnest($1::integer[], $2::double precision[], $3::timestamptz[]) w (group_id, tokens, filled_at)
where b.group_id = w.group_id

-- name: store_paced_partitions :exec once
-- The same for partitions of which something was leased.
insert into queen.paced_partitions (group_id, partition_id, tokens, filled_at, may_hold)
select w.group_id, w.partition_id, w.tokens, w.filled_at, true
from unnest($1::integer[], $2::bigint[], $3::double precision[], $4::timestamptz[])
     w (group_id, partition_id, tokens, filled_at)
order by w.group_id, w.partition_id
on conflict (group_id, partition_id) do update
set tokens = excluded.tokens, filled_at = excluded.filled_at, may_hold = true
