-- name: all_servers_know_merged :one
-- Whether every server that was there a moment ago can read merged segments.
select not exists (
    select 1 from queen.servers
    where seen_at > clock_timestamp() - interval '1 minute' and not knows_merged)

-- name: queue_to_merge :maybe
-- The next queue behind $1 whose first segment that nobody has looked at is older than $2 seconds,
-- and up to when it may be merged now: nothing that is younger than $3 seconds, nor further than
-- a merged segment may reach. Encrypted queues stay as they are, and those whose index for
-- `dedup: forever` is being made, in the order of time.
select q.id, q.revision, f.created_at as since,
       least(f.created_at + interval '10 minutes',
             clock_timestamp() - $3::double precision * interval '1 second') as until
from queen.queues q
cross join lateral (
    select s.created_at from queen.segments s
    where s.queue_id = q.id and s.created_at >= q.merged_until
    order by s.created_at limit 1
) f
where q.id > $1 and f.created_at < clock_timestamp() - $2::double precision * interval '1 second'
  and (q.options -> 'encryptionEnabled' = 'true') is not true
  and ((q.options ->> 'dedup' = 'forever') is not true or q.is_indexed)
order by q.id limit 1

-- name: segments_to_merge :many
-- What was written to a queue in a range of time and never merged, in order of time: $4 segments
-- at most, and the bodies of those that are no larger than $5 bytes. What was encrypted once stays
-- as it is, whatever its queue says now.
select s.partition_id, s.base_offset, s.end_offset, s.created_at, s.codec, s.hashes,
       s.xmin::text as version, 
       case when octet_length(s.body) <= $5 and s.codec & 2 = 0 then s.body end as body
from queen.segments s
where s.queue_id = $1 and s.created_at >= $2 and s.created_at < $3 and s.codec < 16
order by s.created_at, s.partition_id, s.base_offset
limit $4

-- name: merge_segments :one once
select queen.merge_segments($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: note_merged :exec again
-- There was nothing to merge up to an instant.
update queen.queues set merged_until = $2 where id = $1 and merged_until < $2
