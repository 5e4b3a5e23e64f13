-- name: fetch_partition :many
-- Stored segments of one partition from an offset on, in order: no more than $6 bytes at once,
-- and at least one.
select partition_id, base_offset, end_offset, created_at, codec, body
from (
    select r.*, sum(octet_length(r.body)) over (order by r.base_offset rows unbounded preceding)
               - octet_length(r.body) as bytes_before
    from (
        select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
        from queen.segments s
        where s.partition_id = $1 and s.base_offset >= $2 and s.base_offset < $3
          and s.created_at < $4
        order by s.base_offset
        limit $5
    ) r
) b
where bytes_before < $6::bigint
order by base_offset

-- name: fetch_queue :many
-- The same of a queue, in order of time; ($2, $3, $4) is where the last page ended.
select partition_id, base_offset, end_offset, created_at, codec, body
from (
    select r.*, sum(octet_length(r.body)) over (
               order by r.created_at, r.partition_id, r.base_offset rows unbounded preceding)
               - octet_length(r.body) as bytes_before
    from (
        select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
        from queen.segments s
        where s.queue_id = $1 and s.created_at >= $2
          and (s.created_at, s.partition_id, s.base_offset) > ($2, $3, $4)
          and s.created_at < $5
        order by s.created_at, s.partition_id, s.base_offset
        limit $6
    ) r
) b
where bytes_before < $7::bigint
order by created_at, partition_id, base_offset

-- name: segment_start :maybe
-- Where the segment that holds an offset begins; behind the last one, where it ends.
select case when end_offset > $2 then base_offset else end_offset end from queen.segments
where partition_id = $1 and base_offset <= $2
order by base_offset desc limit 1

-- name: offset_at :one
select queen.offset_at($1, $2)

-- name: fetch_slice :many
-- Stored segments of a queue in order of time, from ($2, $3, $4) on and before ($5, $6, $7): no
-- more than $9 bytes at once, and at least one.
select partition_id, base_offset, end_offset, created_at, codec, body
from (
    select r.*, sum(octet_length(r.body)) over (
               order by r.created_at, r.partition_id, r.base_offset rows unbounded preceding)
               - octet_length(r.body) as bytes_before
    from (
        select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
        from queen.segments s
        where s.queue_id = $1 and s.created_at >= $2 and s.created_at <= $5
          and (s.created_at, s.partition_id, s.base_offset) >= ($2, $3, $4)
          and (s.created_at, s.partition_id, s.base_offset) < ($5, $6, $7)
        order by s.created_at, s.partition_id, s.base_offset
        limit $8
    ) r
) b
where bytes_before < $9::bigint
order by created_at, partition_id, base_offset

-- name: fetch_offsets :many
-- The same for one partition, by offset.
select partition_id, base_offset, end_offset, created_at, codec, body
from (
    select r.*, sum(octet_length(r.body)) over (order by r.base_offset rows unbounded preceding)
               - octet_length(r.body) as bytes_before
    from (
        select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
        from queen.segments s
        where s.partition_id = $1 and s.base_offset >= $2 and s.base_offset < $3
        order by s.base_offset
        limit $4
    ) r
) b
where bytes_before < $5::bigint
order by base_offset
