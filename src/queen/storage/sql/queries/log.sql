-- name: append :many once
-- Append segments; one row per partition.
select * from queen.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: read_spans :many
-- The segments that overlap spans of offsets, oldest first; `span` counts the spans from 1.
select w.span, s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
from unnest($1::bigint[], $2::bigint[], $3::bigint[])
     with ordinality w (partition_id, start, stop, span)
cross join lateral (
    select * from queen.segments g
    where g.partition_id = w.partition_id
      and g.base_offset >= coalesce((
            select f.base_offset from queen.segments f
            where f.partition_id = w.partition_id and f.base_offset <= w.start
            order by f.base_offset desc limit 1), 0)
      and g.base_offset < w.stop and g.end_offset > w.start
    order by g.base_offset
) s

-- name: read_some :many
-- The same, but no more than so many bytes of each span ($4) and of all of them ($5), and at
-- least one segment.
select r.* from (
    select w.span, s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body,
           coalesce(sum(length(s.body)) over (
               partition by w.span order by s.base_offset
               rows between unbounded preceding and 1 preceding), 0) as bytes_before,
           coalesce(sum(length(s.body)) over (
               order by w.span, s.base_offset
               rows between unbounded preceding and 1 preceding), 0) as all_bytes_before
    from unnest($1::bigint[], $2::bigint[], $3::bigint[])
         with ordinality w (partition_id, start, stop, span)
    cross join lateral (
        select * from queen.segments g
        where g.partition_id = w.partition_id
          and g.base_offset >= coalesce((
                select f.base_offset from queen.segments f
                where f.partition_id = w.partition_id and f.base_offset <= w.start
                order by f.base_offset desc limit 1), 0)
          and g.base_offset < w.stop and g.end_offset > w.start
    ) s
) r
where r.bytes_before < $4::bigint and r.all_bytes_before < $5::bigint
order by r.span, r.base_offset

-- name: window_starts :many
-- Where the dedup windows of partitions begin and end. Those that nobody wrote to for so long
-- are not searched.
select p.id, p.head, p.head_at,
       case when p.head_at > statement_timestamp() - w.window_seconds * interval '1 second'
            then queen.offset_at(
                p.id, statement_timestamp() - w.window_seconds * interval '1 second')
            else p.head end as start
from unnest($1::bigint[], $2::integer[]) w (id, window_seconds)
join queen.partitions p on p.id = w.id

-- name: hashes_between :many
-- The hashes of spans of partitions that begin and end with segments, one after the other.
select w.id, h.hashes
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) w (id, start, stop)
cross join lateral (
    select string_agg(s.hashes, '' order by s.base_offset) as hashes
    from queen.segments s
    where s.partition_id = w.id and s.base_offset >= w.start and s.base_offset < w.stop
) h

-- name: hashes_before :many
-- A page of stored hashes, newest segment first.
select * from queen.hashes_before($1, $2, $3, $4)

-- name: unlocked_partitions :many
-- Those of some partitions that could be written to now.
select p.id from queen.partitions p
join (
    select q.id from unnest($1::integer[]) q (id)
    where pg_try_advisory_xact_lock_shared(7001, q.id)
) q on q.id = p.queue_id
where p.id = any ($2::bigint[])
order by p.id
for no key update of p skip locked

-- name: indexed_offsets :many
-- Where hashes stand in the index of a partition that keeps one.
select message_offset, hash from queen.dedup_index
where partition_id = $1 and hash = any ($2::bytea[])
order by message_offset

-- name: partition_head :maybe
select head from queen.partitions where id = $1

-- name: written_since :many
-- How far the partitions of queues that were written to, each since an instant of its own, reach.
select s.partition_id, max(s.end_offset) as head
from unnest($1::integer[], $2::timestamptz[]) with ordinality w (queue_id, since, number)
cross join lateral (
    select g.partition_id, g.end_offset from queen.segments g
    where g.queue_id = w.queue_id and g.created_at > w.since
) s
group by w.number, s.partition_id
order by w.number, s.partition_id

-- name: sweep_page :many
-- The next thousand partitions of a queue: what each group member may read and who holds it.
select p.id, p.name, p.head, coalesce(c.committed, 0) as committed, c.lease_id,
       coalesce(c.lease_until > clock_timestamp(), false) as live
from (
    select id, name, head from queen.partitions
    where queue_id = $1 and id > $3 order by id limit 1000
) p
-- The limit keeps the planner from joining with all cursors there are.
left join lateral (
    select committed, lease_id, lease_until from queen.cursors
    where partition_id = p.id and group_id = $2 limit 1
) c on true
order by p.id

-- name: sweep_pages :many
-- The same for groups of several queues, at most $4 partitions of each: those that have something
-- to read, and the last one that was looked at. `seen` counts the partitions up to a row.
select w.number, p.id, p.name, p.head, coalesce(c.committed, 0) as committed, c.lease_id,
       coalesce(c.lease_until > clock_timestamp(), false) as live, p.seen
from unnest($1::integer[], $2::integer[], $3::bigint[])
     with ordinality w (queue_id, group_id, after, number)
cross join lateral (
    select f.*, row_number() over (order by f.id) as seen,
           lead(f.id) over (order by f.id) is null as is_last
    from (
        select id, name, head from queen.partitions
        where queue_id = w.queue_id and id > w.after order by id limit $4
    ) f
) p
left join lateral (
    select committed, lease_id, lease_until from queen.cursors
    where partition_id = p.id and group_id = w.group_id limit 1
) c on true
where p.is_last or p.head > coalesce(c.committed, 0)
order by w.number, p.id

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

-- name: lock_segment :maybe
-- The segment that holds an offset which retention has left, for as long as it is rewritten.
select s.partition_id, s.base_offset, s.codec, s.body
from queen.segments s join queen.partitions p on p.id = s.partition_id
where s.partition_id = $1 and s.base_offset <= $2 and s.end_offset > $2 and p.tail <= $2
order by s.base_offset desc limit 1
for update of s

-- name: lock_partition :exec
-- Before its segments, as everywhere.
select 1 from queen.partitions where id = $1 for no key update

-- name: count_erasure :exec once
update queen.partitions set erasures = erasures + 1 where id = $1

-- name: rewrite_segment :exec again
update queen.segments set codec = $3, body = $4 where partition_id = $1 and base_offset = $2
