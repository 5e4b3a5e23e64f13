-- name: report_flows :exec again
-- Write what a server has counted of flows, again.
insert into queen.flows
    (server_id, minute, kind, source_id, via, queue_id, messages, messages_before)
select $1, $2, w.kind, w.source_id, w.via, w.queue_id, w.messages, w.messages_before
from unnest($3::text[], $4::integer[], $5::text[], $6::integer[], $7::bigint[], $8::bigint[])
     w (kind, source_id, via, queue_id, messages, messages_before)
on conflict (kind, source_id, via, queue_id, server_id) do update set
    minute = excluded.minute, messages = excluded.messages,
    messages_before = excluded.messages_before

-- name: forget_flows :exec again
-- Remove flows in which nothing has moved for a day.
delete from queen.flows where minute < clock_timestamp() - interval '1 day'

-- name: map_groups :many
-- Groups of queues and how many messages a second they acknowledge, the busiest first, then those
-- that asked last. Rates are over this minute and the one before it.
with moved as (
    select f.source_id, f.via, sum(case
               when f.minute = date_trunc('minute', clock_timestamp())
               then f.messages + f.messages_before
               when f.minute = date_trunc('minute', clock_timestamp()) - interval '1 minute'
               then f.messages else 0 end) as messages
    from queen.flows f where f.kind = 'group' and f.queue_id = 0 group by f.source_id, f.via
)
select g.id, g.name as group_name, g.paused, g.reads_by_time, q.name as queue, q.namespace,
       s.pending,
       (coalesce(m.messages, 0)
           / (60 + extract(second from clock_timestamp())))::double precision as per_second
from queen.groups g
join queen.queues q on q.id = g.queue_id
left join queen.group_stats s on s.group_id = g.id
left join moved m on m.source_id = g.queue_id and m.via = g.name
where ($1::text[] is null or q.namespace = any ($1)) and ($2 = '' or q.name = $2)
order by per_second desc, g.used_at desc, g.id
limit $3

-- name: map_flows :many
-- What was pushed through groups, streams and queries of Spark into which queue, within a day.
with moved as (
    select f.kind, f.source_id, f.via, f.queue_id, sum(case
               when f.minute = date_trunc('minute', clock_timestamp())
               then f.messages + f.messages_before
               when f.minute = date_trunc('minute', clock_timestamp()) - interval '1 minute'
               then f.messages else 0 end) as messages
    from queen.flows f where f.queue_id > 0
    group by f.kind, f.source_id, f.via, f.queue_id
)
select m.kind, m.via, coalesce(q.name, s.name) as source, t.name as target,
       coalesce(q.namespace, s.namespace) as source_namespace, t.namespace as target_namespace,
       g.id as group_id,
       (m.messages / (60 + extract(second from clock_timestamp())))::double precision as per_second
from moved m
join queen.queues t on t.id = m.queue_id
left join queen.queues q on m.kind = 'group' and q.id = m.source_id
left join queen.groups g on m.kind = 'group' and g.queue_id = m.source_id and g.name = m.via
left join queen.streams s on m.kind = 'stream' and s.id = m.source_id
where (m.kind = 'sink' or coalesce(q.id, s.id) is not null)
  and ($1::text[] is null or (t.namespace = any ($1)
       and (m.kind = 'sink' or coalesce(q.namespace, s.namespace) = any ($1))))
order by per_second desc, t.name, m.via
limit $2

-- name: map_streams :many
-- Streams and the queues they cut into windows.
select s.name, s.namespace,
       array(select q.name from queen.stream_sources r join queen.queues q on q.id = r.queue_id
              where r.stream_id = s.id order by q.name) as sources
from queen.streams s
where $1::text[] is null or s.namespace = any ($1)
order by s.updated_at desc, s.id limit $2

-- name: map_queues :many
-- Of some queues: how many messages a second are pushed, how many lie there.
select q.name, q.namespace, coalesce(t.outstanding, 0) as pending, coalesce(t.dead_letters, 0) as dead_letters,
       coalesce((
            select sum(a.push_messages) from queen.activity a
            where a.queue_id = q.id
              and a.bucket >= date_trunc('minute', clock_timestamp()) - interval '1 minute'
       ) / (60 + extract(second from clock_timestamp())), 0)::double precision as per_second
from queen.queues q left join queen.queue_stats t on t.queue_id = q.id
where q.name = any ($1::text[])
