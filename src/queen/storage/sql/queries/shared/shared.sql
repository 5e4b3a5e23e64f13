-- name: claim_shared :many once
-- Lease spans of shared groups to many pops at once.
select * from queen.claim_shared($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: ack_shared :many once
-- Commit whole leased spans of shared groups.
select done from queen.ack_shared($1, $2, $3, $4, $5, $6, $7) done

-- name: set_shared :many again
-- Let groups be shared, or read in order; returns those for which that is new.
update queen.groups g set shared = $2
where g.id = any ($1::integer[]) and g.shared <> $2 and not g.reads_by_time
returning g.id, g.queue_id

-- name: query_group_among :maybe
-- The name of a group among these that a query of the streaming SDK reads as.
select g.name from queen.groups g join queen.queues q on q.id = g.queue_id
where g.id = any ($1::integer[]) and queen.is_query_group(q.name, g.name)
limit 1

-- name: is_shared :maybe
select shared from queen.groups where id = $1

-- name: lock_spans :many
-- What leases of shared groups hold, under the locks of their cursors.
select s.partition_id, s.group_id, s.first_offset, s.end_offset, s.lease_id, s.attempts, s.told,
       s.is_alone, s.acked, s.failed, s.due_at > clock_timestamp() as live
from unnest($1::bigint[], $2::integer[], $3::uuid[]) w (partition_id, group_id, lease_id)
cross join lateral (
    select * from queen.shared_spans k
    where k.partition_id = w.partition_id and k.group_id = w.group_id and k.lease_id = w.lease_id
) s
order by s.partition_id, s.group_id, s.first_offset

-- name: spans_between :many
-- What is not done of a shared group between two offsets.
select s.partition_id, s.group_id, s.first_offset, s.end_offset, s.lease_id, s.attempts, s.told,
       s.is_alone, s.acked, s.failed, s.due_at > clock_timestamp() as live
from unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[])
     w (partition_id, group_id, start, stop)
cross join lateral (
    select * from queen.shared_spans k
    where k.partition_id = w.partition_id and k.group_id = w.group_id
      and k.first_offset < w.stop and k.end_offset > w.start
) s
order by s.partition_id, s.group_id, s.first_offset

-- name: store_spans :exec once
-- Note what was done in spans, under the locks of their cursors, and what was given back.
update queen.shared_spans s
set acked = w.acked, failed = w.failed
from unnest($1::bigint[], $2::integer[], $3::bigint[], $4::uuid[], $5::bytea[], $6::bytea[])
     w (partition_id, group_id, first_offset, lease_id, acked, failed)
where s.partition_id = w.partition_id and s.group_id = w.group_id
  and s.first_offset = w.first_offset and s.lease_id = w.lease_id

-- name: drop_spans :exec again
-- Remove spans in which nothing is left, under the locks of their cursors.
delete from queen.shared_spans s
using unnest($1::bigint[], $2::integer[], $3::bigint[], $4::uuid[])
      w (partition_id, group_id, first_offset, lease_id)
where s.partition_id = w.partition_id and s.group_id = w.group_id
  and s.first_offset = w.first_offset and s.lease_id = w.lease_id

-- name: add_spans :exec once
-- Messages that were given back, under the locks of their cursors: each waits for its next try.
insert into queen.shared_spans
    (partition_id, group_id, first_offset, end_offset, due_at, attempts, told)
select w.partition_id, w.group_id, w.first_offset, w.end_offset,
       clock_timestamp() + w.wait_ms * interval '1 millisecond', w.attempts, w.told
from unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[],
            $7::integer[])
     w (partition_id, group_id, first_offset, end_offset, wait_ms, attempts, told)

-- name: advance_shared :many once
-- Move cursors of shared groups past what is done.
select w.partition_id, w.group_id,
       queen.advance_shared(w.partition_id, w.group_id, w.done, w.receipts) as committed
from unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bytea[])
     w (partition_id, group_id, done, receipts)

-- name: extend_shared_lease :many again
-- Prolong a live lease of shared groups; it never gets shorter.
with mine as materialized (
    select k.partition_id, k.group_id, k.first_offset, k.id
    from unnest($1::bigint[], $2::integer[]) w (partition_id, group_id)
    join queen.shared_spans k on k.partition_id = w.partition_id and k.group_id = w.group_id
    where k.lease_id = $3 and k.due_at > clock_timestamp()
    order by k.partition_id, k.group_id, k.first_offset
    for no key update of k
)
update queen.shared_spans s
set due_at = greatest(s.due_at, clock_timestamp() + $4::bigint * interval '1 millisecond')
from mine
where s.partition_id = mine.partition_id and s.group_id = mine.group_id
  and s.first_offset = mine.first_offset and s.id = mine.id and s.lease_id = $3
returning s.partition_id, s.group_id, s.due_at as lease_until

-- name: spans_of_lease :many
-- The cursors a lease of shared groups holds. A scan: only for one that another server granted.
select distinct partition_id, group_id from queen.shared_spans where lease_id = $1

-- name: shorten_shared_lease :exec again
-- Lease less than was claimed.
select queen.shorten_shared($1, $2, $3, $4)

-- name: release_shared_lease :exec once
-- Give a lease back unused: it does not count as an attempt. $4 milliseconds later it is due.
with locked as materialized (
    select c.partition_id, c.group_id
    from unnest($1::bigint[], $2::integer[]) w (partition_id, group_id)
    join queen.cursors c on c.partition_id = w.partition_id and c.group_id = w.group_id
    order by c.partition_id, c.group_id
    for no key update of c
)
update queen.shared_spans s
set lease_id = null, due_at = clock_timestamp() + $4::bigint * interval '1 millisecond',
    attempts = greatest(s.attempts - 1, 0), is_alone = false
from locked w
where s.partition_id = w.partition_id and s.group_id = w.group_id and s.lease_id = $3

-- name: set_aside_shared :one once
-- Let one message of a shared group be done, whoever holds it.
select queen.set_aside_shared($1, $2, $3)
