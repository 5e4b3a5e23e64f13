-- name: configure_queue :one
-- Create a queue or overwrite its configuration.
select queen.configure_queue($1, $2, $3, $4)

-- name: ensure_queues :exec
-- Create the queues that a push names and nobody has configured.
insert into queen.queues (name, namespace, task)
select * from unnest($1::text[], $2::text[], $3::text[])
on conflict (name) do nothing

-- name: queues_by_name :many
select id, name, namespace, task, options from queen.queues where name = any ($1::text[])

-- name: queues_by_label :many
-- Queues that a pop by namespace and task may read; an empty filter matches all.
select id, name, namespace, task, options from queen.queues
where ($1 = '' or namespace = $1) and ($2 = '' or task = $2)
order by id

-- name: ensure_partitions :exec
-- Create partitions of queues that still exist.
insert into queen.partitions (queue_id, name)
select q.id, w.name
from unnest($1::integer[], $2::text[]) with ordinality w (queue_id, name, number)
join queen.queues q on q.id = w.queue_id
-- Those of one request get their ids in its order.
order by w.number
on conflict (queue_id, name) do nothing

-- name: partitions_by_name :many
select p.id, p.queue_id, p.name, p.head
from queen.partitions p
join unnest($1::integer[], $2::text[]) w (queue_id, name)
  on p.queue_id = w.queue_id and p.name = w.name

-- name: partitions_by_id :many
select p.id, p.queue_id, p.name, p.head, q.name as queue
from queen.partitions p join queen.queues q on q.id = p.queue_id
where p.id = any ($1::bigint[])

-- name: ensure_group :many
-- Register a group with a queue that still exists; its first subscription stays. A queue that is
-- being deleted is waited for, and is then gone.
insert into queen.groups (queue_id, name, subscription_mode, starts_at)
select q.id, $2, $3,
       coalesce($4::timestamptz, case when $3 = 'new' then clock_timestamp() end)
from queen.queues q where q.id = $1 for key share
on conflict (queue_id, name) do update set name = excluded.name
returning id, reads_by_time

-- name: ensure_groups :many
-- The same for a group of many queues.
insert into queen.groups (queue_id, name, subscription_mode, starts_at)
select q.id, $2, $3,
       coalesce($4::timestamptz, case when $3 = 'new' then clock_timestamp() end)
from queen.queues q where q.id = any ($1::integer[]) order by q.id for key share
on conflict (queue_id, name) do update set name = excluded.name
returning queue_id, id, reads_by_time

-- name: find_group :one
select id from queen.groups where queue_id = $1 and name = $2

-- name: delete_queue :one
select queen.delete_queue($1)

-- name: queue_depth :one
-- How many messages the slowest group has still to read; without groups, all there are.
select coalesce(max(g.pending), (
           select sum(p.head - p.tail) from queen.partitions p where p.queue_id = $1), 0)::bigint
from (
    select sum(p.head - greatest(p.tail, coalesce(c.committed, case
               when w.starts_at is null then 0 else queen.offset_at(p.id, w.starts_at) end)))
           as pending
    from queen.groups w
    join queen.partitions p on p.queue_id = w.queue_id
    left join queen.cursors c on c.partition_id = p.id and c.group_id = w.id
    where w.queue_id = $1
    group by w.id
) g

-- name: any_encrypted :one
-- Whether a queue of this database needs an encryption key.
select exists (
    select 1 from queen.queues where (options ->> 'encryptionEnabled')::boolean)
