-- ---- writing ----

-- name: commit_lazily :exec
-- For numbers that a crash may take a moment of.
select set_config('synchronous_commit', 'off', true)

-- name: join_servers :one once
insert into queen.servers (hostname, port, worker, knows_merged) values ($1, $2, $3, true)
returning id

-- name: report_server :maybe again
-- Say that a server lives and what it has counted so far; null when it was forgotten.
update queen.servers set seen_at = clock_timestamp(), totals = $2::bigint[]
where id = $1 returning id

-- name: report_activity :many again
-- Write a server's own numbers of a minute, again. Queues that are gone are not returned.
insert into queen.activity
select w.queue_id, $1, $2, w.push_requests, w.push_messages, w.push_duplicates, w.push_bytes,
       w.pop_requests, w.pop_messages, w.pop_empty, w.auto_acked, w.ack_requests, w.ack_ok,
       w.ack_failed, w.dead_letters, w.transactions, w.partitions_created, w.lag_count,
       w.lag_sum_ms, w.lag_max_ms, w.parked
from unnest($3::integer[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[],
            $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[],
            $19::bigint[], $20::bigint[], $21::bigint[])
     w (queue_id, push_requests, push_messages, push_duplicates, push_bytes, pop_requests,
        pop_messages, pop_empty, auto_acked, ack_requests, ack_ok, ack_failed, dead_letters,
        transactions, partitions_created, lag_count, lag_sum_ms, lag_max_ms, parked)
join queen.queues q on q.id = w.queue_id
order by w.queue_id
on conflict (queue_id, bucket, server_id) do update set
    push_requests = excluded.push_requests, push_messages = excluded.push_messages,
    push_duplicates = excluded.push_duplicates, push_bytes = excluded.push_bytes,
    pop_requests = excluded.pop_requests, pop_messages = excluded.pop_messages,
    pop_empty = excluded.pop_empty, auto_acked = excluded.auto_acked,
    ack_requests = excluded.ack_requests, ack_ok = excluded.ack_ok,
    ack_failed = excluded.ack_failed, dead_letters = excluded.dead_letters,
    transactions = excluded.transactions, partitions_created = excluded.partitions_created,
    lag_count = excluded.lag_count, lag_sum_ms = excluded.lag_sum_ms,
    lag_max_ms = excluded.lag_max_ms, parked = excluded.parked
returning queue_id

-- name: report_vitals :exec again
-- Write what a server used in a minute, again.
insert into queen.worker_samples
    (bucket, server_id, samples, requests, database_errors, sums, lows, highs, lasts)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict (bucket, server_id) do update set
    samples = excluded.samples, requests = excluded.requests,
    database_errors = excluded.database_errors, sums = excluded.sums, lows = excluded.lows,
    highs = excluded.highs, lasts = excluded.lasts

-- ---- forgetting ----

-- name: forget_activity :one again
-- Remove a page of old numbers of each kind; returns how many went.
with old as (select clock_timestamp() - make_interval(days => $1) as at),
a as (
    delete from queen.activity where ctid = any (array(
        select ctid from queen.activity where bucket < (select at from old) limit $2))
    returning 1
),
w as (
    delete from queen.worker_samples where ctid = any (array(
        select ctid from queen.worker_samples where bucket < (select at from old) limit $2))
    returning 1
),
h as (
    delete from queen.retention_history where ctid = any (array(
        select ctid from queen.retention_history where executed_at < (select at from old) limit $2))
    returning 1
)
select (select count(*) from a) as activity, (select count(*) from w) as samples,
       (select count(*) from h) as history

-- name: forget_servers :exec once
-- Add what servers of long ago have counted to the first of them, and forget the others, so
-- that the totals of the cluster never go back.
with gone as (
    select id, totals from queen.servers
    where seen_at < clock_timestamp() - make_interval(days => $1)
    order by id for update skip locked
),
kept as (select min(id) as id from gone),
summed as (
    select array_agg(s.total order by s.at) as totals from (
        select u.at, sum(u.total)::bigint as total
        from gone, unnest(gone.totals) with ordinality u (total, at) group by u.at) s
),
removed as (
    delete from queen.servers
    where id in (select id from gone) and id <> (select id from kept)
    returning 1
)
update queen.servers set totals = coalesce((select totals from summed), '{}')
where id = (select id from kept) and (select count(*) from removed) >= 0

-- ---- reading ----

-- name: live_servers :many
-- Servers that have reported within the last half minute.
select id, hostname, port, worker, started_at, seen_at from queen.servers
where seen_at > clock_timestamp() - interval '30 seconds'
order by hostname, port, worker, id

-- name: cluster_totals :many
-- Everything all servers have counted, field by field.
select u.at::integer as at, sum(u.total)::bigint as total
from queen.servers s, unnest(s.totals) with ordinality u (total, at)
group by u.at order by u.at

-- name: activity_series :many
-- What happened in each period of so many minutes, newest first. Empty filters match all.
select date_bin(make_interval(mins => $1), a.bucket, timestamptz 'epoch') as bucket,
       sum(a.push_requests)::bigint as push_requests, sum(a.push_messages)::bigint as push_messages,
       sum(a.push_bytes)::bigint as push_bytes, sum(a.pop_requests)::bigint as pop_requests,
       sum(a.pop_messages)::bigint as pop_messages, sum(a.pop_empty)::bigint as pop_empty,
       sum(a.auto_acked)::bigint as auto_acked, sum(a.ack_requests)::bigint as ack_requests,
       sum(a.ack_ok)::bigint as ack_ok, sum(a.ack_failed)::bigint as ack_failed,
       sum(a.dead_letters)::bigint as dead_letters, sum(a.transactions)::bigint as transactions,
       sum(a.lag_count)::bigint as lag_count, sum(a.lag_sum_ms)::bigint as lag_sum_ms,
       max(a.lag_max_ms) as lag_max_ms
from queen.activity a join queen.queues q on q.id = a.queue_id
where a.bucket >= date_trunc('minute', $2::timestamptz) and a.bucket < $3
  and ($4 = '' or q.name = $4) and ($5 = '' or q.namespace = $5) and ($6 = '' or q.task = $6)
  and ($7::text[] is null or q.namespace = any ($7))
group by 1 order by 1 desc

-- name: queue_series :many
-- The same for each of the busiest queues.
with busy as (
    select q.id, q.name from queen.queues q
    join queen.activity a on a.queue_id = q.id
    where a.bucket >= date_trunc('minute', $2::timestamptz) and a.bucket < $3
      and ($4 = '' or q.name = $4) and ($5 = '' or q.namespace = $5) and ($6 = '' or q.task = $6)
      and ($7::text[] is null or q.namespace = any ($7))
    group by q.id, q.name order by sum(a.push_messages + a.pop_messages) desc, q.id limit $8
)
select date_bin(make_interval(mins => $1), a.bucket, timestamptz 'epoch') as bucket,
       b.id as queue_id, b.name as queue, max(t.partitions) as partitions,
       sum(a.push_requests)::bigint as push_requests, sum(a.push_messages)::bigint as push_messages,
       sum(a.pop_requests)::bigint as pop_requests,
       sum(a.pop_messages)::bigint as pop_messages, sum(a.pop_empty)::bigint as pop_empty,
       sum(a.ack_requests)::bigint as ack_requests, sum(a.ack_ok)::bigint as ack_ok,
       sum(a.ack_failed)::bigint as ack_failed, sum(a.transactions)::bigint as transactions,
       sum(a.partitions_created)::bigint as partitions_created,
       coalesce((
            select sum(h.segments)::bigint from queen.retention_history h
            where h.queue_id = b.id and h.kind = 'partition_cleanup'
              and date_bin(make_interval(mins => $1), h.executed_at, timestamptz 'epoch')
                  = date_bin(make_interval(mins => $1), min(a.bucket), timestamptz 'epoch')
       ), 0) as partitions_deleted,
       sum(a.lag_count)::bigint as lag_count, sum(a.lag_sum_ms)::bigint as lag_sum_ms,
       max(a.lag_max_ms) as lag_max_ms, max(a.parked) as parked
from queen.activity a join busy b on b.id = a.queue_id
left join queen.queue_stats t on t.queue_id = b.id
where a.bucket >= date_trunc('minute', $2::timestamptz) and a.bucket < $3
group by 1, 2, 3 order by 1 desc, 3

-- name: parked_series :many
-- How many polls were parked at each server, at most, in each period.
select date_bin(make_interval(mins => $1), a.bucket, timestamptz 'epoch') as bucket,
       q.name as queue, s.hostname, s.worker, max(a.parked) as parked
from queen.activity a join queen.queues q on q.id = a.queue_id
join queen.servers s on s.id = a.server_id
where a.bucket >= date_trunc('minute', $2::timestamptz) and a.bucket < $3 and a.parked > 0
  and ($4 = '' or q.name = $4) and ($5 = '' or q.namespace = $5) and ($6 = '' or q.task = $6)
  and ($7::text[] is null or q.namespace = any ($7))
group by 1, 2, 3, 4 order by 1 desc, 2, 3, 4
limit 10000

-- name: vitals_series :many
-- What each server used in each period: one row per server, period and gauge.
select date_bin(make_interval(mins => $1), w.bucket, timestamptz 'epoch') as bucket,
       s.hostname, s.port, s.worker, u.at::integer as at, sum(w.samples)::integer as samples,
       sum(w.requests)::bigint as requests, sum(w.database_errors)::bigint as database_errors,
       sum(u.total) as total, min(u.low) as low, max(u.high) as high,
       (array_agg(u.last order by w.bucket desc))[1] as last,
       extract(epoch from max(w.bucket) - min(s.started_at)) as uptime_s
from queen.worker_samples w join queen.servers s on s.id = w.server_id
cross join unnest(w.sums, w.lows, w.highs, w.lasts) with ordinality u (total, low, high, last, at)
where w.bucket >= date_trunc('minute', $2::timestamptz) and w.bucket < $3
  and ($4 = '' or s.hostname = $4) and ($5 < 0 or s.worker = $5)
group by 1, 2, 3, 4, 5 order by 2, 3, 4, 1 desc, 5

-- name: retention_series :many
-- What was removed in each period.
select date_bin(make_interval(mins => $1), h.executed_at, timestamptz 'epoch') as bucket, h.kind,
       sum(h.messages)::bigint as messages, sum(h.segments)::bigint as segments, count(*) as events
from queen.retention_history h join queen.queues q on q.id = h.queue_id
where h.executed_at >= $2 and h.executed_at < $3
  and ($4 = '' or q.name = $4) and ($5 = '' or q.namespace = $5) and ($6 = '' or q.task = $6)
  and ($7::text[] is null or q.namespace = any ($7))
group by 1, 2 order by 1 desc, 2

-- name: active_queues :many
-- Queues that something happened to in a time range, busiest first.
select q.id, q.name, q.namespace, q.task, t.partitions, t.outstanding as pending, a.ingested,
       a.processed,
       coalesce((select sum(s.done) from queen.group_stats s where s.queue_id = q.id), 0)::bigint
           as consumed
from (
    select queue_id, sum(push_messages)::bigint as ingested,
           sum(ack_ok + auto_acked)::bigint as processed,
           sum(push_messages + pop_messages) as traffic
    from queen.activity
    where bucket >= date_trunc('minute', $1::timestamptz) and bucket < $2
    group by queue_id
) a
join queen.queues q on q.id = a.queue_id
left join queen.queue_stats t on t.queue_id = q.id
where ($3 = '' or q.name = $3) and ($4 = '' or q.namespace = $4) and ($5 = '' or q.task = $5)
  and ($6::text[] is null or q.namespace = any ($6))
order by a.traffic desc, q.id
limit 1000
