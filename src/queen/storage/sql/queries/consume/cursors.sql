-- name: claim :many once
-- Lease spans to many pops at once.
select * from queen.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- name: ack_spans :many once
-- Commit whole leased spans.
select * from queen.ack_spans($1, $2, $3, $4, $5, $6)

-- name: claim_lone :maybe once
-- Lease what one partition has for one pop, where nothing is in the way: the group reads, nobody
-- holds the partition, everything was done in order and nothing has failed. Anything else, and a
-- connection that has no generation yet, brings no row; `queen.claim` knows what to do then.
update queen.cursors k
set epoch = greatest(k.epoch + 1, l.generation << 32), attempts = 1,
    batch_start = k.committed, batch_end = least(l.head, k.committed + $5::integer),
    lease_id = $3,
    lease_until = clock_timestamp() + $4::bigint * interval '1 millisecond',
    hops = k.hops + queen.hop(k.ctid, k.page), page = queen.page_of(k.ctid)
from (
    select c.tid, p.head, p.erasures,
           nullif(current_setting('queen.generation', true), '')::bigint as generation
    from (
        -- The latest version first, and no other, as in `queen.append`.
        select a.*, a.ctid as tid from queen.cursors a
        where a.partition_id = $1 and a.group_id = $2
        order by a.hops desc limit 1
        for no key update skip locked
    ) c
    cross join lateral (
        select h.head, h.tail, h.erasures from queen.partitions h
        where h.id = $1
        order by h.hops desc limit 1
    ) p
    join queen.groups g on g.id = c.group_id
    where c.lease_id is null and c.batch_end is null and c.attempts = 0 and c.retry_at is null
      and c.acked is null and c.failed is null and c.failures is null and c.careful_until is null
      and c.committed >= p.tail and c.committed < p.head
      and not g.paused and not g.reads_by_time and not g.shared and c.handed is null
      and current_setting('queen.generation', true) <> ''
) l
where k.ctid = l.tid
-- A grant that is lost is a redelivery: see `queen.claim`.
returning 0 as outcome, k.committed, k.batch_end, l.head, l.erasures, k.epoch, k.attempts as attempt,
          0 as seen, null::bytea as acked, null::bytea as failures, $4::bigint as wait_ms,
          set_config('synchronous_commit', 'off', true)

-- name: ack_lone :maybe once
-- Commit one whole leased span, where nothing is in the way: as `queen.ack_spans` does it for many.
-- No row says that it takes a closer look.
update queen.cursors k
set committed = $4, attempts = 0, lease_id = null, lease_until = null,
    batch_start = null, batch_end = null,
    receipts = substring(substring(uuid_send($3) for 8) || int8send($4) || k.receipts for 256),
    hops = k.hops + queen.hop(k.ctid, k.page), page = queen.page_of(k.ctid)
from (
    select c.tid
    from (
        select a.*, a.ctid as tid from queen.cursors a
        where a.partition_id = $1 and a.group_id = $2
        order by a.hops desc limit 1
        for no key update skip locked
    ) c
    where c.lease_id = $3 and c.batch_end = $4 and c.lease_until > clock_timestamp()
      and c.acked is null and c.failed is null and c.failures is null
) l
where k.ctid = l.tid
returning k.committed

-- name: limit_lock_wait :exec
-- Wait for locks no longer than so many milliseconds, to the end of the transaction.
select set_config('lock_timeout', $1, true)

-- name: lock_cursors :many
-- The cursors that an ack is about, locked in order.
select c.partition_id, c.group_id, c.committed, c.batch_start, c.batch_end, c.lease_id,
       c.attempts, c.acked, c.failed, c.failures, c.receipts, c.handed,
       coalesce(c.lease_until > clock_timestamp(), false) as live
from (
    select * from unnest($1::bigint[], $2::integer[]) u (partition_id, group_id)
    order by u.partition_id, u.group_id
) w
cross join lateral (
    select * from queen.cursors a
    where a.partition_id = w.partition_id and a.group_id = w.group_id
    order by a.hops desc limit 1
    for no key update
) c

