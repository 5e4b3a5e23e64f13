-- name: register_query :one once
select * from queen.register_query($1, $2, $3, $4, $5)

-- name: find_query :maybe
-- A query, and how it stands in a partition of its source.
select q.name, q.source_queue, q.is_windowed, l.consumer_group
from queen.queries q
left join queen.query_lanes l on l.query_id = q.id and l.partition_id = $2
where q.id = $1

-- name: open_query_partition :exec again
-- Make the row whose lock puts cycles one after the other.
insert into queen.query_lanes (query_id, partition_id, consumer_group)
values ($1, $2, $3)
on conflict (query_id, partition_id) do nothing

-- name: mark_windowed :exec again
update queen.queries set is_windowed = true where id = $1 and not is_windowed

-- name: lock_query_partition :maybe once
-- Begin a cycle: no other one of this query in this partition runs until it is over.
update queen.query_lanes l
set epoch = l.epoch + 1, consumer_group = $3
where l.query_id = $1 and l.partition_id = $2
returning l.epoch, l.offered

-- name: put_query_state :exec again
insert into queen.query_state as s
    (query_id, partition_id, epoch, key, window_end_ms, codec, value)
select $1, $2, $3, w.*
from unnest($4::text[], $5::double precision[], $6::smallint[], $7::bytea[])
     w (key, window_end_ms, codec, value)
on conflict (query_id, partition_id, key) do update
set epoch = excluded.epoch, window_end_ms = excluded.window_end_ms, codec = excluded.codec,
    value = excluded.value, updated_at = clock_timestamp()

-- name: delete_query_state :many once
-- Remove keys that were written up to an epoch.
delete from queen.query_state s
where s.query_id = $1 and s.partition_id = $2 and s.key = any ($3::text[]) and s.epoch <= $4
returning s.key

-- name: offer_state :one again
select queen.offer_state($1, $2) as settled_ms

-- name: read_query_state :many
-- State by key ($3; empty for all), by prefix ($4), and by the end of its window ($5); null for
-- each of the last two means any.
select s.partition_id, s.key, s.codec, s.value, s.updated_at
from queen.query_state s
where s.query_id = $1 and s.partition_id = $2
  and (cardinality($3::text[]) = 0 or s.key = any ($3::text[]))
  and ($4::text is null or starts_with(s.key, $4))
  and ($5::double precision is null or s.window_end_ms <= $5)
order by s.key

-- name: is_leased :one
select exists (
    select 1 from queen.cursors c
    where c.partition_id = $1 and c.group_id = $2 and c.lease_until > clock_timestamp())

-- name: head_of_partition :maybe
select p.head from queen.partitions p where p.id = $1

-- name: forgive_attempts :exec again
-- What a group holds now is not counted as a try.
update queen.cursors c set attempts = 0
where c.partition_id = $1 and c.group_id = $2 and c.attempts > 0
  and c.lease_until > clock_timestamp()

-- name: rewrite_query_state :exec again
update queen.query_state set codec = $4, value = $5
where query_id = $1 and partition_id = $2 and key = $3
