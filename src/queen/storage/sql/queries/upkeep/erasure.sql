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
-- One that was merged stays one.
update queen.segments set codec = $3::smallint | (codec & 16::smallint), body = $4
where partition_id = $1 and base_offset = $2

-- name: erase_letters :exec again
delete from queen.dead_letters where partition_id = $1 and message_offset = $2