-- name: store_cursors :exec once
-- Write cursors back that `lock_cursors` has locked in the same transaction.
update queen.cursors c
set committed = w.committed, batch_start = w.batch_start, batch_end = w.batch_end,
    lease_id = w.lease_id,
    lease_until = case when w.lease_id is null then null else c.lease_until end,
    attempts = w.attempts, acked = w.acked, failed = w.failed, failures = w.failures,
    receipts = w.receipts,
    retry_at = case when w.retry_ms > 0
                    then greatest(c.retry_at,
                                  clock_timestamp() + w.retry_ms * interval '1 millisecond')
                    else c.retry_at end,
    hops = c.hops + queen.hop(c.ctid, c.page), page = queen.page_of(c.ctid)
from unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::bigint[], $6::uuid[],
            $7::integer[], $8::bytea[], $9::bytea[], $10::bytea[], $11::bytea[], $12::bigint[])
     w (partition_id, group_id, committed, batch_start, batch_end, lease_id, attempts, acked,
        failed, failures, receipts, retry_ms)
cross join lateral (
    select k.ctid as tid from queen.cursors k
    where k.partition_id = w.partition_id and k.group_id = w.group_id order by k.hops desc limit 1
) l
where c.ctid = l.tid

-- name: cursor_spans :many
-- What leases cover or covered, for a server that has not granted them.
select c.partition_id, c.group_id, c.batch_start, c.batch_end, c.lease_id, c.receipts, c.handed
from queen.cursors c
join unnest($1::bigint[], $2::integer[]) w (partition_id, group_id)
  on c.partition_id = w.partition_id and c.group_id = w.group_id

-- name: cursors_of_lease :many
-- The cursors a lease holds. A scan: only for a lease that another server granted, once.
select partition_id, group_id from queen.cursors where lease_id = $1

-- name: extend_lease :many again
-- Prolong a live lease; it never gets shorter.
update queen.cursors c
set lease_until = greatest(c.lease_until, clock_timestamp() + $4::bigint * interval '1 millisecond')
from unnest($1::bigint[], $2::integer[]) w (partition_id, group_id)
where c.partition_id = w.partition_id and c.group_id = w.group_id
  and c.lease_id = $3 and c.lease_until > clock_timestamp()
returning c.partition_id, c.group_id, c.lease_until

-- name: shorten_lease :exec again
-- Lease less than was claimed.
update queen.cursors c set batch_end = $4
where c.partition_id = $1 and c.group_id = $2 and c.lease_id = $3 and c.committed < $4

-- name: release_lease :exec once
-- Give a lease back unused: it does not count as an attempt.
update queen.cursors c
set lease_id = null, lease_until = null, batch_start = null, batch_end = null, failed = null,
    attempts = greatest(c.attempts - 1, 0)
from unnest($1::bigint[], $2::integer[]) w (partition_id, group_id)
where c.partition_id = w.partition_id and c.group_id = w.group_id and c.lease_id = $3

-- name: bury :exec again
-- Set messages aside for good. A repeated ack finds them there already.
insert into queen.dead_letters
    (queue_id, consumer_group, partition_id, group_id, message_offset, transaction_id, trace_id,
     payload, error, attempts, created_at, codec, producer_sub, headers)
select p.queue_id, g.name, w.*
from unnest($1::bigint[], $2::integer[], $3::bigint[], $4::text[], $5::text[],
            $6::bytea[], $7::text[], $8::integer[], $9::timestamptz[], $10::smallint[],
            $11::text[], $12::bytea[])
     w (partition_id, group_id, message_offset, transaction_id, trace_id, payload, error,
        attempts, created_at, codec, producer_sub, headers)
join queen.partitions p on p.id = w.partition_id
join queen.groups g on g.id = w.group_id
on conflict (partition_id, group_id, message_offset) do nothing

-- name: letters_at :many
-- Which of these messages are dead letters of their groups.
select d.partition_id, d.group_id, d.message_offset
from unnest($1::bigint[], $2::integer[], $3::bigint[]) w (partition_id, group_id, message_offset)
join queen.dead_letters d on d.partition_id = w.partition_id
 and d.group_id = w.group_id and d.message_offset = w.message_offset
