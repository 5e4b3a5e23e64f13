-- name: stream_by_name :maybe
select s.id, s.uuid, s.name, s.namespace, s.definition, s.planned_until, s.created_at, s.updated_at,
       array(select q.name from queen.stream_sources r join queen.queues q on q.id = r.queue_id
              where r.stream_id = s.id order by q.name) as sources
from queen.streams s where s.name = $1

-- name: lock_stream :maybe
-- The same, for who changes it.
select s.id, s.uuid, s.namespace, s.definition, s.planned_until,
       array(select q.name from queen.stream_sources r join queen.queues q on q.id = r.queue_id
              where r.stream_id = s.id order by q.name) as sources,
       exists (select 1 from queen.stream_groups g where g.stream_id = s.id) as is_read
from queen.streams s where s.name = $1 for update of s

-- name: create_stream :maybe once
insert into queen.streams (name, namespace, definition)
select $1, $2, $3::jsonb where not exists (select 1 from queen.streams s where s.name = $1)
on conflict (name) do nothing returning id

-- name: update_stream :exec again
update queen.streams set namespace = $2, definition = $3, updated_at = clock_timestamp(),
       plan_at = '-infinity'
where id = $1

-- name: set_stream_sources :exec again
with wanted as (
    select id from queen.queues where name = any ($2::text[])
), gone as (
    delete from queen.stream_sources
     where stream_id = $1 and queue_id not in (select id from wanted)
)
insert into queen.stream_sources (stream_id, queue_id) select $1, id from wanted
on conflict do nothing

-- name: lock_stream_groups :exec
-- Nobody settles or takes work of the stream's groups until the transaction ends.
select pg_advisory_xact_lock(7003, g.id)
from (select id from queen.stream_groups where stream_id = $1 order by id) g

-- name: lock_stream_group_rows :exec
-- The rows of the groups, after their locks: who forgets finished work takes them too.
select 1 from queen.stream_groups where stream_id = $1 order by id for no key update

-- name: balance_stream :exec once
-- As many windows of a key may be in flight as the definition says now, in every group.
select queen.balance_work(g.id, null, $2::integer, true)
from (select id from queen.stream_groups where stream_id = $1 order by id) g

-- name: recut_stream :exec once
-- Forget all windows: they are cut anew from where the slowest group stands.
with floors as (
    select g.id, least(
        (select min(w.starts_at) from queen.stream_work k
           join queen.stream_windows w on w.stream_id = $1 and w.id = k.window_id
          where k.group_id = g.id and k.state < 2),
        (select min(w.starts_at) from queen.stream_windows w
          where w.stream_id = $1 and w.id > g.frontier and w.ends_at > g.starts_at),
        -- What sessions and counts have gathered lies before this.
        greatest(g.starts_at, least(s.planned_until, (
            select min(o.begins_at) from queen.stream_open o where o.stream_id = $1)))) as at
    from queen.stream_groups g join queen.streams s on s.id = g.stream_id
    where g.stream_id = $1
), moved as (
    update queen.stream_groups g set starts_at = f.at, frontier = 0 from floors f where f.id = g.id
), dead as (
    delete from queen.stream_dead d using queen.stream_groups g
     where g.id = d.group_id and g.stream_id = $1
), work as (
    delete from queen.stream_work k using queen.stream_groups g
     where g.id = k.group_id and g.stream_id = $1
), open as (
    delete from queen.stream_open where stream_id = $1
), windows as (
    delete from queen.stream_windows where stream_id = $1
)
update queen.streams set planned_until = null, plan_at = '-infinity' where id = $1

-- name: delete_stream :maybe once
delete from queen.streams where name = $1 returning id
