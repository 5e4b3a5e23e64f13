-- name: window_segments :many
-- What is stored of some ranges of offsets, in order of time: no more than about $4 bytes.
-- `all_bytes` is how many there are, of a merged segment those of the range.
select partition_id, base_offset, end_offset, created_at, codec, body, all_bytes, low, high,
       case when codec >= 16 then queen.stretch_table(partition_id, base_offset) end as stretches
from (
    select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body, low, high,
           sum(n.bytes) over () as all_bytes,
           sum(n.bytes) over (
               order by s.created_at, s.partition_id, s.base_offset rows unbounded preceding)
               - n.bytes as bytes_before
    from unnest($1::bigint[], $2::bigint[], $3::bigint[]) w (id, low, high)
    join queen.segments s
      on s.partition_id = w.id and s.end_offset > w.low and s.base_offset < w.high
     and s.base_offset >= (
        select coalesce(max(f.base_offset), 0) from queen.segments f
         where f.partition_id = w.id and f.base_offset <= w.low)
    cross join lateral (
        select case when s.codec < 16 then octet_length(s.body)
                    else (octet_length(s.body)
                          * (least(s.end_offset, w.high) - greatest(s.base_offset, w.low))
                          / (s.end_offset - s.base_offset))::integer end as bytes
    ) n
) b
-- One of them tells that there is too much.
where all_bytes <= $4::bigint or bytes_before = 0
order by created_at, partition_id, base_offset

-- name: window_page :many
-- Some segments of one range, in order: no more than $5 bytes at once, and at least one.
select partition_id, base_offset, end_offset, created_at, codec, body, $2 as low, $3 as high,
       case when codec >= 16 then queen.stretch_table(partition_id, base_offset) end as stretches
from (
    select r.*, sum(octet_length(r.body)) over (order by r.base_offset rows unbounded preceding)
               - octet_length(r.body) as bytes_before
    from (
        select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body
        from queen.segments s
        where s.partition_id = $1 and s.end_offset > $2 and s.base_offset < $3
          and s.base_offset >= (
            select coalesce(max(f.base_offset), 0) from queen.segments f
             where f.partition_id = $1 and f.base_offset <= $2)
        order by s.base_offset limit $4
    ) r
) b
where bytes_before < $5::bigint
order by base_offset

-- name: tails :many
-- Where partitions begin now: what stood before was removed.
select id, tail from queen.partitions where id = any ($1::bigint[])
