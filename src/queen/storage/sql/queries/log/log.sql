-- name: append :many once
-- Append segments; one row per partition.
select * from queen.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: append_lone :many once
-- Append one segment to one partition; one row, as `append` has it.
select * from queen.append_lone($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: append_and_lease :many once
-- Append one segment to one partition and lease it to who waits for it; one row, and the epoch.
select * from queen.append_and_lease($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: read_spans :many
-- The segments that overlap spans of offsets, oldest first; `span` counts the spans from 1.
-- `stretches` is what a merged one is made of, and `low` and `high` what the span is.
select w.span, w.start as low, w.stop as high,
       s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body,
       case when s.codec >= 16 then queen.stretch_table(s.partition_id, s.base_offset)
       end as stretches
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
    select w.span, w.start as low, w.stop as high,
           s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body,
           case when s.codec >= 16 then queen.stretch_table(s.partition_id, s.base_offset)
           end as stretches,
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
-- The hashes of spans of partitions that end with segments, one after the other.
select w.id, h.hashes
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) w (id, start, stop)
cross join lateral (
    select string_agg(case when s.base_offset >= w.start then s.hashes
                           else substring(s.hashes from ((w.start - s.base_offset) * 8 + 1)::integer)
                      end, '' order by s.base_offset) as hashes
    from queen.segments s
    where s.partition_id = w.id and s.base_offset < w.stop and s.end_offset > w.start
      and s.base_offset >= coalesce((
            select f.base_offset from queen.segments f
            where f.partition_id = w.id and f.base_offset <= w.start
            order by f.base_offset desc limit 1), 0)
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
