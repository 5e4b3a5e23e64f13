-- ---- computing ----

-- name: stats_round :one
-- When the counts were computed, how old they are, and what they cost. `now` is not after what
-- the transaction sees.
select computed_at, took_ms, rows_counted, bytes_at, bytes_took_ms, segments_counted, now() as now,
       extract(epoch from clock_timestamp() - computed_at) as age_s,
       extract(epoch from clock_timestamp() - bytes_at) as bytes_age_s
from queen.stats_round

-- name: stats_bound :one
-- Where the next page of partitions ends.
select max(id) as high, count(*) as size
from (select id from queen.partition_keys where id > $1 order by id limit $2) p

-- name: stats_namespaces :one
select count(distinct namespace) as count from queen.queues

-- name: stats_page :many
-- Sums over a page of partitions: one row per group, and one per queue with a null group. Then
-- the backlogs that have waited longest, each with its partition: $4 of each namespace, $5 of all.
with backlog as materialized (
    select * from queen.group_backlogs($1, $2, $3)
),
per_partition as (
    select queue_id, head, tail,
           max(head - next_offset - ahead) as outstanding, max(leased) as leased, bool_or(live) as live
    from backlog group by partition_id, queue_id, head, tail
),
per_group as materialized (
    select b.*, case when b.next_offset < b.head then (
               select case when s.codec < 16 then s.created_at
                           else queen.stretch_time(s.partition_id, s.base_offset, b.next_offset) end
               from queen.segments s
               where s.partition_id = b.partition_id and s.base_offset <= b.next_offset
               order by s.base_offset desc limit 1) end as oldest
    from backlog b where b.group_id is not null
),
late as (
    select b.queue_id, b.group_id, b.partition_id, q.namespace,
           b.head - b.next_offset - b.ahead as pending, b.oldest
    from per_group b join queen.queues q on q.id = b.queue_id
    where b.oldest is not null
),
worst as (
    select queue_id, group_id, partition_id, namespace, pending, oldest
    from (
        select *, row_number() over (
            partition by namespace order by oldest, partition_id, group_id) as nth from late
        -- Of a single namespace the worst are the worst of all.
        where (select count(distinct q.namespace) > 1
                 from (select distinct queue_id from backlog) u
                 join queen.queues q on q.id = u.queue_id)
    ) r where nth <= $4
    union
    (select * from late order by oldest, partition_id, group_id limit $5)
)
select queue_id, null::integer as group_id, count(*) as partitions,
       sum(head)::bigint as written, sum(head - tail)::bigint as retained,
       sum(outstanding)::bigint as outstanding, sum(leased)::bigint as leased,
       count(*) filter (where live) as leased_partitions,
       0::bigint as done, 0::bigint as behind, null::timestamptz as oldest, 0::bigint as members,
       0::bigint as consumers, null::bigint as partition_id, null as namespace
from per_partition group by queue_id
union all
select queue_id, group_id, count(*), 0, 0, sum(head - next_offset - ahead)::bigint, sum(leased)::bigint,
       count(*) filter (where live), sum(next_offset)::bigint,
       count(*) filter (where next_offset < head), min(oldest), count(*) filter (where begun),
       count(distinct lease_id) + sum(leases)::bigint, null, null
from per_group group by queue_id, group_id
union all
select queue_id, group_id, 1, 0, 0, pending, 0, 0, 0, 1, oldest, 0, 0, partition_id, namespace
from worst

-- name: stats_dead_letters :many
-- Dead letters of a page of them, by group.
select queue_id, group_id, count(*) as letters, max(id) as last
from (select id, queue_id, group_id from queen.dead_letters where id > $1 order by id limit $2) d
group by queue_id, group_id

-- name: stats_bytes :many
-- What a page of segments takes, by queue, and where the page ends. The length of a body that
-- lies outside its row is known without reading it.
with page as materialized (
    select partition_id, base_offset, queue_id,
           octet_length(body) + coalesce(octet_length(hashes), 0) as bytes
    from queen.segments
    where (partition_id, base_offset) > ($1, $2)
    order by partition_id, base_offset limit $3
)
select queue_id, count(*) as segments, sum(bytes)::bigint as bytes,
       (select array[partition_id, base_offset] from page
         order by partition_id desc, base_offset desc limit 1) as last
from page group by queue_id

