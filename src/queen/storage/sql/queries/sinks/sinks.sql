-- name: open_sink :one again
select * from queen.open_sink($1, $2, $3, $4)

-- name: sink :maybe
-- How a query stands; `visible` says whether a caller that is limited to namespaces may use it.
select epoch, last_batch, last_messages,
       $2::text[] is null or coalesce(namespaces <@ $2, false) as visible
from queen.sinks where query = $1

-- name: lock_sink :maybe
select epoch, last_batch, last_messages from queen.sinks where query = $1 for update

-- name: stage_part :exec again
select queen.stage_part($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)

-- name: sink_parts :many
-- The parts that attempts of tasks have staged, in the order of their messages.
select p.id, p.task, p.attempt, p.messages, p.compared
from unnest($4::integer[], $5::bigint[]) w (task, attempt)
join queen.sink_parts p
  on p.query = $1 and p.batch = $2 and p.run = $3 and p.task = w.task and p.attempt = w.attempt
order by p.task, p.part

-- name: lock_parts :many
select id from queen.sink_parts where id = any ($1::bigint[]) order by id for update

-- name: sink_partitions :many
-- Which partitions parts go to, and with how much.
select c.partition_id, c.queue, c.partition, sum(c.messages)::bigint as messages,
       sum(c.bytes)::bigint as bytes, bool_or(p.compared) as compared
from queen.sink_parts p join queen.sink_pieces c on c.part_id = p.id
where p.id = any ($1::bigint[])
group by c.partition_id, c.queue, c.partition
order by c.partition_id

-- name: sink_queues :many
select distinct c.queue from queen.sink_pieces c where c.part_id = any ($1::bigint[])

-- name: staged_hashes :many
-- The hashes of what goes to some partitions, partition by partition.
select c.partition_id, s.hashes
from unnest($1::bigint[]) with ordinality o (part_id, n)
join queen.sink_pieces c on c.part_id = o.part_id
join queen.segments s on s.partition_id = -c.part_id and s.base_offset = c.position
where c.partition_id = any ($2::bigint[]) and s.hashes is not null
order by c.partition_id, o.n, c.position

-- name: staged_pieces :many
-- What goes to one partition, in order.
select c.part_id, c.position, c.partition_id, c.queue, c.partition, s.codec, s.body
from unnest($1::bigint[]) with ordinality o (part_id, n)
join queen.sink_pieces c on c.part_id = o.part_id
join queen.segments s on s.partition_id = -c.part_id and s.base_offset = c.position
where c.partition_id = $2
order by o.n, c.position

-- name: rewrite_piece :exec again
-- A staged segment without the messages that are stored already.
with piece as (
    update queen.sink_pieces set messages = $3, bytes = length($6::bytea)
     where part_id = $1 and position = $2
)
update queen.segments set codec = $4, hashes = $5, body = $6
where partition_id = -$1::bigint and base_offset = $2

-- name: remove_piece :exec again
with piece as (delete from queen.sink_pieces where part_id = $1 and position = $2)
delete from queen.segments where partition_id = -$1::bigint and base_offset = $2

-- name: rebind_piece :exec again
-- A staged segment for the partition that has taken the place of a deleted one.
with piece as (
    update queen.sink_pieces set partition_id = $3 where part_id = $1 and position = $2
)
update queen.segments set codec = $4, body = $5
where partition_id = -$1::bigint and base_offset = $2

-- name: publish :many once
-- Put staged parts into the log; one row per partition.
select * from queen.publish($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: record_batch :exec once
update queen.sinks set last_batch = $2, last_messages = $3, used_at = clock_timestamp()
where query = $1

-- name: drop_parts :exec again
select queen.drop_parts($1)

-- name: parts_nobody_wants :many
-- Parts whose batch is published, whose run is over, or that are older than parts are kept.
select p.id from queen.sink_parts p left join queen.sinks s on s.query = p.query
where s.query is null or p.run <> s.run or p.batch <= s.last_batch
   or p.staged_at < clock_timestamp() - $1::integer * interval '1 hour'
limit $2
for update of p skip locked

-- name: forget_sinks :exec again
-- Queries that published once and are not asked about any more.
delete from queen.sinks
where once and used_at < clock_timestamp() - $1::integer * interval '1 hour'
