-- name: dead_letters :many
-- Dead letters, the latest first.
select d.id, d.partition_id, d.message_offset, d.transaction_id, d.trace_id, d.codec, d.payload,
       d.error, d.attempts, d.created_at, d.failed_at, d.consumer_group, d.producer_sub,
       d.headers,
       p.name as partition, q.name as queue, q.namespace, q.task
from queen.letters_matching($1, $2, $3, $4, $5, $6, $7, $8, true, $9, $10) l
join queen.dead_letters d on d.id = l.id
join queen.partitions p on p.id = d.partition_id
join queen.queues q on q.id = d.queue_id
order by l.rank

-- name: count_dead_letters :one
-- How many there are, counted no further than $9.
select count(*) from queen.letters_matching($1, $2, $3, $4, $5, $6, $7, $8, true, $9, 0)

-- name: dead_letter_errors :many
-- How many died of what, the most frequent first.
select q.name as queue, d.consumer_group, d.error, d.letters, d.first_at, d.last_at, d.looked_at
from queen.letter_errors($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) d
join queen.queues q on q.id = d.queue_id
order by d.letters desc, d.error, q.name, d.consumer_group

-- name: error_of_key :one
-- The error that a hash stands for, by the index of queues and errors; null when there is none.
select (select d.error from queen.dead_letters d
         where d.queue_id in (select q.id from queen.queues q) and md5(d.error) = $1
         limit 1)

-- name: take_dead_letters :many once
-- Remove dead letters; those that somebody else has just taken are missing in the answer.
delete from queen.dead_letters where id = any ($1::bigint[]) returning id

-- name: purge_dead_letters :many once
-- Remove dead letters for good, the oldest first.
delete from queen.dead_letters d
using (
    select id from queen.letters_matching($1, $2, $3, $4, $5, $6, $7, $8, false, $9, 0)
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
