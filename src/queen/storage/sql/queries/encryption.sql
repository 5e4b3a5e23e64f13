-- name: segments_to_seal :many
-- Segments of encrypted queues that are in the clear or sealed with another key ($3 names the
-- current one), behind a place. The name of a key stands behind the first two bytes.
select s.partition_id, s.base_offset, s.codec, s.body
from queen.segments s
where (s.partition_id, s.base_offset) > ($1::bigint, $2::bigint)
  and s.queue_id in (
        select q.id from queen.queues q where (q.options ->> 'encryptionEnabled')::boolean)
  and (s.codec <> 2 or substring(s.body from 3 for 8) <> $3::bytea)
order by s.partition_id, s.base_offset
limit $4
for update of s

-- name: letters_to_seal :many
-- The same for dead letters.
select d.id, d.partition_id, d.codec, d.payload
from queen.dead_letters d
where d.id > $1
  and d.queue_id in (
        select q.id from queen.queues q where (q.options ->> 'encryptionEnabled')::boolean)
  and (d.codec <> 2 or substring(d.payload from 3 for 8) <> $2::bytea)
order by d.id
limit $3
for update of d

-- name: rewrite_letter :exec again
update queen.dead_letters set codec = $2, payload = $3 where id = $1