-- name: store_queue_stats :exec again
-- Write the counts of all queues; a queue that was not counted has nothing.
insert into queen.queue_stats as t
    (queue_id, partitions, written, retained, outstanding, leased_partitions, leased, dead_letters)
select q.id, coalesce(w.partitions, 0), coalesce(w.written, 0), coalesce(w.retained, 0),
       coalesce(w.outstanding, 0), coalesce(w.leased_partitions, 0), coalesce(w.leased, 0),
       coalesce(w.dead_letters, 0)
from queen.queues q
left join unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
                 $6::bigint[], $7::bigint[], $8::bigint[])
     w (queue_id, partitions, written, retained, outstanding, leased_partitions, leased,
        dead_letters) on w.queue_id = q.id
order by q.id
on conflict (queue_id) do update set
    partitions = excluded.partitions, written = excluded.written, retained = excluded.retained,
    outstanding = excluded.outstanding, leased_partitions = excluded.leased_partitions,
    leased = excluded.leased, dead_letters = excluded.dead_letters
where (t.partitions, t.written, t.retained, t.outstanding, t.leased_partitions, t.leased,
       t.dead_letters)
   is distinct from (excluded.partitions, excluded.written, excluded.retained,
       excluded.outstanding, excluded.leased_partitions, excluded.leased, excluded.dead_letters)

-- name: store_group_stats :exec again
-- The same for groups.
insert into queen.group_stats as t
    (group_id, queue_id, pending, partitions_behind, leased_partitions, leased, done,
     dead_letters, oldest_unread_at, members, consumers)
select g.id, g.queue_id, coalesce(w.pending, 0), coalesce(w.behind, 0),
       coalesce(w.leased_partitions, 0), coalesce(w.leased, 0), coalesce(w.done, 0),
       coalesce(w.dead_letters, 0), w.oldest, coalesce(w.members, 0), coalesce(w.consumers, 0)
from queen.groups g
left join unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
                 $6::bigint[], $7::bigint[], $8::timestamptz[], $9::bigint[], $10::bigint[])
     w (group_id, pending, behind, leased_partitions, leased, done, dead_letters, oldest, members,
        consumers)
  on w.group_id = g.id
order by g.id
on conflict (group_id) do update set
    pending = excluded.pending, partitions_behind = excluded.partitions_behind,
    leased_partitions = excluded.leased_partitions, leased = excluded.leased,
    done = excluded.done, dead_letters = excluded.dead_letters,
    oldest_unread_at = excluded.oldest_unread_at, members = excluded.members,
    consumers = excluded.consumers
where (t.pending, t.partitions_behind, t.leased_partitions, t.leased, t.done, t.dead_letters,
       t.oldest_unread_at, t.members, t.consumers)
   is distinct from (excluded.pending, excluded.partitions_behind, excluded.leased_partitions,
       excluded.leased, excluded.done, excluded.dead_letters, excluded.oldest_unread_at,
       excluded.members, excluded.consumers)

-- name: store_lagging :exec again
-- Keep these worst partitions and no others; rows that say the same already are not written.
with w as materialized (
    select * from unnest($1::integer[], $2::bigint[], $3::bigint[], $4::timestamptz[])
        w (group_id, partition_id, pending, oldest)
),
gone as (
    delete from queen.lagging_partitions t
    where not exists (
        select 1 from w where w.group_id = t.group_id and w.partition_id = t.partition_id)
)
insert into queen.lagging_partitions as t (group_id, partition_id, pending, oldest_unread_at)
select group_id, partition_id, pending, oldest from w
on conflict (group_id, partition_id) do update set
    pending = excluded.pending, oldest_unread_at = excluded.oldest_unread_at
where (t.pending, t.oldest_unread_at) is distinct from (excluded.pending, excluded.oldest_unread_at)

-- name: store_bytes :exec again
update queen.queue_stats t set segments = coalesce(w.segments, 0), stored_bytes = coalesce(w.bytes, 0)
from queen.queues q
left join unnest($1::integer[], $2::bigint[], $3::bigint[]) w (queue_id, segments, bytes)
  on w.queue_id = q.id
where t.queue_id = q.id
  and (t.segments, t.stored_bytes) is distinct from (coalesce(w.segments, 0), coalesce(w.bytes, 0))

-- name: store_round :exec again
update queen.stats_round set computed_at = $1, took_ms = $2, rows_counted = $3

