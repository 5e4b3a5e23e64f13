-- Walks over what is stored, in pages: a page is what is looked at, not what is found, so that a
-- statement is short however much there is. Of a page the rows are answered that are in the clear
-- or encrypted with another key than the current one (its name stands behind the first two
-- bytes), without their texts, and the last row of the page, whatever it is.

-- name: next_encrypted_queue :maybe
select q.id from queen.queues q
where q.id >= $1 and q.options -> 'encryptionEnabled' = 'true'
order by q.id limit 1

-- name: segments_to_seal :many
-- A page of the segments of one queue behind a place, in order of time; $5 names the key.
with page as materialized (
    select s.created_at, s.partition_id, s.base_offset, octet_length(s.body) as bytes,
           s.codec & 15 <> 2 or substring(s.body from 3 for 8) <> $5::bytea as to_seal
    from queen.segments s
    where s.queue_id = $1 and s.created_at >= $2
      and (s.created_at, s.partition_id, s.base_offset) > ($2, $3, $4)
    order by s.created_at, s.partition_id, s.base_offset
    limit $6
), counted as (
    select p.*, row_number() over o as number, count(*) over () as looked
    from page p window o as (order by p.created_at, p.partition_id, p.base_offset)
)
select created_at, partition_id, base_offset, bytes, to_seal, looked from counted
where to_seal or number = looked
order by number

-- name: segment_to_seal :many
select codec, body from queen.segments where partition_id = $1 and base_offset = $2 for update

-- name: letters_to_seal :many
-- The same for dead letters, by id, of whatever queue.
with page as materialized (
    select d.id, d.partition_id, octet_length(d.payload) as bytes,
           q.options -> 'encryptionEnabled' is not distinct from 'true'
               and (d.codec <> 2 or substring(d.payload from 3 for 8) <> $2::bytea) as to_seal
    from (select * from queen.dead_letters w where w.id > $1 order by w.id limit $3) d
    left join queen.queues q on q.id = d.queue_id
), counted as (
    select p.*, row_number() over (order by p.id) as number, count(*) over () as looked from page p
)
select id, partition_id, bytes, to_seal, looked from counted
where to_seal or number = looked
order by number

-- name: letter_to_seal :many
select codec, payload, headers from queen.dead_letters where id = $1 for update

-- name: rewrite_letter :exec again
update queen.dead_letters set codec = $2, payload = $3, headers = $4 where id = $1

-- name: states_to_seal :many
-- The same for what queries of the streaming SDK keep.
with page as materialized (
    select s.query_id, s.partition_id, s.key, octet_length(s.value) as bytes,
           q.options -> 'encryptionEnabled' is not distinct from 'true'
               and (s.codec <> 2 or substring(s.value from 3 for 8) <> $4::bytea) as to_seal
    from (
        select * from queen.query_state w
        where (w.query_id, w.partition_id, w.key) > ($1::uuid, $2::bigint, $3::text collate "C")
        order by w.query_id, w.partition_id, w.key limit $5
    ) s
    left join queen.partitions p on p.id = s.partition_id
    left join queen.queues q on q.id = p.queue_id
), counted as (
    select p.*, row_number() over (order by p.query_id, p.partition_id, p.key) as number,
           count(*) over () as looked
    from page p
)
select query_id, partition_id, key, bytes, to_seal, looked from counted
where to_seal or number = looked
order by number

-- name: state_to_seal :many
select codec, value from queen.query_state
where query_id = $1 and partition_id = $2 and key = $3 for update
