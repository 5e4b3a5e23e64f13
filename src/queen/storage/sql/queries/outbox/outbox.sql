-- name: stage :exec once
-- Stage messages for a time to come.
insert into queen.staged
    (queue, partition, transaction_id, trace_id, producer_sub, payload, codec, deliver_at)
select w.queue, w.partition, w.transaction_id, w.trace_id, w.producer_sub, w.payload, w.codec,
       w.deliver_at
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[],
            $7::smallint[], $8::timestamptz[])
     with ordinality w (queue, partition, transaction_id, trace_id, producer_sub, payload, codec,
                        deliver_at, n)
order by w.n

-- name: take_staged :many once
-- Take what is due out of staging, up to a number of rows of each kind and of bytes.
select * from queen.take_staged($1, $2)

-- name: next_due :one
-- How long, in seconds, until the next scheduled message is due; null when there is none.
select extract(epoch from min(deliver_at) - clock_timestamp())::float8 from queen.staged
where deliver_at is not null

-- name: refuse_staged :exec once
-- Set aside what was taken out of staging and cannot be a message.
insert into queen.staged_refused
    (id, queue, partition, transaction_id, trace_id, producer_sub, payload, codec, reason)
select * from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                     $7::bytea[], $8::smallint[], $9::text[])

-- name: postpone_staged :exec once
-- Put back what was taken out of staging and cannot be appended before something changes. Not
-- for long: another server may have what this one lacks.
insert into queen.staged
    (queue, partition, transaction_id, trace_id, producer_sub, payload, codec, deliver_at)
select w.queue, w.partition, w.transaction_id, w.trace_id, w.producer_sub, w.payload, w.codec,
       clock_timestamp() + (1 + random()) * interval '2 seconds'
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[],
            $7::smallint[])
     with ordinality w (queue, partition, transaction_id, trace_id, producer_sub, payload, codec,
                        n)
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
  and ($3::text[] is null or queen.namespace_of(queue) = any ($3::text[]))
order by deliver_at, id
limit $1 offset $2

-- name: cancel_scheduled :many once
-- Remove what is scheduled under a transaction id.
delete from queen.staged
where deliver_at is not null and queue = $1 and transaction_id = $2
  and ($3::text[] is null or queen.namespace_of(queue) = any ($3::text[]))
returning partition, deliver_at