-- name: store_bytes_round :exec again
update queen.stats_round set bytes_at = $1, bytes_took_ms = $2, segments_counted = $3

-- ---- reading ----

-- name: list_queues :many
-- Queues with their counts, newest first. Empty filters match all.
select q.id, q.name, q.namespace, q.task, q.options, q.created_at, t.partitions, t.written,
       t.retained, t.outstanding, t.leased_partitions, t.leased, t.dead_letters, t.segments,
       t.stored_bytes, g.groups, g.done, g.pending, g.oldest_unread_at,
       count(*) over () as total
from queen.queues q
left join queen.queue_stats t on t.queue_id = q.id
left join lateral (
    select count(*) as groups, coalesce(sum(s.done), 0)::bigint as done,
           coalesce(max(s.pending), 0) as pending, min(s.oldest_unread_at) as oldest_unread_at
    from queen.group_stats s where s.queue_id = q.id
) g on true
where ($1 = '' or q.name = $1) and ($2 = '' or q.namespace = $2) and ($3 = '' or q.task = $3)
  and ($4::text[] is null or q.namespace = any ($4))
order by case when $7 then coalesce((q.options ->> 'priority')::integer, 0) end desc,
         case when $7 then q.name end, q.id desc
limit $5 offset $6

-- name: list_groups :many
-- Groups with their counts. Empty filters match all.
select q.id as queue_id, q.name as queue, q.namespace, q.task, g.name as group_name, g.id as group_id,
       s.done, s.pending, s.partitions_behind, s.leased_partitions, s.leased, s.dead_letters,
       s.oldest_unread_at
from queen.group_stats s
join queen.groups g on g.id = s.group_id
join queen.queues q on q.id = g.queue_id
where ($1 = '' or q.name = $1) and ($2 = '' or q.namespace = $2) and ($3 = '' or q.task = $3)
  and ($4::text[] is null or q.namespace = any ($4))
order by s.pending desc, g.id
limit $5

-- name: sum_groups :one
-- All counts of the groups of the queues that a filter leaves, and how their lag was spread at an
-- instant, in seconds and in messages.
select coalesce(sum(s.done), 0)::bigint as done, coalesce(sum(s.leased), 0)::bigint as leased,
       coalesce(sum(s.leased_partitions), 0)::bigint as leased_partitions,
       avg(l.lag) as lag_avg, min(l.lag) as lag_min, max(l.lag) as lag_max,
       percentile_cont(0.5) within group (order by l.lag) as lag_median,
       avg(s.pending)::float8 as pending_avg, min(s.pending)::float8 as pending_min,
       max(s.pending)::float8 as pending_max,
       percentile_cont(0.5) within group (order by s.pending) as pending_median
from queen.group_stats s
join queen.queues q on q.id = s.queue_id
cross join lateral (
    select coalesce(greatest(extract(epoch from $5::timestamptz - s.oldest_unread_at), 0), 0)::float8
) l (lag)
where ($1 = '' or q.name = $1) and ($2 = '' or q.namespace = $2) and ($3 = '' or q.task = $3)
  and ($4::text[] is null or q.namespace = any ($4))

-- name: lagging_partitions :many
-- Partitions in which groups had had something to read since before an instant, when it was
-- counted; the worst first. A null is all namespaces.
with worst as materialized (
    select t.partition_id, t.pending, t.oldest_unread_at, t.group_id,
           g.name as group_name, q.name as queue
    from queen.lagging_partitions t
    join queen.groups g on g.id = t.group_id join queen.queues q on q.id = g.queue_id
    where t.oldest_unread_at < $1 and ($2::text[] is null or q.namespace = any ($2))
    order by t.oldest_unread_at, t.partition_id, t.group_id limit $3
)
select w.*, p.name as partition
from worst w join queen.partitions p on p.id = w.partition_id
order by w.oldest_unread_at, w.partition_id, w.group_id

-- name: list_namespaces :many
select q.namespace as label, count(*) as queues, coalesce(sum(t.partitions), 0)::bigint as partitions,
       coalesce(sum(t.retained), 0)::bigint as retained,
       coalesce(sum(t.outstanding), 0)::bigint as outstanding,
       coalesce(sum(t.leased), 0)::bigint as leased
from queen.queues q left join queen.queue_stats t on t.queue_id = q.id
where $1::text[] is null or q.namespace = any ($1)
group by q.namespace order by q.namespace

