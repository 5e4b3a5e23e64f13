-- name: browse_queue :many
-- Where the stretches of a queue lie, newest first, without their bodies. ($3, $4, $5) is where
-- the last page ended; `segment_base` tells which segment one is in.
select s.partition_id, s.base_offset, s.end_offset, s.created_at,
       greatest(s.base_offset, p.tail) as first_offset, s.bytes, s.segment_base
from queen.stretches_before($1, $2, $3, $4, $5, $6) s
join queen.partitions p on p.id = s.partition_id
where s.end_offset > p.tail
order by s.created_at desc, s.partition_id desc, s.base_offset desc

-- name: browse_partition :many
-- The same for one partition, in which time and offsets grow together.
select $1::bigint as partition_id, u.base_offset, u.end_offset, u.created_at,
       greatest(u.base_offset, s.tail) as first_offset, u.bytes,
       s.base_offset as segment_base
from (
    select g.*, p.tail from queen.segments g join queen.partitions p on p.id = g.partition_id
    where g.partition_id = $1 and g.base_offset < $2 and g.end_offset > p.tail
      and g.created_at <= $4 and g.created_at >= $3::timestamptz - interval '10 minutes'
      and (g.created_at >= $3 or g.codec >= 16)
    order by g.base_offset desc
    limit $5
) s
cross join lateral queen.stretches_of(s.partition_id, s.base_offset, s.end_offset, s.created_at,
                                      s.codec, octet_length(s.body)) u
where u.base_offset < $2 and u.end_offset > s.tail and u.created_at >= $3 and u.created_at <= $4
order by u.base_offset desc
limit $5

-- name: browse_cursors :many
-- Where every group of the queue stands in some partitions. `is_read`: it has a cursor there.
-- $2: say who holds a lease, too.
select p.id as partition_id, g.id as group_id, g.name, c.partition_id is not null as is_read,
       case when c.committed is not null then c.committed
            when g.starts_at is null then p.tail
            else queen.offset_at(p.id, g.starts_at) end as next_offset,
       c.batch_end, c.lease_until, coalesce(c.lease_until > clock_timestamp(), false) as live,
       coalesce(c.attempts, 0) as attempts, c.acked, c.handed,
       case when $2 and c.lease_until > clock_timestamp() then queen.consumer_of(c.lease_id)
       end as consumer
from queen.partitions p join queen.groups g on g.queue_id = p.queue_id
left join queen.cursors c on c.partition_id = p.id and c.group_id = g.id
where p.id = any ($1::bigint[])
order by p.id, g.id

-- name: browse_spans :many
-- What of spans of offsets is with consumers of shared groups, or waits for its next try.
-- $4: say who holds a lease, too.
select s.partition_id, s.group_id, s.first_offset, s.end_offset, s.attempts, s.acked, s.failed,
       case when s.lease_id is not null and s.due_at > clock_timestamp() then s.due_at
       end as lease_until,
       case when $4 and s.lease_id is not null and s.due_at > clock_timestamp()
            then queen.consumer_of(s.lease_id) end as consumer
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) w (partition_id, start, stop)
join queen.shared_spans s on s.partition_id = w.partition_id
 and s.first_offset < w.stop and s.end_offset > w.start

-- name: browse_dead_letters :many
-- What died in spans of offsets.
select d.partition_id, d.group_id, d.message_offset, d.attempts, d.error
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) w (partition_id, start, stop)
join queen.dead_letters d on d.partition_id = w.partition_id
 and d.message_offset >= w.start and d.message_offset < w.stop
