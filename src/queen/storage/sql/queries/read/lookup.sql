-- name: suspects_before :one
-- One page of a partition's segments, newest first: where it begins, and which of them may
-- hold a message whose id has a hash.
select min(s.base_offset) as first,
       array_agg(s.base_offset order by s.base_offset desc)
           filter (where coalesce(position($3::bytea in s.hashes) > 0, true)) as suspects
from (
    select g.base_offset, g.hashes
    from queen.segments g
    where g.partition_id = $1 and g.base_offset < $2
    order by g.base_offset desc
    limit $4
) s

-- name: segments_at :many
-- The segments that hold some offsets, newest first, and where the partition begins.
select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.body, p.tail,
       case when s.codec >= 16 then queen.stretch_table(s.partition_id, s.base_offset)
       end as stretches
from unnest($2::bigint[]) w (message_offset)
join queen.partitions p on p.id = $1
cross join lateral (
    select * from queen.segments g
    where g.partition_id = p.id and g.base_offset <= w.message_offset
    order by g.base_offset desc limit 1
) s
where s.end_offset > w.message_offset
order by s.base_offset desc