-- name: list_tasks :many
select q.task as label, count(*) as queues, coalesce(sum(t.partitions), 0)::bigint as partitions,
       coalesce(sum(t.retained), 0)::bigint as retained,
       coalesce(sum(t.outstanding), 0)::bigint as outstanding,
       coalesce(sum(t.leased), 0)::bigint as leased
from queen.queues q left join queen.queue_stats t on t.queue_id = q.id
where $1::text[] is null or q.namespace = any ($1)
group by q.task order by q.task

-- name: sum_queues :one
-- All counts of the queues that a filter leaves.
select count(*) as queues, count(distinct q.namespace) as namespaces, count(distinct q.task) as tasks,
       coalesce(sum(t.partitions), 0)::bigint as partitions,
       coalesce(sum(t.written), 0)::bigint as written,
       coalesce(sum(t.retained), 0)::bigint as retained,
       coalesce(sum(t.outstanding), 0)::bigint as outstanding,
       coalesce(sum(t.leased_partitions), 0)::bigint as leased_partitions,
       coalesce(sum(t.leased), 0)::bigint as leased,
       coalesce(sum(t.dead_letters), 0)::bigint as dead_letters,
       coalesce(sum(t.stored_bytes), 0)::bigint as stored_bytes
from queen.queues q left join queen.queue_stats t on t.queue_id = q.id
where ($1 = '' or q.name = $1) and ($2 = '' or q.namespace = $2) and ($3 = '' or q.task = $3)
  and ($4::text[] is null or q.namespace = any ($4))

-- name: partition_page :many
-- A page of a queue's partitions, counted at this moment over all groups, in order of creation.
with page as materialized (
    select id, name, created_at, head_at from queen.partitions
    where queue_id = $1 order by id limit $2 offset $3
),
backlog as materialized (
    select partition_id, head, tail, max(head - next_offset - ahead) as outstanding, max(leased) as leased,
           max(next_offset) filter (where group_id is not null) as done
    from queen.group_backlogs((select min(id) - 1 from page), (select max(id) from page),
                              clock_timestamp())
    where queue_id = $1
    group by partition_id, head, tail
)
select p.id, p.name, p.created_at, b.head, b.tail, b.outstanding, b.leased,
       coalesce(b.done, 0) as done, f.created_at as oldest_at,
       case when b.head > b.tail then p.head_at end as newest_at,
       case when p.head_at > '-infinity' then p.head_at end as active_at,
       (select count(*) from queen.dead_letters d where d.partition_id = p.id) as dead_letters
from page p join backlog b on b.partition_id = p.id
left join lateral (
    select s.created_at from queen.segments s
    where s.partition_id = p.id order by s.base_offset limit 1
) f on true
order by p.id

-- name: top_errors :many
-- What the last thousand dead letters of some queues died of, and in how many partitions all of
-- them lie; without the name of a queue, of those among the last ten thousand of all. Each half
-- walks an index from its end and stops.
with letters as materialized (
    (select d.error, d.partition_id from queen.dead_letters d
     where $1 <> '' and d.failed_at >= $5 and d.failed_at < $6 and d.queue_id = (
         select q.id from queen.queues q
         where q.name = $1 and ($2 = '' or q.namespace = $2) and ($3 = '' or q.task = $3)
           and ($4::text[] is null or q.namespace = any ($4)))
     order by d.failed_at desc, d.id desc limit 1000)
    union all
    (select d.error, d.partition_id from (
         select e.error, e.partition_id, e.queue_id from queen.dead_letters e
         where $1 = '' and e.failed_at >= $5 and e.failed_at < $6
         order by e.failed_at desc, e.id desc limit 10000) d
     where (select ($2 = '' or q.namespace = $2) and ($3 = '' or q.task = $3)
               and ($4::text[] is null or q.namespace = any ($4))
            from queen.queues q where q.id = d.queue_id)
     limit 1000)
)
select coalesce(l.error, '') as error, count(*) as count,
       (select count(distinct m.partition_id) from letters m) as partitions
from letters l
group by 1 order by count desc, error limit 5

-- name: busiest_queues :many
-- All queues with their counts, those with the most to do first.
select q.name, t.partitions, t.retained, t.outstanding, t.stored_bytes, t.dead_letters
from queen.queues q left join queen.queue_stats t on t.queue_id = q.id
order by t.outstanding desc nulls last, q.id
limit 10000
