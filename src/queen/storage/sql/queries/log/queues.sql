-- name: configure_queue :one again
-- Create a queue or overwrite its configuration.
select queen.configure_queue($1, $2, $3, $4)

-- name: alter_queue :maybe again
-- Change what is named of a queue: its labels ($3, $4), options ($5), and those that go back to
-- their default ($6).
select * from queen.alter_queue($1, $2, $3, $4, $5, $6, $7)

-- name: ensure_queues :exec again
-- Create the queues that a push names and nobody has configured. Here as everywhere else, those
-- that exist are left out first: a conflicting insert would draw a number in vain, each time.
-- $4 is how long to wait for somebody's lock, in milliseconds; null: as the session says.
insert into queen.queues (name, namespace, task)
select w.name, w.namespace, w.task
from (select set_config('lock_timeout', coalesce($4::integer::text,
                                                 current_setting('lock_timeout')), true)) s,
     unnest($1::text[], $2::text[], $3::text[]) with ordinality w (name, namespace, task, number)
where not exists (select 1 from queen.queues q where q.name = w.name)
order by w.number
on conflict (name) do nothing

-- name: queues_by_name :many
select id, name, namespace, task, options, revision, is_indexed
from queen.queues where name = any ($1::text[])

-- name: queues_by_label :many
-- Queues that a pop by namespace and task may read; an empty filter matches all.
select id, name, namespace, task, options, revision, is_indexed from queen.queues
where ($1 = '' or namespace = $1) and ($2 = '' or task = $2)
order by id

-- name: ensure_partitions :exec again
-- Create partitions of queues that still exist. $3 is how long to wait for somebody's lock, in
-- milliseconds; null: as the session says.
insert into queen.partitions (queue_id, name)
select q.id, w.name
from (select set_config('lock_timeout', coalesce($3::integer::text,
                                                 current_setting('lock_timeout')), true)) s
cross join unnest($1::integer[], $2::text[]) with ordinality w (queue_id, name, number)
join queen.queues q on q.id = w.queue_id
where not exists (select 1 from queen.partitions p where p.queue_id = q.id and p.name = w.name)
-- Those of one request get their ids in its order.
order by w.number

-- name: partitions_by_name :many
select p.id, p.queue_id, p.name, p.head
from queen.partitions p
join unnest($1::integer[], $2::text[]) w (queue_id, name)
  on p.queue_id = w.queue_id and p.name = w.name

-- name: partitions_by_id :many
select p.id, p.queue_id, p.name, p.head, q.name as queue
from queen.partitions p join queen.queues q on q.id = p.queue_id
where p.id = any ($1::bigint[])

-- name: ensure_group :maybe again
-- Register a group with a queue that still exists; its first subscription stays. A queue that is
-- being deleted is waited for, and is then gone. `begins_at` is told of a group that this call has
-- made and that reads only what is written from now on.
with known as (
    select id, reads_by_time from queen.groups where queue_id = $1 and name = $2
), made as (
    insert into queen.groups as g (queue_id, name, subscription_mode, starts_at, shared)
    select q.id, $2, $3,
           coalesce($4::timestamptz, case when $3 = 'new' then clock_timestamp() end),
           coalesce(q.options -> 'sharedGroups' = 'true', false)
               and not queen.is_query_group(q.name, $2)
    from queen.queues q where q.id = $1 and not exists (select 1 from known) for key share of q
    on conflict (queue_id, name) do update set name = excluded.name
    -- A row that was there already, made in the same moment, has been updated.
    returning id, reads_by_time,
              case when g.xmax = 0 and $3 = 'new' then g.starts_at end as begins_at
)
select id, reads_by_time, null::timestamptz as begins_at from known
union all select id, reads_by_time, begins_at from made

-- name: ensure_groups :many again
-- The same for a group of many queues.
with known as (
    select queue_id, id, reads_by_time from queen.groups
    where queue_id = any ($1::integer[]) and name = $2
), made as (
    insert into queen.groups (queue_id, name, subscription_mode, starts_at, shared)
    select q.id, $2, $3,
           coalesce($4::timestamptz, case when $3 = 'new' then clock_timestamp() end),
           coalesce(q.options -> 'sharedGroups' = 'true', false)
               and not queen.is_query_group(q.name, $2)
    from queen.queues q
    where q.id = any ($1::integer[]) and not exists (
        select 1 from known k where k.queue_id = q.id)
    order by q.id for key share of q
    on conflict (queue_id, name) do update set name = excluded.name
    returning queue_id, id, reads_by_time
)
select queue_id, id, reads_by_time from known
union all select queue_id, id, reads_by_time from made

-- name: find_group :maybe
select id from queen.groups where queue_id = $1 and name = $2

-- name: unindexed_queues :many
-- Queues that have turned to `forever` and whose index is not complete yet.
select id, revision from queen.queues
where options ->> 'dedup' = 'forever' and not is_indexed
order by id

-- name: index_some :many again
-- Add the next segments of a queue to its index; nothing comes back at the end.
select * from queen.index_some($1, $2, $3, $4, $5)

-- name: finish_index :one again
select queen.finish_index($1, $2)

-- name: delete_queue :one once
select queen.delete_queue($1)

-- name: queue_depth :one
-- How many messages the slowest group has still to read; without groups, all there are.
select coalesce(max(g.pending), (
           select sum(p.head - p.tail) from queen.partitions p where p.queue_id = $1), 0)::bigint
from (
    select sum(greatest(0, p.head - greatest(p.tail, coalesce(c.committed, case
               when w.starts_at is null then 0 else queen.offset_at(p.id, w.starts_at) end))
               - queen.done_ahead(c)))
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
    select 1 from queen.queues where options -> 'encryptionEnabled' = 'true')
