-- name: fetch_partition :many
-- Stored segments of one partition that hold something behind an offset, in order: no more than
-- $6 bytes at once, and at least one. `stretches` is what a merged one is made of: the reader
-- takes of it what it asked for.
select partition_id, base_offset, end_offset, created_at, codec, body,
       case when codec >= 16 then queen.stretch_table(partition_id, base_offset) end as stretches
from (
    select r.*, sum(octet_length(r.body)) over (order by r.base_offset rows unbounded preceding)
               - octet_length(r.body) as bytes_before
    from (
        select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
        from queen.segments s
        where s.partition_id = $1 and s.end_offset > $2 and s.base_offset < $3
          and s.created_at < $4 and s.base_offset >= coalesce((
                select f.base_offset from queen.segments f
                where f.partition_id = $1 and f.base_offset <= $2
                order by f.base_offset desc limit 1), 0)
        order by s.base_offset
        limit $5
    ) r
) b
where bytes_before < $6::bigint
order by base_offset

-- name: fetch_queue :many
-- The same of a queue, in order of time, behind ($2, $3, $4) and before ($5, $6, $7). What merged
-- segments hold that begin at that place or before comes whole, whatever it weighs. `is_last`:
-- there is nothing more.
with begun as (
    select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
    from queen.merged_segments m join queen.segments s using (partition_id, base_offset)
    where m.queue_id = $1 and m.last_at >= $2
      and m.last_at <= $2::timestamptz + interval '10 minutes'
      and (m.first_at, m.partition_id, m.base_offset) <= ($2, $3, $4)
), page as (
    select r.*, sum(octet_length(r.body)) over (
               order by r.created_at, r.partition_id, r.base_offset rows unbounded preceding)
               - octet_length(r.body) as bytes_before
    from (
        select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
        from queen.segments s
        where s.queue_id = $1 and s.created_at >= $2 and s.created_at <= $5
          and (s.created_at, s.partition_id, s.base_offset) > ($2, $3, $4)
          and (s.created_at, s.partition_id, s.base_offset) < ($5, $6, $7)
        order by s.created_at, s.partition_id, s.base_offset
        limit $8
    ) r
)
select w.*, case when codec >= 16 then queen.stretch_table(partition_id, base_offset) end as stretches,
       (select count(*) < $8 and coalesce(max(bytes_before), 0) < $9::bigint from page) as is_last
from (
    select b.* from begun b
     union all
    select partition_id, base_offset, end_offset, created_at, codec, body from page
    where bytes_before < $9::bigint
) w
order by created_at, partition_id, base_offset

-- name: segment_start :maybe
-- Where what was stored together with an offset begins; behind the last segment, where it ends.
select case when end_offset <= $2 then end_offset
            when codec < 16 then base_offset
            else queen.stretch_begin(partition_id, base_offset, $2) end
from queen.segments
where partition_id = $1 and base_offset <= $2
order by base_offset desc limit 1

-- name: offset_at :one
select queen.offset_at($1, $2)
