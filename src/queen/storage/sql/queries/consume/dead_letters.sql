-- name: dead_letters :many
-- Dead letters, the latest first.
select d.id, d.partition_id, d.message_offset, d.transaction_id, d.trace_id, d.codec, d.payload,
       d.error, d.attempts, d.created_at, d.failed_at, d.consumer_group, d.producer_sub,
       p.name as partition, q.name as queue, q.namespace, q.task
from queen.letters_matching($1, $2, $3, $4, $5, $6, $7, $8) d
join queen.partitions p on p.id = d.partition_id
join queen.queues q on q.id = d.queue_id
order by d.failed_at desc, d.id desc
limit $9 offset $10

-- name: count_dead_letters :one
select count(*) from queen.letters_matching($1, $2, $3, $4, $5, $6, $7, $8)

-- name: dead_letter_errors :many
-- How many died of what, the most frequent first.
select q.name as queue, d.consumer_group, coalesce(d.error, '') as error, count(*) as letters,
       min(d.failed_at) as first_at, max(d.failed_at) as last_at
from queen.letters_matching($1, $2, $3, $4, $5, $6, $7, $8) d
join queen.queues q on q.id = d.queue_id
group by q.name, d.consumer_group, d.error
order by letters desc, error
limit $9

-- name: take_dead_letters :many once
-- Remove dead letters; those that somebody else has just taken are missing in the answer.
delete from queen.dead_letters where id = any ($1::bigint[]) returning id

-- name: purge_dead_letters :many once
-- Remove dead letters for good, the oldest first.
delete from queen.dead_letters d
using (
    select id from queen.letters_matching($1, $2, $3, $4, $5, $6, $7, $8)
    order by failed_at, id limit $9
) w
where d.id = w.id
returning d.id

-- name: letters_of_message :many
-- The dead letters of one message.
select id from queen.dead_letters where partition_id = $1 and message_offset = $2

-- name: groups_of_queue :many
select id, name from queen.groups where queue_id = $1 order by id

-- name: open_cursors :exec again
-- Make sure that groups have a cursor in a partition.
select queen.open_cursor($1, g) from unnest($2::integer[]) g
