-- name: record_trace :maybe once
-- Keep an event of a message, with its names; nothing when the partition is not there.
with made as (
    insert into queen.traces (partition_id, transaction_id, consumer_group, event_type, data)
    select p.id, $2, $3, $4, $5 from queen.partitions p where p.id = $1
    returning id
), named as (
    insert into queen.trace_names (trace_id, name)
    select made.id, n from made cross join unnest($6::text[]) n
)
select id from made

-- name: traces_of :many
-- The events of one message, oldest first.
select t.id, t.event_type, t.data, t.consumer_group, t.created_at,
       array(select n.name from queen.trace_names n where n.trace_id = t.id order by n.name)
           as names
from queen.traces t
where t.partition_id = $1 and t.transaction_id = $2
order by t.id
limit $3 offset $4

-- name: count_traces_of :one
select count(*) from queen.traces where partition_id = $1 and transaction_id = $2

-- name: traces_by_name :many
-- The events that carry a name, oldest first.
select t.id, t.event_type, t.data, t.consumer_group, t.created_at, t.partition_id,
       t.transaction_id,
       array(select n.name from queen.trace_names n where n.trace_id = t.id order by n.name)
           as names
from (
    select n.trace_id from queen.trace_names n
    where n.name = $1 and ($4::text[] is null or queen.trace_is_among(n.trace_id, $4))
    order by n.trace_id limit $2 offset $3
) page
join queen.traces t on t.id = page.trace_id
order by t.id

-- name: count_traces_by_name :one
select count(*) from queen.trace_names n
where n.name = $1 and ($2::text[] is null or queen.trace_is_among(n.trace_id, $2))

-- name: newest_trace_names :many
-- Names, the last used first. Only among the newest hundred thousand uses: one look is bounded
-- however many there are. The counts are of everything kept. A null is all namespaces.
with seen as (
    select u.name, max(u.trace_id) as last
    from (select name, trace_id from queen.trace_names order by trace_id desc limit 100000) u
    where $3::text[] is null or queen.trace_is_among(u.trace_id, $3)
    group by u.name
)
select page.name, page.total, t.created_at as last_seen, c.events, c.messages
from (select *, count(*) over () as total from seen order by last desc limit $1 offset $2) page
join queen.traces t on t.id = page.last
cross join lateral (
    select count(*) as events, count(distinct (m.partition_id, m.transaction_id)) as messages
    from queen.trace_names n join queen.traces m on m.id = n.trace_id
    where n.name = page.name and ($3::text[] is null or queen.trace_is_among(n.trace_id, $3))
) c
order by page.last desc

-- name: forget_traces :one again
-- Drop a batch of old events; how many it were.
with old as (
    delete from queen.traces where id in (
        select id from queen.traces
        where created_at < clock_timestamp() - make_interval(days => $1)
        order by created_at limit $2
    )
    returning 1
)
select count(*) from old
