-- name: stuck_partitions :many
-- Where groups that read have had something to read for longest, and who is at it: the lease if
-- there is one, and how often what is next was handed out. The first argument is the namespaces
-- that may be seen, null for all.
with worst as materialized (
    select t.partition_id, t.pending, t.oldest_unread_at, t.group_id,
           g.name as group_name, q.name as queue
    from queen.lagging_partitions t
    join queen.groups g on g.id = t.group_id join queen.queues q on q.id = g.queue_id
    where t.oldest_unread_at < $2 and ($1::text[] is null or q.namespace = any ($1))
    order by t.oldest_unread_at, t.partition_id, t.group_id limit $3
)
select w.*, p.name as partition, coalesce(s.attempts, c.attempts, 0) as attempts,
       case when coalesce(s.lease_until, c.lease_until) > clock_timestamp()
            then coalesce(s.lease_until, c.lease_until) end as lease_until,
       case when coalesce(s.lease_until, c.lease_until) > clock_timestamp()
            then queen.consumer_of(coalesce(s.lease_id, c.lease_id)) end as consumer
from worst w join queen.partitions p on p.id = w.partition_id
left join queen.cursors c on c.partition_id = w.partition_id and c.group_id = w.group_id
left join lateral (
    -- The first one of a shared group that is not done.
    select k.attempts, k.lease_id,
           case when k.lease_id is not null then k.due_at end as lease_until
    from queen.shared_spans k
    where c.handed is not null and k.partition_id = c.partition_id and k.group_id = c.group_id
      and k.first_offset >= c.committed
    order by k.first_offset limit 1
) s on true
order by w.oldest_unread_at, w.partition_id, w.group_id

-- name: retention_risks :many
-- Groups whose oldest unread message will be removed unread, the soonest first: by retention, or
-- because it has waited for too long. The time is that of the last count.
select q.name as queue, g.name as group_name, t.pending, t.oldest_unread_at,
       t.oldest_unread_at + make_interval(secs => limits.keeps_s) as removed_at
from queen.group_stats t
join queen.groups g on g.id = t.group_id join queen.queues q on q.id = t.queue_id
cross join lateral (
    select least(
        case when (q.options -> 'retentionEnabled') = 'true'
             then nullif((q.options ->> 'retentionSeconds')::bigint, 0) end,
        nullif((q.options ->> 'maxWaitTimeSeconds')::bigint, 0),
        nullif((q.options ->> 'ttl')::bigint, 0)
    ) as keeps_s
) limits
where t.pending > 0 and t.oldest_unread_at is not null and limits.keeps_s is not null
  and ($1::text[] is null or q.namespace = any ($1))
order by removed_at limit $2
