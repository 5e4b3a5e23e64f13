-- name: stage :exec once
-- Stage messages for a time to come.
insert into queen.staged
    (queue, partition, transaction_id, trace_id, producer_sub, payload, codec, deliver_at, headers)
select w.queue, w.partition, w.transaction_id, w.trace_id, w.producer_sub, w.payload, w.codec,
       w.deliver_at, w.headers
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[],
            $7::smallint[], $8::timestamptz[], $9::bytea[])
     with ordinality w (queue, partition, transaction_id, trace_id, producer_sub, payload, codec,
                        deliver_at, headers, n)
order by w.n

-- name: take_outbox :many once
-- Take what is due out of the outbox, up to a number of rows of each kind and of bytes.
select * from queen.take_outbox($1, $2)

-- name: is_anything_staged :one
select exists (select from queen.staged)

-- name: next_due :one
-- How long, in seconds, until the next scheduled message is due; null when there is none.
select extract(epoch from min(deliver_at) - clock_timestamp())::float8 from queen.staged
where deliver_at is not null

-- name: refuse_staged :exec once
-- Set aside what was taken out of staging and cannot be a message.
insert into queen.staged_refused
    (id, queue, partition, transaction_id, trace_id, producer_sub, payload, codec, headers, reason)
select * from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                     $7::bytea[], $8::smallint[], $9::bytea[], $10::text[])

-- name: postpone_staged :exec once
-- Put back what was taken out of staging and cannot be appended before something changes. Not
-- for long: another server may have what this one lacks.
insert into queen.staged
    (queue, partition, transaction_id, trace_id, producer_sub, payload, codec, headers, deliver_at)
select w.queue, w.partition, w.transaction_id, w.trace_id, w.producer_sub, w.payload, w.codec,
       w.headers, clock_timestamp() + (1 + random()) * interval '2 seconds'
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[],
            $7::smallint[], $8::bytea[])
     with ordinality w (queue, partition, transaction_id, trace_id, producer_sub, payload, codec,
                        headers, n)
order by w.n

-- name: scheduled :many
-- A page of what is scheduled for a queue, soonest first, if the caller may see its namespace.
select queue, partition, transaction_id, trace_id, deliver_at, staged_at,
       octet_length(payload) as payload_bytes
from queen.staged
where deliver_at is not null and queue = $1
  and ($4::text[] is null or queen.namespace_of(queue) = any ($4::text[]))
order by deliver_at, id
limit $2 offset $3

-- name: scheduled_everywhere :many
-- A page of what is scheduled for any queue, soonest first.
select queue, partition, transaction_id, trace_id, deliver_at, staged_at,
       octet_length(payload) as payload_bytes
from queen.staged
where deliver_at is not null
order by deliver_at, id
limit $1 offset $2

-- name: scheduled_among :many
-- The same for queues of some namespaces. What queues there are is found by going from one to the
-- next in the index; of each no more is read than the page could show.
with recursive names (queue) as (
    (select t.queue from queen.staged t where t.deliver_at is not null order by t.queue limit 1)
    union all
    select (select t.queue from queen.staged t
             where t.deliver_at is not null and t.queue > n.queue order by t.queue limit 1)
    from names n where n.queue is not null
)
select s.queue, s.partition, s.transaction_id, s.trace_id, s.deliver_at, s.staged_at,
       s.payload_bytes
from names n
cross join lateral (
    select t.id, t.queue, t.partition, t.transaction_id, t.trace_id, t.deliver_at, t.staged_at,
           octet_length(t.payload) as payload_bytes
    from queen.staged t
    where t.deliver_at is not null and t.queue = n.queue
    order by t.deliver_at, t.id limit $1::bigint + $2::bigint
) s
where queen.namespace_of(n.queue) = any ($3::text[])
order by s.deliver_at, s.id
limit $1 offset $2

-- name: cancel_scheduled :many once
-- Remove what is scheduled under a transaction id.
delete from queen.staged
where deliver_at is not null and queue = $1 and transaction_id = $2
  and ($3::text[] is null or queen.namespace_of(queue) = any ($3::text[]))
returning partition, deliver_at
