-- name: entry_streams :many
-- Streams as their last snapshots and the records behind them say, and their partitions.
select q.name, s.id, s.queue_id, s.partition_id, s.version, s.snapshot_version, s.snapshot, p.head, p.tail,
       array(select j.body from queen.entry_journal j
              where j.stream_id = s.id and j.version > s.snapshot_version
              order by j.version) as records
from queen.queues q
join queen.entry_streams s on s.queue_id = q.id
join queen.partitions p on p.id = s.partition_id
where q.name = any ($1::text[])

-- name: entry_places :many
-- Where streams are kept, and how far they are.
select q.name, s.id, s.partition_id, s.version, p.head
from queen.queues q
join queen.entry_streams s on s.queue_id = q.id
join queen.partitions p on p.id = s.partition_id
where q.name = any ($1::text[])

-- name: entry_records :many
-- What happened to a stream since a version.
select j.version, j.body from queen.entry_journal j
where j.stream_id = $1 and j.version > $2
order by j.version

-- name: entry_versions :many
-- How far streams are, and what time it is.
select s.id, s.version, p.head, p.tail,
       (extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms
from queen.entry_streams s join queen.partitions p on p.id = s.partition_id
where s.id = any ($1::bigint[])

-- name: lock_entry_streams :exec
-- Keeps others from writing to streams until the transaction ends.
select 1 from queen.entry_streams s where s.id = any ($1::bigint[])
order by s.id for no key update

-- name: make_entry_streams :exec again
-- Places for streams over partitions; there are no streams yet.
insert into queen.entry_streams (queue_id, partition_id)
select w.queue_id, w.partition_id
from unnest($1::integer[], $2::bigint[]) w (queue_id, partition_id)
order by w.queue_id
on conflict (queue_id) do nothing

-- name: entry_stream_names :many
-- The streams of some namespaces; null is all.
select q.name from queen.entry_streams s join queen.queues q on q.id = s.queue_id
where s.is_alive and ($1::text[] is null or q.namespace = any ($1))
order by q.name

-- name: entry_segments :many
-- When the messages of a partition were written, from an offset on.
select u.base_offset, u.end_offset, u.created_at
from (
    select * from queen.segments g where g.partition_id = $1 and g.end_offset > $2
    order by g.base_offset limit $3
) s
cross join lateral queen.stretches_of(s.partition_id, s.base_offset, s.end_offset, s.created_at,
                                      s.codec, octet_length(s.body)) u
where u.end_offset > $2
order by u.base_offset

-- name: commit_entries :many once
select * from queen.commit_entries($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)

-- name: snapshot_entries :exec again
select queen.snapshot_entries($1, $2, $3, $4)
